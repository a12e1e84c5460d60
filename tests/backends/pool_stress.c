/* Several threads run parallel loops and gangs on the thread pool of the runtime at once, and check the results. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

void hlogym_parallel(void (*task)(void *, int64_t, int64_t), void *context, int64_t count, int64_t grain);
void hlogym_set_threads(int count, int cores);
int hlogym_gang_size(void);
void hlogym_gang_begin(void (*task)(void *, int64_t, int64_t), void *context, int count);
void hlogym_gang_end(void);

/* The members of a gang wait for each other, which ends only if all of them run at the same time. */
struct gang {
  int count;
  _Atomic int arrived, runs[16];
};

static void meet(void *context, int64_t number, int64_t end) {
  struct gang *const g = context;
  (void)end;
  atomic_fetch_add(&g->runs[number], 1);
  atomic_fetch_add(&g->arrived, 1);
  while (atomic_load(&g->arrived) < g->count) sched_yield();
}

static void check_gang(void) {
  struct gang g = {.count = hlogym_gang_size()};
  if (g.count < 2) return;
  hlogym_gang_begin(meet, &g, g.count);
  meet(&g, 0, 1);
  hlogym_gang_end();
  for (int i = 0; i < g.count; i++)
    if (g.runs[i] != 1) {
      printf("member %d of a gang ran %d times\n", i, g.runs[i]);
      exit(1);
    }
}

struct addition {
  int64_t *values;
  int64_t amount;
};

static void add(void *context, int64_t first, int64_t last) {
  const struct addition *const a = context;
  for (int64_t i = first; i < last; i++) a->values[i] += a->amount;
}

static void *caller(void *number) {
  const int64_t count = 1000 + 37 * (int64_t)(intptr_t)number;
  int64_t *const values = calloc((size_t)count, sizeof *values), sum = 0;
  for (int64_t round = 1; round < 2000; round++) {
    struct addition a = {values, round};
    hlogym_parallel(add, &a, count, 1 + round % 50);
    if (round % 4 == 0) check_gang();
    sum += round;
    for (int64_t i = 0; i < count; i++) {
      if (values[i] == sum) continue;
      printf("round %ld: element %ld is %ld, not %ld\n", (long)round, (long)i, (long)values[i], (long)sum);
      exit(1);
    }
  }
  free(values);
  return 0;
}

int main(void) {
  pthread_t threads[3];
  hlogym_set_threads(4, 4);
  for (intptr_t i = 0; i < 3; i++) pthread_create(&threads[i], 0, caller, (void *)i);
  for (int i = 0; i < 3; i++) pthread_join(threads[i], 0);
  puts("right");
  return 0;
}

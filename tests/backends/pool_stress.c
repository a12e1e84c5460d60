/* Several threads run parallel loops, gangs and offered tasks on the pools of the runtime at once, some of them within calls
   that share the threads of OpenMP, and check the results. The sources of the runtime come before this file in one
   translation unit. OpenMP is played by functions that start a thread for each member of a region. */
#include <sched.h>
#include <stdio.h>

#define THREADS 4

/* ---- OpenMP */

static _Thread_local struct {
  pthread_t threads[THREADS];
  void (*function)(void *);
  void *data;
  int size, number;
} region;
static _Atomic int regions, limit = THREADS;

struct member {
  void (*function)(void *);
  void *data;
  int number;
};

static void *be_member(void *argument) {
  struct member *const m = argument;
  region.number = m->number;
  region.size = THREADS;
  m->function(m->data);
  free(m);
  return 0;
}

static void start_region(void (*function)(void *), void *data, unsigned count) {
  region.size = (int)count < limit ? (int)count : limit;
  atomic_fetch_add(&regions, 1);
  for (int i = 1; i < region.size; i++) {
    struct member *const m = malloc(sizeof *m);
    *m = (struct member){function, data, i};
    if (pthread_create(&region.threads[i], 0, be_member, m)) abort();
  }
}

static void end_region(void) {
  for (int i = 1; i < region.size; i++) pthread_join(region.threads[i], 0);
  region.size = 0;
}

static int max_threads(void) { return THREADS; }
static int num_threads(void) { return region.size ? region.size : 1; }
static int thread_num(void) { return region.number; }
static int in_parallel(void) { return region.size > 1; }

/* ---- gangs */

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

/* Members of an offer wait for no other; each adds to an element of its own. */
static void check_offer(int64_t *values) {
  struct addition a = {values, 1};
  const int offered = hlogym_offer(add, &a, THREADS);
  add(&a, 0, 1);
  if (offered)
    hlogym_finish();
  else
    add(&a, 1, THREADS);
  a.amount = -1;
  add(&a, 0, THREADS);
}

static int64_t rounds = 2000;

/* Every other call of a thread shares the threads of OpenMP; a call consists of a few loops, and may call another. */
static void *caller(void *number) {
  const int64_t count = 1000 + 37 * (int64_t)(intptr_t)number;
  int64_t *const values = calloc((size_t)count, sizeof *values), sum = 0;
  struct hlogym_call outer = {.threads = 0}, inner = {.threads = 0};
  for (int64_t round = 1; round < rounds; round++) {
    struct addition a = {values, round};
    if (round % 5 == 1) {
      outer.shares = round % 10 == 1;
      hlogym_begin(&outer);
    }
    if (round % 3 == 0) {
      inner.shares = round % 2;
      hlogym_begin(&inner);
    }
    (round % 2 ? hlogym_parallel : hlogym_parallel_brief)(add, &a, count, 1 + round % 50);
    if (round % 4 == 0) check_gang();
    if (round % 4 == 1) check_offer(values);
    if (round % 3 == 0) hlogym_end(&inner);
    if (round % 5 == 0) hlogym_end(&outer);
    sum += round;
    for (int64_t i = 0; i < count; i++) {
      if (values[i] == sum) continue;
      printf("round %ld: element %ld is %ld, not %ld\n", (long)round, (long)i, (long)values[i], (long)sum);
      exit(1);
    }
  }
  if (region.size != 0) {
    puts("a region of OpenMP has not ended");
    exit(1);
  }
  free(values);
  return 0;
}

static void run_callers(void) {
  pthread_t threads[3];
  for (intptr_t i = 0; i < 3; i++) pthread_create(&threads[i], 0, caller, (void *)i);
  for (int i = 0; i < 3; i++) pthread_join(threads[i], 0);
}

int main(void) {
  void *const functions[] = {start_region, end_region, max_threads, num_threads, thread_num, in_parallel};
  hlogym_set_threads(THREADS, THREADS);
  hlogym_share_openmp(functions);
  run_callers();
  if (regions == 0) {
    puts("no call has shared the threads of OpenMP");
    exit(1);
  }
  limit = THREADS - 1; /* OpenMP now gives fewer threads than it has promised */
  rounds = 200;
  run_callers();
  puts("right");
  return 0;
}

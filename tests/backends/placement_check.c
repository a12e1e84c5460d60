/* A worker that sleeps on the core of its caller is kept off that core until it wakes, and no longer. The sources of the
   runtime come before this file in one translation unit. */
#include <stdio.h>

static _Atomic uint32_t asleep, go, awake, end;

static void *sleeper(void *place) {
  take_place(place);
  fall_asleep(place);
  atomic_store(&asleep, 1);
  while (!atomic_load(&go)) sched_yield();
  wake_up(place);
  atomic_store(&awake, 1);
  while (!atomic_load(&end)) sched_yield();
  return 0;
}

static cpu_set_t mask_of(pid_t thread) {
  cpu_set_t mask;
  if (sched_getaffinity(thread, sizeof mask, &mask) != 0) abort();
  return mask;
}

static int equal(cpu_set_t a, cpu_set_t b) { return CPU_EQUAL(&a, &b); }

int main(void) {
  struct place *const place = &places[1];
  const cpu_set_t before = mask_of(0);
  pthread_t thread;
  atomic_store(&place->core, -1);
  keep_off(place, 0); /* no worker sleeps there yet */
  if (!equal(mask_of(0), before)) return puts("a thread that does not sleep was moved"), 1;
  pthread_create(&thread, 0, sleeper, place);
  while (!atomic_load(&asleep)) sched_yield();
  const int core = atomic_load(&place->core);
  keep_off(place, core + 1);
  if (!equal(mask_of(place->thread), before)) return puts("a worker on another core was moved"), 1;
  keep_off(place, core);
  keep_off(place, core);
  const cpu_set_t during = mask_of(place->thread);
  cpu_set_t wanted = before;
  if (CPU_COUNT(&before) > 1) CPU_CLR(core, &wanted);
  if (!equal(during, wanted)) return puts("the worker may wake on the core of its caller"), 1;
  atomic_store(&go, 1);
  while (!atomic_load(&awake)) sched_yield();
  if (!equal(mask_of(place->thread), before)) return puts("the worker was not given its cores back"), 1;
  atomic_store(&end, 1);
  pthread_join(thread, 0);
  puts("right");
  return 0;
}

/* Where workers wake. This file follows runtime.c in one translation unit.

   Linux wakes a thread on the core where it slept, unless it finds an idle one. On a busy machine with few cores that share
   a cache it does not even look for one (SIS_UTIL in kernel/sched/fair.c), so that a worker that slept on the core of the
   caller wakes there, waits until the caller sleeps, and the other core stays idle. Therefore a worker publishes where it
   falls asleep, and a caller on the same core forbids it that core before waking it. The worker lifts this when it runs. */

struct place {
  _Alignas(64) _Atomic int core; /* where the worker sleeps, or -1 while it is awake */
  _Atomic int narrowed;          /* whether the worker must restore `allowed` */
  pid_t thread;
  cpu_set_t allowed;
};

static struct place places[MAX_THREADS]; /* of our own workers, by number */

static void take_place(struct place *p) {
  p->thread = (pid_t)syscall(SYS_gettid);
  atomic_store(&p->narrowed, 0);
}

static void fall_asleep(struct place *p) { atomic_store(&p->core, sched_getcpu()); }

static void wake_up(struct place *p) {
  atomic_store(&p->core, -1);
  if (atomic_exchange(&p->narrowed, 0)) sched_setaffinity(0, sizeof p->allowed, &p->allowed);
}

/* Forbid a sleeping worker the core of the calling thread, if it sleeps there and may run on another one. Only one thread
   at a time calls this for a worker. */
static void keep_off(struct place *p, int core) {
  cpu_set_t others;
  if (core < 0 || atomic_load(&p->core) != core) return; /* negative: not known, or awake */
  if (!atomic_load(&p->narrowed) && sched_getaffinity(p->thread, sizeof p->allowed, &p->allowed) != 0) return;
  others = p->allowed;
  CPU_CLR(core, &others);
  if (CPU_COUNT(&others) == 0) return;
  atomic_store(&p->narrowed, 1);
  sched_setaffinity(p->thread, sizeof others, &others);
  /* If the worker woke meanwhile, it may have lifted this before it was done. */
  if (atomic_load(&p->core) != core) sched_setaffinity(p->thread, sizeof p->allowed, &p->allowed);
}

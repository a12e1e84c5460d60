/* Pools of threads for parallel loops. This file follows placement.c in one translation unit.

   The calling thread publishes a loop as a job, and the workers that are awake join it. The iterations are split into one
   range per thread, and a thread takes chunks from its own range first, so that consecutive kernels find in a core's cache
   what that core has written. When its range is exhausted, a thread steals chunks from the other ranges, so that a
   descheduled worker delays nothing but the chunk it is working on; if necessary, the caller runs the whole loop alone.
   Idle workers spin for some microseconds and then sleep. Longer spinning would take processor time from other processes,
   and from our own threads on a busy machine.

   A process has one pool with threads of its own. A call of PyTorch's has another one while it runs: shared_threads.c. */

#define GRAINS_ALONE 16
#define CHUNKS_PER_THREAD 16
#define SPIN_NANOSECONDS 50000
/* How long a thread runs brief loops alone before it wakes workers for them: about as long as waking one takes. */
#define ALONE_NANOSECONDS 10000

/* The iterations of one thread: `next` .. `end` are not taken yet. Each range has a cache line of its own. */
struct range {
  _Alignas(64) _Atomic int64_t next;
  int64_t end;
};

/* The current job of a pool. It is written only while no worker takes part in it. */
struct job {
  task_t task;
  void *context;
  int64_t grain;
  int parts;
  struct hlogym_call *call;
  struct range ranges[MAX_THREADS];
  uint32_t gang; /* number of the gang that this job is, or 0; see hlogym_gang_begin */
};

/* `state` counts the workers that take part in the job, plus OPEN while more may join. `offers` counts the jobs so far;
   workers wait for it to change. `sleepers` counts the workers that may be waiting in the kernel. */
#define OPEN 0x10000u
struct pool {
  struct job job;
  _Atomic uint32_t state, offers, sleepers, caller_sleeps;
  _Atomic uint32_t members; /* of the gang, that have not finished */
  uint32_t gangs;           /* number of gangs so far */
  atomic_flag busy;         /* there is one job at a time; other callers run their loops alone */
  _Atomic int workers;
  _Atomic int closed;   /* whether the workers should return */
  int64_t alone, since; /* time of the last brief loops that ran alone, and when the last one ended */
};

static struct pool own = {.busy = ATOMIC_FLAG_INIT};
static int wanted_threads = 1, spins = 1;

static struct pool *pool_of_call(void); /* of shared_threads.c */

static void futex_wait(_Atomic uint32_t *word, uint32_t value) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, 0, 0, 0);
}

static void futex_wake(_Atomic uint32_t *word, int count) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, 0, 0, 0);
}

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/* Spin until a word differs from a value or the time is up; return whether it differs. */
static int spin_while(_Atomic uint32_t *word, uint32_t value, int64_t nanoseconds) {
  if (nanoseconds <= 0) return atomic_load(word) != value;
  const int64_t end = now(CLOCK_MONOTONIC) + nanoseconds;
  for (;;) {
    for (int i = 0; i < 32; i++) {
      if (atomic_load_explicit(word, memory_order_acquire) != value) return 1;
      relax();
    }
    if (now(CLOCK_MONOTONIC) > end) return 0;
  }
}

/* Run chunks of the job until none is left: first those of the thread's own range, then those of the other ranges. */
static void take_part(struct job *job, int number) {
  const int64_t grain = job->grain;
  in_task = 1;
  for (int k = 0; k < job->parts; k++) {
    struct range *const r = &job->ranges[(number + k) % job->parts];
    for (;;) {
      if (atomic_load_explicit(&r->next, memory_order_relaxed) >= r->end) break;
      const int64_t first = atomic_fetch_add_explicit(&r->next, grain, memory_order_relaxed);
      if (first >= r->end) break;
      job->task(job->context, first, first + grain < r->end ? first + grain : r->end);
      if (hlogym_interrupted()) goto end;
    }
  }
end:
  in_task = 0;
}

static void run_member(struct pool *p, int number) {
  in_task = 1;
  p->job.task(p->job.context, number, number + 1);
  in_task = 0;
  if (atomic_fetch_sub(&p->members, 1) == 1 && atomic_load(&p->caller_sleeps)) futex_wake(&p->members, 1);
}

/* Do the part of a worker in the job. */
static void work(struct pool *p, int number) {
  current = p->job.gang ? 0 : p->job.call;
  const uint32_t control = set_flushing(p->job.call && p->job.call->flush_denormals);
  if (p->job.gang)
    run_member(p, number);
  else
    take_part(&p->job, number);
  restore_control(control);
  current = 0;
}

/* Work on the jobs of a pool that come after `seen` others, until it is closed. An idle worker spins for `longest`
   nanoseconds before it sleeps. */
static void work_on_jobs(struct pool *p, int number, uint32_t seen, const int64_t longest) {
  uint32_t last_gang = 0;
  int64_t patience = longest;
  for (;;) {
    if (spin_while(&p->offers, seen, spins ? patience : 0)) {
      patience = longest;
    } else {
      patience /= 2; /* no job arrived while spinning: sleep sooner next time */
      const int64_t asleep = now(CLOCK_MONOTONIC);
      struct place *const place = p == &own ? &places[number] : 0;
      if (place) fall_asleep(place);
      atomic_fetch_add(&p->sleepers, 1);
      while (atomic_load(&p->offers) == seen) futex_wait(&p->offers, seen);
      atomic_fetch_sub(&p->sleepers, 1);
      if (place) wake_up(place);
      if (patience < longest / 16) patience = longest / 16;
      /* A job arrived soon after, as between calls from Python: spin as long as at first. Waking takes time itself. */
      if (now(CLOCK_MONOTONIC) - asleep < 2 * longest) patience = longest;
    }
    seen = atomic_load(&p->offers);
    if (atomic_load(&p->closed)) return;
    uint32_t s = atomic_load(&p->state);
    while (s & OPEN) {
      if (!atomic_compare_exchange_weak(&p->state, &s, s + 1)) continue;
      /* The job does not change until the count is decremented again. */
      if (number < p->job.parts && (p->job.gang == 0 || p->job.gang != last_gang)) work(p, number);
      if (p->job.gang) last_gang = p->job.gang;
      if (atomic_fetch_sub(&p->state, 1) == 1 && atomic_load(&p->caller_sleeps)) futex_wake(&p->state, 1);
      break;
    }
  }
}

static void *worker(void *number) {
  is_worker = 1;
  take_place(&places[(intptr_t)number]);
  work_on_jobs(&own, (int)(intptr_t)number, 0, SPIN_NANOSECONDS);
  return 0;
}

/* Start the workers that `threads` threads lack, with all signals blocked, because the threads of the host program
   should handle those. Guests are all there from the start. */
static void start_workers(struct pool *p, int threads) {
  sigset_t all, before;
  pthread_attr_t attributes;
  if (p != &own || p->workers >= threads - 1) return;
  sigfillset(&all);
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, 8 << 20);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  while (p->workers < threads - 1) {
    pthread_t thread;
    atomic_store(&places[p->workers + 1].core, -1);
    if (pthread_create(&thread, &attributes, worker, (void *)(intptr_t)(p->workers + 1)) != 0) break;
    p->workers++;
  }
  pthread_sigmask(SIG_SETMASK, &before, 0);
  pthread_attr_destroy(&attributes);
}

/* Forget the workers and the job of a pool, in a forked child. */
static void empty_pool(struct pool *p) {
  p->workers = 0;
  atomic_store(&p->state, 0);
  atomic_store(&p->offers, 0);
  atomic_store(&p->sleepers, 0);
  atomic_store(&p->caller_sleeps, 0);
  atomic_flag_clear(&p->busy);
}

/* Set the number of threads that run a loop. Threads do not spin if there are more of them than `cores`. */
EXPORT void hlogym_set_threads(int count, int cores) {
  wanted_threads = count < 1 ? 1 : count > MAX_THREADS ? MAX_THREADS : count;
  spins = wanted_threads <= cores;
}

/* Return the number of threads that run a loop of the running call. */
EXPORT int hlogym_threads(void) {
  const int limit = current && current->threads > 0 ? current->threads : wanted_threads;
  return limit < wanted_threads ? limit : wanted_threads;
}

/* Publish the job, and wake at most `count` workers. */
static void open_job(struct pool *p, int count) {
  atomic_store(&p->state, OPEN);
  atomic_fetch_add(&p->offers, 1);
  if (atomic_load(&p->sleepers) == 0) return;
  if (p == &own) {
    const int core = sched_getcpu();
    for (int number = 1; number <= p->workers; number++) keep_off(&places[number], core);
  }
  futex_wake(&p->offers, count);
}

/* Wait until a word that workers decrement is 0. */
static void wait_for_zero(struct pool *p, _Atomic uint32_t *word) {
  int64_t patience = spins ? SPIN_NANOSECONDS : 0;
  for (uint32_t n; (n = atomic_load(word)) != 0;) {
    if (spin_while(word, n, patience)) continue;
    patience = 0;
    atomic_store(&p->caller_sleeps, 1);
    if (atomic_load(word) == n) futex_wait(word, n);
    atomic_store(&p->caller_sleeps, 0);
  }
}

/* Close the job and wait for the workers that still take part in it. */
static void close_job(struct pool *p) {
  atomic_fetch_and(&p->state, ~OPEN);
  wait_for_zero(p, &p->state);
}

/* Run a loop in chunks of several grains, which begin less often, with a check for signals after each. */
static void run_alone(task_t task, void *context, int64_t count, int64_t grain) {
  const int64_t step = grain < INT64_MAX / GRAINS_ALONE ? grain * GRAINS_ALONE : grain;
  for (int64_t first = 0; first < count; first += step) {
    task(context, first, step < count - first ? first + step : count);
    if (hlogym_interrupted()) return;
  }
}

/* Run a brief loop alone if all workers sleep, unless such loops have followed one another for so long that workers should
   have been woken for them; return whether it ran. A program with pauses between its calls never waits for workers that
   would come too late, and one without has them soon. */
static int run_brief_alone(struct pool *p, task_t task, void *context, int64_t count) {
  if ((int)atomic_load(&p->sleepers) < p->workers) return 0;
  const int64_t start = now(CLOCK_MONOTONIC);
  if (start - p->since > SPIN_NANOSECONDS) p->alone = 0;
  p->since = start;
  if (spins && p->alone > ALONE_NANOSECONDS) return 0;
  task(context, 0, count);
  p->since = now(CLOCK_MONOTONIC);
  p->alone += p->since - start;
  return 1;
}

static void run_loop(task_t task, void *context, int64_t count, int64_t grain, int brief) {
  const int threads = hlogym_threads();
  if (count <= 0) return;
  if (threads == 1 || count <= grain || in_task) {
    run_alone(task, context, count, grain);
    return;
  }
  struct pool *const p = pool_of_call();
  if (atomic_flag_test_and_set(&p->busy)) {
    run_alone(task, context, count, grain);
    return;
  }
  start_workers(p, threads); /* fewer may start than requested */
  if (brief && run_brief_alone(p, task, context, count)) {
    atomic_flag_clear(&p->busy);
    return;
  }
  const int parts = p->workers + 1 < threads ? p->workers + 1 : threads;
  const int64_t fair = count / ((int64_t)parts * CHUNKS_PER_THREAD);
  if (fair > grain) grain = (fair + grain - 1) / grain * grain;
  const int64_t chunks = (count + grain - 1) / grain;
  struct job *const job = &p->job;
  job->task = task;
  job->context = context;
  job->gang = 0;
  job->grain = grain;
  job->parts = parts;
  job->call = current;
  for (int k = 0; k < parts; k++) {
    const int64_t end = chunks * (k + 1) / parts * grain;
    atomic_store_explicit(&job->ranges[k].next, chunks * k / parts * grain, memory_order_relaxed);
    job->ranges[k].end = end < count ? end : count;
  }
  open_job(p, chunks > parts ? parts - 1 : (int)chunks - 1);
  take_part(job, 0);
  close_job(p); /* every chunk is taken */
  atomic_flag_clear(&p->busy);
}

/* Call task(context, first, last) for chunks that cover 0 .. count-1, in any order and on any thread, and return when
   all have finished. A chunk has at least `grain` iterations, except for the last one of a range. */
EXPORT void hlogym_parallel(task_t task, void *context, int64_t count, int64_t grain) {
  run_loop(task, context, count, grain, 0);
}

/* The same for a loop that takes one thread not much longer than waking another. */
EXPORT void hlogym_parallel_brief(task_t task, void *context, int64_t count, int64_t grain) {
  run_loop(task, context, count, grain, 1);
}

/* ---- gangs: tasks that run at the same time, each on a thread of its own, so that they may wait for each other

   They serve libraries that were written for OpenMP (compiler/backends/cpu/onednn/openmp.c). A gang is a job whose
   members are not stolen. The caller is member 0: it does its part between hlogym_gang_begin and hlogym_gang_end. */

static _Thread_local struct pool *gang_pool; /* of the gang, or of the offered tasks, that the calling thread has begun */

/* Return how many members a gang should have, after starting the workers. */
EXPORT int hlogym_gang_size(void) {
  struct pool *const p = pool_of_call();
  if (p->workers < wanted_threads - 1 && !atomic_flag_test_and_set(&p->busy)) {
    start_workers(p, wanted_threads);
    atomic_flag_clear(&p->busy);
  }
  return p->workers + 1 < wanted_threads ? p->workers + 1 : wanted_threads;
}

/* Start members 1 .. count-1 of a gang: each calls task(context, number, number + 1). */
EXPORT void hlogym_gang_begin(task_t task, void *context, int count) {
  struct pool *p = pool_of_call();
  if (p->workers < count - 1) p = &own; /* guests do not become more */
  for (int tries = 0; atomic_flag_test_and_set(&p->busy); tries++) {
    const struct timespec pause = {0, 20000}; /* another thread runs a job; a gang cannot do without the workers */
    if (tries < 1000)
      relax();
    else
      nanosleep(&pause, 0);
  }
  start_workers(p, count);
  if (p->workers < count - 1) abort(); /* as OpenMP does when the system refuses a thread */
  if (++p->gangs == 0) p->gangs = 1;
  p->job.task = task;
  p->job.context = context;
  p->job.parts = count;
  p->job.call = current;
  p->job.gang = p->gangs;
  atomic_store(&p->members, (uint32_t)count - 1);
  gang_pool = p;
  open_job(p, INT_MAX); /* those of higher numbers sleep again */
  in_task = 1;
}

/* Wait until all members have finished. */
EXPORT void hlogym_gang_end(void) {
  struct pool *const p = gang_pool;
  in_task = 0;
  wait_for_zero(p, &p->members);
  close_job(p);
  atomic_flag_clear(&p->busy);
}

/* ---- offered tasks: like a gang, but the members do not wait for each other, so that any thread may run any of them

   The caller does member 0 between hlogym_offer and hlogym_finish, and then the members that no worker has started. On a
   machine with other load, a worker that does not run at the moment then delays nothing. */

/* Offer members 1 .. count-1 to the workers; return 0 if they are busy, and the caller has to run them itself. */
EXPORT int hlogym_offer(task_t task, void *context, int count) {
  if (in_task) return 0;
  struct pool *const p = pool_of_call();
  if (atomic_flag_test_and_set(&p->busy)) return 0;
  if (p->workers < count - 1) start_workers(p, wanted_threads);
  const int parts = p->workers + 1 < count ? p->workers + 1 : count;
  struct job *const job = &p->job;
  job->task = task;
  job->context = context;
  job->gang = 0;
  job->grain = 1;
  job->parts = parts;
  job->call = current;
  for (int k = 0; k < parts; k++) {
    atomic_store_explicit(&job->ranges[k].next, 1 + (count - 1) * k / parts, memory_order_relaxed);
    job->ranges[k].end = 1 + (count - 1) * (k + 1) / parts;
  }
  gang_pool = p;
  open_job(p, parts - 1);
  in_task = 1;
  return 1;
}

/* Run the members that have not started, and wait for the others. */
EXPORT void hlogym_finish(void) {
  struct pool *const p = gang_pool;
  take_part(&p->job, 0);
  close_job(p);
  atomic_flag_clear(&p->busy);
}

/* The runtime of kernels and drivers: a thread pool for parallel loops, checks for pending signals, and timers.
   One copy serves the whole process; the dynamic linker binds kernels and drivers to its functions.

   The thread pool. The calling thread publishes a loop as a job, and the workers that are awake join it. The
   iterations are split into one range per thread, and a thread takes chunks from its own range first, so that
   consecutive kernels find in a core's cache what that core has written. When its range is exhausted, a thread steals
   chunks from the other ranges, so that a descheduled worker delays nothing but the chunk it is working on; if
   necessary, the caller runs the whole loop alone. Idle workers spin for some microseconds and then sleep. Longer
   spinning would take processor time from other processes, and from our own threads on a busy machine. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define MAX_THREADS 256
#define CHUNKS_PER_THREAD 16
#define SPIN_NANOSECONDS 50000
#define POLL_MILLISECONDS 50

typedef void (*task_t)(void *context, int64_t first, int64_t last);

/* ---- signals */

/* One call of a program. If a Python signal handler raises an exception during the call, it is stored here until the
   call returns; `exception` holds what PyErr_Fetch returns. */
struct hlogym_call {
  void *exception[3];
  volatile int stopped; /* set when loops should end early; the results of the call are then discarded */
  int64_t polled;       /* time of the last check for signals in milliseconds; 0 if there was none */
  struct hlogym_call *outer;
  int flush_denormals;  /* whether subnormal numbers count as zero during the call */
  uint32_t control;     /* the floating-point control register of the caller */
  int threads;          /* number of threads that run a loop of this call; 0 means all */
};

static struct {
  int (*gil_ensure)(void);
  void (*gil_release)(int);
  int (*check_signals)(void);
  void (*fetch)(void **, void **, void **);
} python;

static _Thread_local struct hlogym_call *current;
static _Thread_local int is_worker, in_task;

/* Set the functions of Python's C API that the check for signals calls; without them there are no checks. */
EXPORT void hlogym_set_python(void *gil_ensure, void *gil_release, void *check_signals, void *fetch) {
  python.gil_ensure = (int (*)(void))gil_ensure;
  python.gil_release = (void (*)(int))gil_release;
  python.check_signals = (int (*)(void))check_signals;
  python.fetch = (void (*)(void **, void **, void **))fetch;
}

static int64_t now(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Run pending signal handlers of Python, at most every POLL_MILLISECONDS; return whether the call should end. */
static int poll_signals(struct hlogym_call *call) {
  const int64_t ms = now(CLOCK_MONOTONIC_COARSE) / 1000000;
  if (call->polled == 0) call->polled = ms; /* set here and not in hlogym_begin, to save short calls the clock */
  if (ms - call->polled < POLL_MILLISECONDS || python.check_signals == 0) return call->stopped;
  call->polled = ms;
  const int gil = python.gil_ensure();
  if (python.check_signals() != 0) {
    python.fetch(&call->exception[0], &call->exception[1], &call->exception[2]);
    call->stopped = 1;
  }
  python.gil_release(gil);
  return call->stopped;
}

/* Return whether the running call should end. Workers only read the flag; the calling thread also polls for signals. */
EXPORT int hlogym_interrupted(void) {
  struct hlogym_call *const call = current;
  if (call == 0) return 0;
  return is_worker || call->stopped ? call->stopped : poll_signals(call);
}

/* Return the floating-point control register of this thread, and set the bits that flush subnormal numbers to zero. */
static uint32_t flush_denormals(void) {
#if defined(__x86_64__) || defined(__i386__)
  const uint32_t before = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(before | 0x8040); /* flush to zero, denormals are zeros */
  return before;
#elif defined(__aarch64__)
  uint64_t before;
  __asm__ volatile("mrs %0, fpcr" : "=r"(before));
  __asm__ volatile("msr fpcr, %0" : : "r"(before | 1u << 24));
  return (uint32_t)before;
#else
  return 0;
#endif
}

static void restore_control(uint32_t before) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_ldmxcsr(before);
#elif defined(__aarch64__)
  __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)before));
#else
  (void)before;
#endif
}

EXPORT void hlogym_begin(struct hlogym_call *call) {
  call->exception[0] = call->exception[1] = call->exception[2] = 0;
  call->stopped = 0;
  call->polled = 0;
  call->outer = current; /* a host op may call another program */
  current = call;
  if (call->flush_denormals) call->control = flush_denormals();
}

EXPORT void hlogym_end(struct hlogym_call *call) {
  if (call->flush_denormals) restore_control(call->control);
  current = call->outer;
}

/* ---- the pool */

/* The iterations of one thread: `next` .. `end` are not taken yet. Each range has a cache line of its own. */
struct range {
  _Alignas(64) _Atomic int64_t next;
  int64_t end;
};

/* The current job. It is written only while no worker takes part in it. */
static struct {
  task_t task;
  void *context;
  int64_t grain;
  int parts;
  struct hlogym_call *call;
  struct range ranges[MAX_THREADS];
  uint32_t gang; /* number of the gang that this job is, or 0; see hlogym_gang_begin */
} job;

/* `state` counts the workers that take part in the job, plus OPEN while more may join. `offers` counts the jobs so far;
   workers wait for it to change. `sleepers` counts the workers that may be waiting in the kernel. */
#define OPEN 0x10000u
static _Atomic uint32_t state, offers, sleepers, caller_sleeps;
static atomic_flag busy = ATOMIC_FLAG_INIT; /* there is one job at a time; other callers run their loops alone */
static int wanted_threads = 1, spins = 1;
static _Atomic int workers = 0;

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
static void take_part(int number) {
  const int64_t grain = job.grain;
  in_task = 1;
  for (int k = 0; k < job.parts; k++) {
    struct range *const r = &job.ranges[(number + k) % job.parts];
    for (;;) {
      if (atomic_load_explicit(&r->next, memory_order_relaxed) >= r->end) break;
      const int64_t first = atomic_fetch_add_explicit(&r->next, grain, memory_order_relaxed);
      if (first >= r->end) break;
      job.task(job.context, first, first + grain < r->end ? first + grain : r->end);
      if (hlogym_interrupted()) goto end;
    }
  }
end:
  in_task = 0;
}

static _Atomic uint32_t members; /* of the gang, that have not finished */

static void run_member(int number) {
  in_task = 1;
  job.task(job.context, number, number + 1);
  in_task = 0;
  if (atomic_fetch_sub(&members, 1) == 1 && atomic_load(&caller_sleeps)) futex_wake(&members, 1);
}

static void *worker(void *number) {
  is_worker = 1;
  uint32_t seen = 0, last_gang = 0;
  int64_t patience = SPIN_NANOSECONDS;
  for (;;) {
    if (spin_while(&offers, seen, spins ? patience : 0)) {
      patience = SPIN_NANOSECONDS;
    } else {
      patience /= 2; /* no job arrived while spinning: sleep sooner next time */
      const int64_t asleep = now(CLOCK_MONOTONIC);
      atomic_fetch_add(&sleepers, 1);
      while (atomic_load(&offers) == seen) futex_wait(&offers, seen);
      atomic_fetch_sub(&sleepers, 1);
      if (patience < SPIN_NANOSECONDS / 16) patience = SPIN_NANOSECONDS / 16;
      /* A job arrived soon after, as between calls from Python: spin as long as at first. Waking takes time itself. */
      if (now(CLOCK_MONOTONIC) - asleep < 2 * SPIN_NANOSECONDS) patience = SPIN_NANOSECONDS;
    }
    seen = atomic_load(&offers);
    uint32_t s = atomic_load(&state);
    while (s & OPEN) {
      if (!atomic_compare_exchange_weak(&state, &s, s + 1)) continue;
      /* The job does not change until the count is decremented again. */
      if (job.gang) {
        if (job.gang != last_gang && (int)(intptr_t)number < job.parts) {
          const int flush = job.call && job.call->flush_denormals;
          const uint32_t control = flush ? flush_denormals() : 0;
          run_member((int)(intptr_t)number);
          if (flush) restore_control(control);
        }
        last_gang = job.gang;
      } else if ((int)(intptr_t)number < job.parts) {
        current = job.call;
        const int flush = current && current->flush_denormals;
        const uint32_t control = flush ? flush_denormals() : 0;
        take_part((int)(intptr_t)number);
        if (flush) restore_control(control);
        current = 0;
      }
      if (atomic_fetch_sub(&state, 1) == 1 && atomic_load(&caller_sleeps)) futex_wake(&state, 1);
      break;
    }
  }
  return 0;
}

/* Start the workers that `threads` threads lack, with all signals blocked, because the threads of the host program
   should handle those. */
static void start_workers(int threads) {
  sigset_t all, before;
  pthread_attr_t attributes;
  sigfillset(&all);
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, 8 << 20);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  while (workers < threads - 1) {
    pthread_t thread;
    if (pthread_create(&thread, &attributes, worker, (void *)(intptr_t)(workers + 1)) != 0) break;
    workers++;
  }
  pthread_sigmask(SIG_SETMASK, &before, 0);
  pthread_attr_destroy(&attributes);
}

static pthread_mutex_t blas_lock = PTHREAD_MUTEX_INITIALIZER;
static int blas_users = 0, blas_threads = 1;

/* Only the forking thread exists in a forked child, so the child starts with an empty pool. */
static void after_fork_in_child(void) {
  const pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
  blas_lock = unlocked;
  blas_users = 0;
  workers = 0;
  atomic_store(&state, 0);
  atomic_store(&offers, 0);
  atomic_store(&sleepers, 0);
  atomic_store(&caller_sleeps, 0);
  atomic_flag_clear(&busy);
}

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(0, 0, after_fork_in_child); }

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

/* Close the job and wait for the workers that still take part in it. */
static void close_job(void) {
  uint32_t s = atomic_fetch_and(&state, ~OPEN) & ~OPEN;
  int64_t patience = spins ? SPIN_NANOSECONDS : 0;
  while (s != 0) {
    if (!spin_while(&state, s, patience)) {
      patience = 0;
      atomic_store(&caller_sleeps, 1);
      if (atomic_load(&state) == s) futex_wait(&state, s);
      atomic_store(&caller_sleeps, 0);
    }
    s = atomic_load(&state);
  }
}

static void run_alone(task_t task, void *context, int64_t count, int64_t grain) {
  for (int64_t first = 0; first < count; first += grain) {
    task(context, first, first + grain < count ? first + grain : count);
    if (hlogym_interrupted()) return;
  }
}

/* Call task(context, first, last) for chunks that cover 0 .. count-1, in any order and on any thread, and return when
   all have finished. A chunk has at least `grain` iterations, except for the last one of a range. */
EXPORT void hlogym_parallel(task_t task, void *context, int64_t count, int64_t grain) {
  const int threads = hlogym_threads();
  if (count <= 0) return;
  if (threads == 1 || count <= grain || in_task || atomic_flag_test_and_set(&busy)) {
    run_alone(task, context, count, grain);
    return;
  }
  if (workers < threads - 1) start_workers(threads); /* fewer may start than requested */
  const int parts = workers + 1 < threads ? workers + 1 : threads;
  const int64_t fair = count / ((int64_t)parts * CHUNKS_PER_THREAD);
  if (fair > grain) grain = (fair + grain - 1) / grain * grain;
  const int64_t chunks = (count + grain - 1) / grain;
  job.task = task;
  job.context = context;
  job.gang = 0;
  job.grain = grain;
  job.parts = parts;
  job.call = current;
  for (int k = 0; k < parts; k++) {
    const int64_t end = chunks * (k + 1) / parts * grain;
    atomic_store_explicit(&job.ranges[k].next, chunks * k / parts * grain, memory_order_relaxed);
    job.ranges[k].end = end < count ? end : count;
  }
  atomic_store(&state, OPEN);
  atomic_fetch_add(&offers, 1);
  if (atomic_load(&sleepers)) futex_wake(&offers, chunks > parts ? parts - 1 : (int)chunks - 1);
  take_part(0);
  close_job(); /* every chunk is taken */
  atomic_flag_clear(&busy);
}

/* ---- gangs: tasks that run at the same time, each on a thread of its own, so that they may wait for each other

   They serve libraries that were written for OpenMP (compiler/backends/cpu/onednn/openmp.c). A gang is a job whose
   members are not stolen. The caller is member 0: it does its part between hlogym_gang_begin and hlogym_gang_end. */

/* Return how many members a gang should have, after starting the workers. */
EXPORT int hlogym_gang_size(void) {
  if (workers < wanted_threads - 1 && !atomic_flag_test_and_set(&busy)) {
    start_workers(wanted_threads);
    atomic_flag_clear(&busy);
  }
  return workers + 1 < wanted_threads ? workers + 1 : wanted_threads;
}

/* Start members 1 .. count-1 of a gang: each calls task(context, number, number + 1). */
EXPORT void hlogym_gang_begin(task_t task, void *context, int count) {
  static uint32_t gangs;
  for (int tries = 0; atomic_flag_test_and_set(&busy); tries++) {
    const struct timespec pause = {0, 20000}; /* another thread runs a job; a gang cannot do without the workers */
    if (tries < 1000)
      relax();
    else
      nanosleep(&pause, 0);
  }
  if (workers < count - 1) start_workers(count);
  if (workers < count - 1) abort(); /* as OpenMP does when the system refuses a thread */
  if (++gangs == 0) gangs = 1;
  job.task = task;
  job.context = context;
  job.parts = count;
  job.call = current;
  job.gang = gangs;
  atomic_store(&members, (uint32_t)count - 1);
  atomic_store(&state, OPEN);
  atomic_fetch_add(&offers, 1);
  if (atomic_load(&sleepers)) futex_wake(&offers, INT_MAX); /* those of higher numbers sleep again */
  in_task = 1;
}

/* Wait until all members have finished. */
EXPORT void hlogym_gang_end(void) {
  int64_t patience = spins ? SPIN_NANOSECONDS : 0;
  in_task = 0;
  for (uint32_t n; (n = atomic_load(&members)) != 0;) {
    if (spin_while(&members, n, patience)) continue;
    atomic_store(&caller_sleeps, 1);
    if (atomic_load(&members) == n) futex_wait(&members, n);
    atomic_store(&caller_sleeps, 0);
  }
  close_job();
  atomic_flag_clear(&busy);
}

/* ---- offered tasks: like a gang, but the members do not wait for each other, so that any thread may run any of them

   The caller does member 0 between hlogym_offer and hlogym_finish, and then the members that no worker has started. On a
   machine with other load, a worker that does not run at the moment then delays nothing. */

/* Offer members 1 .. count-1 to the workers; return 0 if they are busy, and the caller has to run them itself. */
EXPORT int hlogym_offer(task_t task, void *context, int count) {
  if (in_task || atomic_flag_test_and_set(&busy)) return 0;
  if (workers < count - 1) start_workers(wanted_threads);
  const int parts = workers + 1 < count ? workers + 1 : count;
  job.task = task;
  job.context = context;
  job.gang = 0;
  job.grain = 1;
  job.parts = parts;
  job.call = current;
  for (int k = 0; k < parts; k++) {
    atomic_store_explicit(&job.ranges[k].next, 1 + (count - 1) * k / parts, memory_order_relaxed);
    job.ranges[k].end = 1 + (count - 1) * (k + 1) / parts;
  }
  atomic_store(&state, OPEN);
  atomic_fetch_add(&offers, 1);
  if (atomic_load(&sleepers)) futex_wake(&offers, parts - 1);
  in_task = 1;
  return 1;
}

/* Run the members that have not started, and wait for the others. */
EXPORT void hlogym_finish(void) {
  take_part(0);
  close_job();
  atomic_flag_clear(&busy);
}

/* ---- BLAS threads: limited to one while any call runs, because our own thread pool splits the matrix products */

EXPORT void hlogym_blas_enter(int (*get_threads)(void), void (*set_threads)(int)) {
  pthread_mutex_lock(&blas_lock);
  if (blas_users++ == 0) {
    blas_threads = get_threads();
    set_threads(1);
  }
  pthread_mutex_unlock(&blas_lock);
}

EXPORT void hlogym_blas_leave(void (*set_threads)(int)) {
  pthread_mutex_lock(&blas_lock);
  if (--blas_users == 0) set_threads(blas_threads);
  pthread_mutex_unlock(&blas_lock);
}

/* ---- timing: the clock is read in C, so that the overhead of Python is not included */

typedef void (*kernel_t)(void *const *);
typedef void (*program_t)(char *, char *const *, char *const *, char *const *, struct hlogym_call *);

EXPORT void hlogym_time_kernel(kernel_t kernel, void *const *arguments, int repeats, int inner, double *seconds,
                               struct hlogym_call *call) {
  hlogym_begin(call);
  for (int i = 0; i < repeats && !hlogym_interrupted(); i++) {
    const int64_t start = now(CLOCK_MONOTONIC);
    for (int j = 0; j < inner; j++) kernel(arguments);
    seconds[i] = 1e-9 * (double)(now(CLOCK_MONOTONIC) - start) / inner;
  }
  hlogym_end(call);
}

/* `struct context` of a program starts with its `struct hlogym_call`. */
EXPORT void hlogym_time_program(program_t program, char *arena, char *const *parameters, char *const *results,
                                char *const *constants, struct hlogym_call *context, int repeats, double *seconds) {
  for (int i = 0; i < repeats; i++) {
    const int64_t start = now(CLOCK_MONOTONIC);
    program(arena, parameters, results, constants, context);
    seconds[i] = 1e-9 * (double)(now(CLOCK_MONOTONIC) - start);
    if (context->stopped) break;
  }
}

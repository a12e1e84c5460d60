/* The runtime of kernels and drivers: calls, checks for pending signals, and the floating-point control register.

   The thread pool (placement.c, pool.c, shared_threads.c), timers (timing.c), the driver (steps.c), the memory of large
   results (result_memory.c) and calls from Python (call.c) follow this file in one translation unit. One copy serves the
   whole process; the dynamic linker binds kernels and drivers to its functions. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define MAX_THREADS 256
#define POLL_MILLISECONDS 50

typedef void (*task_t)(void *context, int64_t first, int64_t last);

/* Routines of LAPACK, in the order of `lapack_routines.ROUTINES`; null until a program that needs them is loaded. */
EXPORT void *hlogym_lapack[42];

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
  int shares;           /* whether the threads of OpenMP may run its loops, see shared_threads.c */
  int has_guests;       /* whether they do */
};

static struct {
  int (*gil_ensure)(void);
  void (*gil_release)(int);
  int (*check_signals)(void);
  void (*fetch)(void **, void **, void **);
} python;

static _Thread_local struct hlogym_call *current;
static _Thread_local int is_worker, in_task;
static void dismiss_guests(void); /* of shared_threads.c */

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

/* Set whether subnormal numbers count as zero in this thread, and return the floating-point control register as it was.
   A new thread starts with the register of the thread that made it, and a caller such as XLA flushes them in its own. */
static uint32_t set_flushing(int flush) {
#if defined(__x86_64__) || defined(__i386__)
  const uint32_t bits = 0x8040; /* flush to zero, denormals are zeros */
  const uint32_t before = __builtin_ia32_stmxcsr();
  const uint32_t wanted = flush ? before | bits : before & ~bits;
  if (wanted != before) __builtin_ia32_ldmxcsr(wanted);
  return before;
#elif defined(__aarch64__)
  const uint64_t bit = 1u << 24;
  uint64_t before;
  __asm__ volatile("mrs %0, fpcr" : "=r"(before));
  const uint64_t wanted = flush ? before | bit : before & ~bit;
  if (wanted != before) __asm__ volatile("msr fpcr, %0" : : "r"(wanted));
  return (uint32_t)before;
#else
  (void)flush;
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
  call->has_guests = 0;
  call->outer = current; /* a host op may call another program */
  current = call;
  call->control = set_flushing(call->flush_denormals);
}

EXPORT void hlogym_end(struct hlogym_call *call) {
  if (call->has_guests) dismiss_guests();
  restore_control(call->control);
  current = call->outer;
}

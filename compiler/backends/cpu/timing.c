/* Limits of the BLAS's threads, and timing in C. This file follows shared_threads.c in one translation unit. */

/* ---- BLAS threads: limited to one while any call runs, because our own thread pool splits the matrix products */

static pthread_mutex_t blas_lock = PTHREAD_MUTEX_INITIALIZER;
static int blas_users = 0, blas_threads = 1;

static void free_blas_in_child(void) {
  const pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
  blas_lock = unlocked;
  blas_users = 0;
}

__attribute__((constructor)) static void watch_forks_of_blas(void) { pthread_atfork(0, 0, free_blas_in_child); }

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

/* Timing helpers of the runtime: the clock is read in C, so that Python's own time is not measured. */
#include <time.h>

typedef void (*hlogym_kernel)(void *const *);
typedef void (*hlogym_program)(char *, char *const *, char *const *, char *const *, void *);

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void hlogym_time_kernel(hlogym_kernel kernel, void *const *arguments, int repeats, int inner, double *seconds) {
  for (int i = 0; i < repeats; i++) {
    double start = now();
    for (int j = 0; j < inner; j++) kernel(arguments);
    seconds[i] = (now() - start) / inner;
  }
}

void hlogym_time_program(hlogym_program program, char *arena, char *const *parameters, char *const *results,
                         char *const *constants, void *context, int repeats, double *seconds) {
  for (int i = 0; i < repeats; i++) {
    double start = now();
    program(arena, parameters, results, constants, context);
    seconds[i] = now() - start;
  }
}

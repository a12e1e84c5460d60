/* The driver: it runs the steps of a program, a table that driver.py makes, so that no C code has to be compiled for them.
   This file follows runtime.c in one translation unit. */

typedef void (*step_kernel_t)(void *const *);
typedef void (*gemm_t)(char *, char *, int *, int *, int *, void *, void *, int *, void *, int *, void *, void *, int *);
typedef void (*gemv_t)(char *, int *, int *, void *, void *, int *, void *, int *, void *, void *, int *);

/* The kinds of steps, in the order of `driver.StepKind`. */
enum { KERNEL, COPY, GEMM, HOST, LEAVE_UNLESS, JUMP, SWITCH, LIBRARY, LOOP, END };

struct operand { /* the address of a buffer: element `at` of a table, or an offset in the arena if `table` is 0 */
  int64_t table, at;
};

struct step {
  int32_t kind;
  int32_t number;  /* KERNEL, HOST, LIBRARY, LOOP: position in the table; GEMM: bytes of an element; SWITCH: number of branches */
  int32_t operand; /* position of the first operand */
  int32_t count;   /* number of operands */
  int32_t jump;    /* LEAVE_UNLESS, JUMP, LOOP: the next step; SWITCH: position of the first branch in `jumps` */
  int32_t flag;    /* SWITCH: whether the selector is a predicate */
  int64_t size;    /* COPY: bytes; LIBRARY: bytes of the scratch memory, which is the last operand if there is any */
  int32_t batch, m, n, k, lhs_transposed, rhs_transposed; /* GEMM */
};

struct steps {
  const struct step *steps;
  const struct operand *operands;
  const int32_t *jumps;
  int32_t operand_count;
  int32_t calls_blas; /* whether a step calls BLAS or LAPACK */
};

struct context {
  struct hlogym_call call;
  const struct steps *program;
  void **addresses; /* room for the addresses of all operands */
  const step_kernel_t *kernels;
  void (*host)(struct hlogym_call *, int, void *const *); /* evaluates an op in Python, or prepares that: `BEGIN_HOST` */
  gemm_t sgemm, dgemm;
  gemv_t sgemv, dgemv;
  int (*get_blas_threads)(void); /* null if the number of threads of the BLAS cannot be set */
  void (*set_blas_threads)(int);
  void (*run_library)(void *, void *const *, void *, long); /* of compiler/backends/cpu/onednn/onednn.c */
  void *const *library;
  int64_t *times; /* null, or two numbers per step that a timed run adds to: nanoseconds and executions */
};

/* ---- matrix products by BLAS */

/* out = matrix * vector: `length` results, each a sum of `k` products. The matrix is stored in row-major order as
   [length, k], or as [k, length] if `across`, with a row stride of `stride` elements. */
static void gemv(gemv_t blas, int length, int k, int across, int stride, void *one, char *matrix, char *vector,
                 void *zero, char *out) {
  char transposed = across ? 'N' : 'T';
  int rows = across ? length : k, columns = across ? k : length, step = 1;
  blas(&transposed, &rows, &columns, one, matrix, &stride, vector, &step, zero, out, &step);
}

/* out[b] = op(lhs[b]) op(rhs[b]), row-major; `width` bytes per element. */
struct product {
  gemm_t blas;
  gemv_t vector_blas;
  int width, m, n, k, lhs_transposed, rhs_transposed;
  char *lhs, *rhs, *out;
  int parts; /* number of parts into which the rows or columns of each product are divided */
};

/* Compute items `first` to `last`; an item is part `item % parts` of product `item / parts`. Fortran matrices are
   column-major, so BLAS computes the transposed product: out' = rhs' lhs'. */
static void multiply(void *context, int64_t first, int64_t last) {
  const struct product *const p = context;
  const int width = p->width, m = p->m, n = p->n, k = p->k, by_rows = m >= n, extent = by_rows ? m : n;
  const int64_t lhs_size = (int64_t)m * k * width, rhs_size = (int64_t)k * n * width, out_size = (int64_t)m * n * width;
  float one_f = 1, zero_f = 0;
  double one_d = 1, zero_d = 0;
  void *one = width == 4 ? (void *)&one_f : (void *)&one_d, *zero = width == 4 ? (void *)&zero_f : (void *)&zero_d;
  for (int64_t item = first; item < last; item++) {
    const int64_t b = item / p->parts, part = item % p->parts;
    const int64_t from = extent * part / p->parts, to = extent * (part + 1) / p->parts;
    int mm = by_rows ? (int)(to - from) : m, nn = by_rows ? n : (int)(to - from), kk = k;
    int lda = p->rhs_transposed ? k : n, ldb = p->lhs_transposed ? m : k, ldc = n;
    char ta = p->rhs_transposed ? 'T' : 'N', tb = p->lhs_transposed ? 'T' : 'N';
    char *l = p->lhs + b * lhs_size, *r = p->rhs + b * rhs_size, *o = p->out + b * out_size;
    if (by_rows) {
      l += (p->lhs_transposed ? from : from * k) * width;
      o += from * n * width;
    } else {
      r += (p->rhs_transposed ? from * k : from) * width;
      o += from * width;
    }
    if (n == 1)
      gemv(p->vector_blas, mm, k, p->lhs_transposed, ldb, one, l, r, zero, o);
    else if (m == 1)
      gemv(p->vector_blas, nn, k, !p->rhs_transposed, lda, one, r, l, zero, o);
    else
      p->blas(&ta, &tb, &nn, &mm, &kk, one, r, &lda, l, &ldb, zero, o, &ldc);
  }
}

/* BLAS and LAPACK run on one thread, and our thread pool splits the batch and the rows or columns of each product: two thread
   pools would compete for the cores. */
static void gemm(struct context *context, gemm_t blas, int width, int batch, int m, int n, int k, int lhs_t, int rhs_t,
                 char *lhs, char *rhs, char *out) {
  const int64_t size = (int64_t)m * n * k;
  const int threads = context->set_blas_threads && size * batch > 400000 ? hlogym_threads() : 1;
  const int extent = m >= n ? m : n;
  struct product p = {blas, width == 4 ? context->sgemv : context->dgemv, width, m, n, k, lhs_t, rhs_t, lhs, rhs, out, 1};
  if (batch < threads && size >= 200000) p.parts = threads < extent ? threads : extent;
  const int64_t items = (int64_t)batch * p.parts;
  if (threads == 1)
    multiply(&p, 0, items);
  else
    hlogym_parallel(multiply, &p, items, 1);
}

/* ---- copies

   The threads that computed an array copy it: each has its part in its own cache, from which another core would have to
   fetch it, and the next loop divides the copy like the array. Arrays in memory are copied faster by several threads, too. */

#define SHARED_COPY 32768 /* bytes from which on threads share a copy */
#define BRIEF_COPY 524288 /* bytes below which one thread takes not much longer than waking another */
#define LINE 64           /* bytes of a cache line, which two threads should not both write */
#define LINES_OF_TASK 64  /* least number of lines that a thread copies at a time */

struct copy {
  char *target;
  const char *source;
  int64_t size;
};

static void copy_lines(void *context, int64_t first, int64_t last) {
  const struct copy *const c = context;
  const int64_t end = last * LINE < c->size ? last * LINE : c->size;
  memcpy(c->target + first * LINE, c->source + first * LINE, (size_t)(end - first * LINE));
}

static void copy_bytes(char *target, const char *source, int64_t size) {
  if (size < SHARED_COPY || (target < source + size && source < target + size)) {
    memmove(target, source, (size_t)size);
    return;
  }
  struct copy c = {target, source, size};
  (size < BRIEF_COPY ? hlogym_parallel_brief : hlogym_parallel)(copy_lines, &c, (size + LINE - 1) / LINE, LINES_OF_TASK);
}

/* ---- steps */

static void run_gemm(struct context *context, const struct step *s, char *lhs, char *rhs, char *out) {
  const gemm_t blas = s->number == 4 ? context->sgemm : context->dgemm;
  gemm(context, blas, s->number, s->batch, s->m, s->n, s->k, s->lhs_transposed, s->rhs_transposed, lhs, rhs, out);
}

/* Return the branch that a selector takes: out of range is the last one, and a true predicate takes the first. */
static int branch_of(const struct step *s, const char *selector) {
  if (s->flag) return *selector ? 0 : 1;
  const int index = *(const int32_t *)selector;
  return index < 0 || index >= s->number ? s->number - 1 : index;
}

/* Run the steps; `addresses` holds those of all operands. `timed` is a constant of each of the two callers, so that a run
   without times is as fast as before. One reading of the clock ends a step and starts the next. */
static inline __attribute__((always_inline)) void steps_loop(const struct steps *program, void *const *addresses,
                                                             struct context *context, const int timed) {
  const struct step *const steps = program->steps;
  unsigned iterations = 0;
  int64_t last = timed ? now(CLOCK_MONOTONIC) : 0;
  for (const struct step *s = steps;; s++) {
    void *const *const a = addresses + s->operand;
    int64_t *const times = timed ? context->times + 2 * (s - steps) : 0;
    switch (s->kind) {
      case KERNEL:
        context->kernels[s->number](a);
        break;
      case COPY:
        copy_bytes(a[0], a[1], s->size);
        break;
      case GEMM:
        run_gemm(context, s, a[0], a[1], a[2]);
        break;
      case HOST:
        context->host(&context->call, s->number, a);
        if (hlogym_interrupted()) return;
        break;
      case LEAVE_UNLESS:
        /* Signals are not checked in every iteration, because a check costs as much as a small kernel. */
        if (++iterations % 16 == 0 && hlogym_interrupted()) return;
        if (!*(const char *)a[0]) s = steps + s->jump - 1;
        break;
      case JUMP:
        s = steps + s->jump - 1;
        break;
      case SWITCH:
        s = steps + program->jumps[s->jump + branch_of(s, a[0])] - 1;
        break;
      case LIBRARY:
        context->run_library(context->library[s->number], a, s->size ? a[s->count - 1] : 0, (long)s->size);
        break;
      case LOOP: /* one function for the steps that follow; a timed run makes them one by one */
        if (timed) break;
        context->kernels[s->number](a);
        if (hlogym_interrupted()) return;
        s = steps + s->jump - 1;
        break;
      default:
        return;
    }
    if (timed) {
      const int64_t end = now(CLOCK_MONOTONIC);
      times[0] += end - last;
      times[1]++;
      last = end;
    }
  }
}

static void run_steps(const struct steps *program, void *const *addresses, struct context *context) {
  steps_loop(program, addresses, context, 0);
}

static __attribute__((noinline)) void run_steps_timed(const struct steps *program, void *const *addresses,
                                                      struct context *context) {
  steps_loop(program, addresses, context, 1);
}

/* Return the least time between two readings of the clock, which a timed run adds to each step. */
EXPORT int64_t hlogym_clock_nanoseconds(void) {
  int64_t least = INT64_MAX;
  for (int i = 0; i < 1000; i++) {
    const int64_t start = now(CLOCK_MONOTONIC), taken = now(CLOCK_MONOTONIC) - start;
    if (taken < least) least = taken;
  }
  return least;
}

/* Run a program on its memory; `context` starts with its `struct hlogym_call`. */
EXPORT void hlogym_run_program(char *arena, char *const *parameters, char *const *results, char *const *constants,
                               struct hlogym_call *call) {
  struct context *const context = (struct context *)call;
  const struct steps *const program = context->program;
  char *const *const tables[] = {0, parameters, results, constants};
  for (int32_t i = 0; i < program->operand_count; i++) {
    const struct operand *const o = &program->operands[i];
    context->addresses[i] = o->table == 0 ? arena + o->at : tables[o->table][o->at];
  }
  const int limit_blas = program->calls_blas && context->set_blas_threads;
  hlogym_begin(call);
  if (limit_blas) hlogym_blas_enter(context->get_blas_threads, context->set_blas_threads);
  if (context->times)
    run_steps_timed(program, context->addresses, context);
  else
    run_steps(program, context->addresses, context);
  if (limit_blas) hlogym_blas_leave(context->set_blas_threads);
  hlogym_end(call);
}

/* Run a program on the threads that are shared with other code, if there are any: shared_threads.c. */
EXPORT void hlogym_run_shared(char *arena, char *const *parameters, char *const *results, char *const *constants,
                              struct hlogym_call *call) {
  call->shares = 1;
  hlogym_run_program(arena, parameters, results, constants, call);
  call->shares = 0;
}

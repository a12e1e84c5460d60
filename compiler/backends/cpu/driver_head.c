/* The prologue of every driver: the tables of the program and matrix products by BLAS. */
typedef void (*kernel_t)(void *const *);
typedef void (*host_t)(int);
typedef void (*step_t)(void *, char *const *, char *, long);
typedef void (*gemm_t)(char *, char *, int *, int *, int *, void *, void *, int *, void *, int *, void *, void *, int *);
typedef void (*gemv_t)(char *, int *, int *, void *, void *, int *, void *, int *, void *, void *, int *);

struct call { /* struct hlogym_call of the runtime (compiler/backends/cpu/runtime.c) */
  void *exception[3];
  volatile int stopped;
  long long polled;
  struct call *outer;
};

struct context {
  struct call call;
  const kernel_t *kernels;
  host_t host;
  gemm_t sgemm, dgemm;
  gemv_t sgemv, dgemv;
  int (*get_blas_threads)(void); /* null if the number of threads of the BLAS cannot be set */
  void (*set_blas_threads)(int);
  step_t run_step; /* of compiler/backends/cpu/onednn/onednn.c */
  void *const *steps;
};

/* Defined by the runtime. */
void hlogym_begin(struct call *call);
void hlogym_end(struct call *call);
void hlogym_parallel(void (*task)(void *context, long long first, long long last), void *context, long long count,
                     long long grain);
int hlogym_interrupted(void);
int hlogym_threads(void);
void hlogym_blas_enter(int (*get_threads)(void), void (*set_threads)(int));
void hlogym_blas_leave(void (*set_threads)(int));

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
static void multiply(void *context, long long first, long long last) {
  const struct product *const p = context;
  const int width = p->width, m = p->m, n = p->n, k = p->k, by_rows = m >= n, extent = by_rows ? m : n;
  const long lhs_size = (long)m * k * width, rhs_size = (long)k * n * width, out_size = (long)m * n * width;
  float one_f = 1, zero_f = 0;
  double one_d = 1, zero_d = 0;
  void *one = width == 4 ? (void *)&one_f : (void *)&one_d, *zero = width == 4 ? (void *)&zero_f : (void *)&zero_d;
  for (long long item = first; item < last; item++) {
    const long b = item / p->parts, part = item % p->parts;
    const long from = extent * part / p->parts, to = extent * (part + 1) / p->parts;
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

/* The BLAS runs on one thread, and our thread pool splits the batch and the rows or columns of each product: two thread
   pools would compete for the cores. */
static void gemm(struct context *context, gemm_t blas, int width, int batch, int m, int n, int k, int lhs_t, int rhs_t,
                 char *lhs, char *rhs, char *out) {
  const long size = (long)m * n * k;
  const int threads = context->set_blas_threads && size * batch > 400000 ? hlogym_threads() : 1;
  const int extent = m >= n ? m : n;
  struct product p = {blas, width == 4 ? context->sgemv : context->dgemv, width, m, n, k, lhs_t, rhs_t, lhs, rhs, out, 1};
  if (batch < threads && size >= 200000) p.parts = threads < extent ? threads : extent;
  const long long items = (long long)batch * p.parts;
  if (threads == 1)
    multiply(&p, 0, items);
  else
    hlogym_parallel(multiply, &p, items, 1);
}

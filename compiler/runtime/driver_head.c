/* What stands before every program: its tables, and matrix products through the BLAS. */
typedef void (*kernel_t)(void *const *);
typedef void (*host_t)(int);
typedef void (*threads_t)(int);
typedef void (*gemm_t)(char *, char *, int *, int *, int *, void *, void *, int *, void *, int *, void *, void *, int *);
typedef void (*gemv_t)(char *, int *, int *, void *, void *, int *, void *, int *, void *, void *, int *);

struct context {
  const kernel_t *kernels;
  host_t host;
  gemm_t sgemm, dgemm;
  gemv_t sgemv, dgemv;
  threads_t set_blas_threads; /* null: the BLAS has threads of its own that cannot be turned off */
  int blas_threads;           /* what to set back afterwards */
  int failed;
};

int omp_get_max_threads(void);

/* out = matrix vector: `length` results, each the sum of `k` products. The matrix is row-major [length, k], or [k, length]
   if `across`, and its rows are `stride` apart. */
static void gemv(gemv_t blas, int length, int k, int across, int stride, void *one, char *matrix, char *vector,
                 void *zero, char *out) {
  char transposed = across ? 'N' : 'T';
  int rows = across ? length : k, columns = across ? k : length, step = 1;
  blas(&transposed, &rows, &columns, one, matrix, &stride, vector, &step, zero, out, &step);
}

/* out[b] = op(lhs[b]) op(rhs[b]), row-major; `width` bytes an element. Fortran sees the transposes: out' = rhs' lhs'.
   The BLAS runs on one thread; our own threads share the batches, and rows or columns of each. Two pools of threads
   would spin against each other. */
static void gemm(struct context *context, gemm_t blas, int width, int batch, int m, int n, int k, int lhs_t, int rhs_t,
                 char *lhs, char *rhs, char *out) {
  float one_f = 1, zero_f = 0;
  double one_d = 1, zero_d = 0;
  void *one = width == 4 ? (void *)&one_f : (void *)&one_d, *zero = width == 4 ? (void *)&zero_f : (void *)&zero_d;
  const gemv_t vector_blas = width == 4 ? context->sgemv : context->dgemv;
  const long size = (long)m * n * k;
  int lda = rhs_t ? k : n, ldb = lhs_t ? m : k, ldc = n;
  int threads = context->set_blas_threads && size * batch > 400000 ? omp_get_max_threads() : 1;
  int parts = batch >= threads || size < 200000 ? 1 : threads;
  const int by_rows = m >= n, extent = by_rows ? m : n;
  if (parts > extent) parts = extent;
#pragma omp parallel for schedule(static) if (threads > 1)
  for (int item = 0; item < batch * parts; item++) {
    const long b = item / parts, part = item % parts;
    const long first = extent * part / parts, last = extent * (part + 1) / parts;
    int mm = by_rows ? (int)(last - first) : m, nn = by_rows ? n : (int)(last - first), kk = k;
    char ta = rhs_t ? 'T' : 'N', tb = lhs_t ? 'T' : 'N';
    char *l = lhs + b * m * k * width, *r = rhs + b * k * n * width, *o = out + b * m * n * width;
    if (by_rows) {
      l += (lhs_t ? first : first * k) * width;
      o += first * n * width;
    } else {
      r += (rhs_t ? first * k : first) * width;
      o += first * width;
    }
    if (n == 1) {
      gemv(vector_blas, mm, k, lhs_t, ldb, one, l, r, zero, o);
      continue;
    }
    if (m == 1) {
      gemv(vector_blas, nn, k, !rhs_t, lda, one, r, l, zero, o);
      continue;
    }
    int la = lda, lb = ldb, lc = ldc;
    blas(&ta, &tb, &nn, &mm, &kk, one, r, &la, l, &lb, zero, o, &lc);
  }
}

/* Maxima of windows with NaN or minus infinity, which the library's maximum loses: they are computed again. */

/* A maximum pooling of plain arrays. */
struct pool {
  struct tensor source, result;
  int64_t kernel[MAX_SPACE], stride[MAX_SPACE], low[MAX_SPACE];
};

struct scan {
  const float *values;
  _Atomic int found;
};

#define SCAN_BLOCK 4096

static void scan_blocks(void *context, int64_t first, int64_t last) {
  struct scan *const s = context;
  for (int64_t block = first; block < last; block++) {
    const float *const v = s->values + block * SCAN_BLOCK;
    int found = 0;
    for (int i = 0; i < SCAN_BLOCK; i++) found |= !(v[i] >= -3.402823466e38f);
    if (found) atomic_store(&s->found, 1);
  }
}

static int has_lost_values(const float *values, int64_t count) {
  struct scan s = {values, 0};
  const int64_t blocks = count / SCAN_BLOCK;
  hlogym_parallel(scan_blocks, &s, blocks, 16);
  for (int64_t i = blocks * SCAN_BLOCK; i < count; i++)
    if (!(values[i] >= -3.402823466e38f)) return 1;
  return atomic_load(&s.found);
}

/* Return the maximum over the window at `at` (batch, features, space), in which NaN prevails. */
static float maximum_at(const struct pool *p, const float *source, const int64_t *at) {
  const int rank = p->source.rank;
  float best = -__builtin_inff();
  int64_t k[MAX_SPACE] = {0};
  for (;;) {
    int64_t offset = at[0] * p->source.strides[0] + at[1] * p->source.strides[1];
    int inside = 1;
    for (int d = 2; d < rank; d++) {
      const int64_t x = at[d] * p->stride[d - 2] - p->low[d - 2] + k[d - 2];
      inside &= x >= 0 && x < p->source.dims[d];
      offset += x * p->source.strides[d];
    }
    if (inside && source[offset] != source[offset]) return source[offset];
    if (inside && source[offset] > best) best = source[offset];
    int d = rank - 3;
    while (d >= 0 && ++k[d] == p->kernel[d]) k[d--] = 0;
    if (d < 0) return best;
  }
}

static void repair_rows(void *context, int64_t first, int64_t last) {
  const struct pool *const p = ((void **)context)[0];
  const float *const source = ((void **)context)[1];
  float *const result = ((void **)context)[2];
  for (int64_t n = first; n < last; n++) {
    int64_t at[MAX_RANK], rest = n, offset = 0;
    for (int d = p->result.rank - 1; d >= 0; d--) {
      at[d] = rest % p->result.dims[d];
      rest /= p->result.dims[d];
      offset += at[d] * p->result.strides[d];
    }
    result[offset] = maximum_at(p, source, at);
  }
}

static void repair_maxima(const struct pool *p, char *source, char *result) {
  int64_t inputs = 1, outputs = 1;
  for (int d = 0; d < p->source.rank; d++) {
    inputs *= p->source.dims[d];
    outputs *= p->result.dims[d];
  }
  void *context[] = {(void *)p, source, result};
  if (has_lost_values((const float *)source, inputs)) hlogym_parallel(repair_rows, context, outputs, 256);
}

/* Library steps of cpu programs: primitives of oneDNN, created when a program is loaded and executed by its driver.

   The declarations below are the part of oneDNN's C API (version 3, dnnl.h) that is used here. The library is opened
   with dlopen, so this file compiles without it.

   A step is one primitive with the reorders around it: where the primitive works on another memory layout than the
   program (weights in blocks, for example), its inputs are reordered before it and its output after it, in scratch
   memory that the caller provides. Weights that are constants are reordered once, when the step is created. */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define MAX_RANK 6
#define MAX_SPACE 3
#define MAX_TENSORS 8
#define MAX_POSTS 6
#define MAX_FRAMES 16
#define PAGE 64

/* ---- the C API of oneDNN */

typedef int64_t dims_t[12];
typedef struct handle *handle_t; /* any object of oneDNN: descriptor, primitive, memory, engine, stream, attributes */
typedef struct {
  int argument;
  handle_t memory;
} argument_t;

enum { FORWARD_INFERENCE = 96 };
enum { CONVOLUTION_DIRECT = 1, DECONVOLUTION_DIRECT = 10, POOLING_MAX = 511, POOLING_AVERAGE = 767 };
enum { ARG_SRC = 1, ARG_DST = 17, ARG_WEIGHTS = 33, ARG_BIAS = 41, ARG_SCRATCHPAD = 80, ARG_DIFF_DST = 145,
       ARG_DIFF_WEIGHTS = 161, ARG_POST = 32768, ARG_SRC_1 = 2 };
enum { QUERY_SRC = 129, QUERY_WEIGHTS = 131, QUERY_DIFF_WEIGHTS = 132, QUERY_DST = 133, QUERY_DIFF_DST = 134,
       QUERY_SCRATCHPAD = 136, QUERY_NAME = 8 };
enum { TAG_ANY = 1, CPU = 1, STREAM_DEFAULT = 1, SCRATCHPAD_BY_USER = 1 };

#define FUNCTIONS(X)                                                                                                   \
  X(int, engine_create, (handle_t *, int, size_t))                                                                     \
  X(int, stream_create, (handle_t *, handle_t, unsigned))                                                              \
  X(int, stream_destroy, (handle_t))                                                                                   \
  X(int, memory_desc_create_with_strides, (handle_t *, int, const int64_t *, int, const int64_t *))                    \
  X(int, memory_desc_create_with_tag, (handle_t *, int, const int64_t *, int, int))                                    \
  X(int, memory_desc_clone, (handle_t *, handle_t))                                                                    \
  X(int, memory_desc_destroy, (handle_t))                                                                              \
  X(int, memory_desc_equal, (handle_t, handle_t))                                                                      \
  X(size_t, memory_desc_get_size, (handle_t))                                                                          \
  X(int, memory_create, (handle_t *, handle_t, handle_t, void *))                                                      \
  X(int, memory_set_data_handle, (handle_t, void *))                                                                   \
  X(int, memory_destroy, (handle_t))                                                                                   \
  X(int, primitive_attr_create, (handle_t *))                                                                          \
  X(int, primitive_attr_destroy, (handle_t))                                                                           \
  X(int, primitive_attr_set_scratchpad_mode, (handle_t, int))                                                          \
  X(int, primitive_attr_set_post_ops, (handle_t, handle_t))                                                            \
  X(int, post_ops_create, (handle_t *))                                                                                \
  X(int, post_ops_destroy, (handle_t))                                                                                 \
  X(int, post_ops_append_eltwise, (handle_t, int, float, float))                                                       \
  X(int, post_ops_append_binary, (handle_t, int, handle_t))                                                            \
  X(int, convolution_forward_primitive_desc_create,                                                                    \
    (handle_t *, handle_t, int, int, handle_t, handle_t, handle_t, handle_t, const int64_t *, const int64_t *,         \
     const int64_t *, const int64_t *, handle_t))                                                                      \
  X(int, deconvolution_forward_primitive_desc_create,                                                                  \
    (handle_t *, handle_t, int, int, handle_t, handle_t, handle_t, handle_t, const int64_t *, const int64_t *,         \
     const int64_t *, const int64_t *, handle_t))                                                                      \
  X(int, convolution_backward_weights_primitive_desc_create,                                                           \
    (handle_t *, handle_t, int, handle_t, handle_t, handle_t, handle_t, const int64_t *, const int64_t *,              \
     const int64_t *, const int64_t *, handle_t, handle_t))                                                            \
  X(int, matmul_primitive_desc_create, (handle_t *, handle_t, handle_t, handle_t, handle_t, handle_t, handle_t))       \
  X(int, pooling_forward_primitive_desc_create,                                                                        \
    (handle_t *, handle_t, int, int, handle_t, handle_t, const int64_t *, const int64_t *, const int64_t *,            \
     const int64_t *, const int64_t *, handle_t))                                                                      \
  X(int, reorder_primitive_desc_create, (handle_t *, handle_t, handle_t, handle_t, handle_t, handle_t))                \
  X(handle_t, primitive_desc_query_md, (handle_t, int, int))                                                           \
  X(int, primitive_desc_query, (handle_t, int, int, void *))                                                           \
  X(int, primitive_desc_destroy, (handle_t))                                                                           \
  X(int, primitive_create, (handle_t *, handle_t))                                                                     \
  X(int, primitive_destroy, (handle_t))                                                                                \
  X(int, primitive_execute, (handle_t, handle_t, int, const argument_t *))

#define DECLARE(type, name, parameters) static type(*name) parameters;
FUNCTIONS(DECLARE)
static handle_t engine;

/* Defined in openmp.c. */
const char *hlogym_share_threads(void *library);
void hlogym_use_one_thread(int set);

/* Defined by the runtime. */
void hlogym_parallel(void (*task)(void *, int64_t, int64_t), void *context, int64_t count, int64_t grain);

/* Open the library; return 0, or a message that says what failed. */
EXPORT const char *hlogym_onednn_open(const char *path) {
  if (engine) return 0;
  void *const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) return dlerror();
#define FIND(type, name, parameters)                                                                                   \
  name = (type(*) parameters)dlsym(library, "dnnl_" #name);                                                            \
  if (!name) return "it has no function dnnl_" #name;
  FUNCTIONS(FIND)
  const char *const problem = hlogym_share_threads(library);
  if (problem) return problem;
  handle_t made;
  if (engine_create(&made, CPU, 0)) return "dnnl_engine_create failed";
  engine = made;
  return 0;
}

/* ---- descriptions, which Python fills in (compiler/backends/cpu/onednn/library.py) */

struct tensor {
  int32_t type, rank;
  int32_t free; /* whether the primitive may choose another memory layout, at the price of a reorder */
  int32_t unused;
  int64_t dims[MAX_RANK], strides[MAX_RANK];
};

struct post {
  int32_t algorithm; /* of oneDNN */
  int32_t operand;   /* number of the tensor that a binary operation reads, or -1 for an elementwise one */
  float alpha, beta;
};

enum operation { CONVOLUTION, DECONVOLUTION, WEIGHTS_GRADIENT, PRODUCT, MAX_POOL, SUM_POOL };

/* The last tensor is the output. The inputs are source, weights and bias if there is one, then those of `posts`. */
struct description {
  int32_t operation, tensors, has_bias, posts;
  struct tensor tensor[MAX_TENSORS];
  struct post post[MAX_POSTS];
  int32_t one_thread; /* whether the work is too small to be divided */
  int32_t unused;
  int64_t kernel[MAX_SPACE], stride[MAX_SPACE], dilation[MAX_SPACE], low[MAX_SPACE], high[MAX_SPACE];
};

/* ---- steps */

/* One argument of the primitive: buffer `buffer` of the program, with the reorder between the two layouts, if any. */
struct edge {
  int argument, buffer, is_output;
  handle_t outside, inside; /* memory descriptors */
  handle_t reorder;         /* null if the layouts are equal */
  size_t offset;            /* of the reordered data in the scratch memory */
  void *constant;           /* reordered data of a constant, or null */
};

/* A maximum pooling of plain arrays; see repair_maxima. */
struct pool {
  struct tensor source, result;
  int64_t kernel[MAX_SPACE], stride[MAX_SPACE], low[MAX_SPACE];
};

/* The memory objects of one call; concurrent calls use different frames. */
struct frame {
  atomic_flag busy;
  handle_t stream, outside[MAX_TENSORS], inside[MAX_TENSORS], scratchpad;
};

struct step {
  handle_t primitive, scratchpad; /* a memory descriptor */
  struct pool *maxima; /* of a maximum pooling, else null */
  int edges;
  size_t scratch_bytes, scratchpad_bytes;
  int one_thread;
  struct edge edge[MAX_TENSORS];
  struct frame frame[MAX_FRAMES];
  char name[64];
};

static size_t rounded(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

static int new_frame(const struct step *s, struct frame *f) {
  int failed = stream_create(&f->stream, engine, STREAM_DEFAULT);
  for (int k = 0; k < s->edges && !failed; k++) {
    failed = memory_create(&f->outside[k], s->edge[k].outside, engine, 0);
    if (!failed && s->edge[k].reorder) failed = memory_create(&f->inside[k], s->edge[k].inside, engine, 0);
  }
  return failed || (s->scratchpad && memory_create(&f->scratchpad, s->scratchpad, engine, 0));
}

static void free_frame(const struct step *s, struct frame *f) {
  for (int k = 0; k < s->edges; k++) {
    if (f->outside[k]) memory_destroy(f->outside[k]);
    if (f->inside[k]) memory_destroy(f->inside[k]);
  }
  if (f->scratchpad) memory_destroy(f->scratchpad);
  if (f->stream) stream_destroy(f->stream);
  memset(f, 0, sizeof *f);
}

EXPORT void hlogym_onednn_destroy(struct step *s) {
  for (int k = 0; k < MAX_FRAMES; k++) free_frame(s, &s->frame[k]);
  free(s->maxima);
  for (int k = 0; k < s->edges; k++) {
    struct edge *const e = &s->edge[k];
    if (e->reorder) primitive_destroy(e->reorder);
    if (e->outside) memory_desc_destroy(e->outside);
    if (e->inside) memory_desc_destroy(e->inside);
    free(e->constant);
  }
  if (s->scratchpad) memory_desc_destroy(s->scratchpad);
  if (s->primitive) primitive_destroy(s->primitive);
  free(s);
}

static int make_reorder(handle_t *reorder, handle_t from, handle_t to) {
  handle_t description;
  int failed = reorder_primitive_desc_create(&description, from, engine, to, engine, 0);
  if (failed) return failed;
  failed = primitive_create(reorder, description);
  primitive_desc_destroy(description);
  return failed;
}

/* Add the edge of one argument, whose layout inside the primitive is `inside`. */
static int add_edge(struct step *s, int argument, int buffer, int is_output, handle_t outside, handle_t inside) {
  struct edge *const e = &s->edge[s->edges++];
  e->argument = argument;
  e->buffer = buffer;
  e->is_output = is_output;
  if (memory_desc_clone(&e->outside, outside) || memory_desc_clone(&e->inside, inside)) return 1;
  if (memory_desc_equal(outside, inside)) return 0;
  e->offset = s->scratch_bytes;
  s->scratch_bytes += rounded(memory_desc_get_size(inside));
  return is_output ? make_reorder(&e->reorder, inside, outside) : make_reorder(&e->reorder, outside, inside);
}

/* Reorder the data of a constant into memory of the step's own. */
static int keep_constant(struct edge *e, void *data) {
  handle_t from = 0, to = 0, stream = 0;
  e->constant = aligned_alloc(PAGE, rounded(memory_desc_get_size(e->inside)));
  int failed = !e->constant || stream_create(&stream, engine, STREAM_DEFAULT) ||
               memory_create(&from, e->outside, engine, data) || memory_create(&to, e->inside, engine, e->constant);
  if (!failed) {
    const argument_t arguments[] = {{ARG_SRC, from}, {ARG_DST, to}};
    failed = primitive_execute(e->reorder, stream, 2, arguments);
  }
  if (from) memory_destroy(from);
  if (to) memory_destroy(to);
  if (stream) stream_destroy(stream);
  return failed;
}

static int make_post_ops(handle_t attributes, const struct description *d, const handle_t *plain) {
  handle_t list;
  if (d->posts == 0) return 0;
  int failed = post_ops_create(&list);
  for (int k = 0; k < d->posts && !failed; k++) {
    const struct post *const p = &d->post[k];
    failed = p->operand < 0 ? post_ops_append_eltwise(list, p->algorithm, p->alpha, p->beta)
                            : post_ops_append_binary(list, p->algorithm, plain[p->operand]);
  }
  if (!failed) failed = primitive_attr_set_post_ops(attributes, list);
  post_ops_destroy(list);
  return failed;
}

/* Create the descriptor of the primitive; `t` are the descriptors of the tensors, which may leave the layout open. */
static int describe(handle_t *out, const struct description *d, const handle_t *t, handle_t attributes) {
  const handle_t bias = d->has_bias ? t[2] : 0, result = t[d->tensors - 1];
  switch (d->operation) {
    case CONVOLUTION:
      return convolution_forward_primitive_desc_create(out, engine, FORWARD_INFERENCE, CONVOLUTION_DIRECT, t[0], t[1],
                                                       bias, result, d->stride, d->dilation, d->low, d->high,
                                                       attributes);
    case DECONVOLUTION:
      return deconvolution_forward_primitive_desc_create(out, engine, FORWARD_INFERENCE, DECONVOLUTION_DIRECT, t[0],
                                                         t[1], bias, result, d->stride, d->dilation, d->low, d->high,
                                                         attributes);
    case WEIGHTS_GRADIENT: {
      handle_t hint = 0;
      int failed = convolution_forward_primitive_desc_create(&hint, engine, FORWARD_INFERENCE - 32, CONVOLUTION_DIRECT,
                                                             t[0], result, 0, t[1], d->stride, d->dilation, d->low,
                                                             d->high, 0);
      if (failed) return failed;
      failed = convolution_backward_weights_primitive_desc_create(out, engine, CONVOLUTION_DIRECT, t[0], result, 0,
                                                                  t[1], d->stride, d->dilation, d->low, d->high, hint,
                                                                  attributes);
      primitive_desc_destroy(hint);
      return failed;
    }
    case PRODUCT:
      return matmul_primitive_desc_create(out, engine, t[0], t[1], bias, result, attributes);
    case MAX_POOL:
    case SUM_POOL:
      return pooling_forward_primitive_desc_create(out, engine, FORWARD_INFERENCE,
                                                   d->operation == MAX_POOL ? POOLING_MAX : POOLING_AVERAGE, t[0],
                                                   result, d->stride, d->kernel, d->dilation, d->low, d->high,
                                                   attributes);
  }
  return 1;
}

/* Add the edges of all arguments, with the layouts that the primitive has chosen. */
static int add_edges(struct step *s, const struct description *d, handle_t made, const handle_t *plain) {
  const int last = d->tensors - 1, gradient = d->operation == WEIGHTS_GRADIENT;
  const int pools = d->operation == MAX_POOL || d->operation == SUM_POOL;
  int failed = add_edge(s, ARG_SRC, 0, 0, plain[0], primitive_desc_query_md(made, QUERY_SRC, 0));
  if (gradient)
    failed = failed || add_edge(s, ARG_DIFF_DST, 1, 0, plain[1], primitive_desc_query_md(made, QUERY_DIFF_DST, 0)) ||
             add_edge(s, ARG_DIFF_WEIGHTS, last, 1, plain[last], primitive_desc_query_md(made, QUERY_DIFF_WEIGHTS, 0));
  else
    failed = failed || add_edge(s, ARG_DST, last, 1, plain[last], primitive_desc_query_md(made, QUERY_DST, 0));
  if (failed || gradient || pools) return failed;
  failed = add_edge(s, ARG_WEIGHTS, 1, 0, plain[1], primitive_desc_query_md(made, QUERY_WEIGHTS, 0));
  if (d->has_bias) failed = failed || add_edge(s, ARG_BIAS, 2, 0, plain[2], plain[2]);
  for (int k = 0; k < d->posts && !failed; k++)
    if (d->post[k].operand >= 0)
      failed = add_edge(s, (ARG_POST * (k + 1)) | ARG_SRC_1, d->post[k].operand, 0, plain[d->post[k].operand],
                        plain[d->post[k].operand]);
  return failed;
}

static int build(struct step *s, const struct description *d, void *const *constants) {
  handle_t plain[MAX_TENSORS] = {0}, asked[MAX_TENSORS] = {0}, attributes = 0, made = 0;
  int failed = 0;
  for (int k = 0; k < d->tensors && !failed; k++) {
    const struct tensor *const t = &d->tensor[k];
    failed = memory_desc_create_with_strides(&plain[k], t->rank, t->dims, t->type, t->strides) ||
             (t->free ? memory_desc_create_with_tag(&asked[k], t->rank, t->dims, t->type, TAG_ANY)
                      : memory_desc_clone(&asked[k], plain[k]));
  }
  failed = failed || primitive_attr_create(&attributes) ||
           primitive_attr_set_scratchpad_mode(attributes, SCRATCHPAD_BY_USER) || make_post_ops(attributes, d, plain) ||
           describe(&made, d, asked, attributes) || primitive_create(&s->primitive, made) ||
           add_edges(s, d, made, plain);
  const char *name = "";
  if (made && primitive_desc_query(made, QUERY_NAME, 0, &name) == 0) strncpy(s->name, name, sizeof s->name - 1);
  for (int k = 0; k < s->edges && !failed; k++)
    if (constants && s->edge[k].reorder && !s->edge[k].is_output && constants[s->edge[k].buffer])
      failed = keep_constant(&s->edge[k], constants[s->edge[k].buffer]);
  if (!failed) {
    const handle_t scratchpad = primitive_desc_query_md(made, QUERY_SCRATCHPAD, 0);
    const size_t bytes = scratchpad ? memory_desc_get_size(scratchpad) : 0;
    if (bytes) failed = memory_desc_clone(&s->scratchpad, scratchpad);
    s->scratchpad_bytes = rounded(bytes);
    s->scratch_bytes += s->scratchpad_bytes;
  }
  if (made) primitive_desc_destroy(made);
  if (attributes) primitive_attr_destroy(attributes);
  for (int k = 0; k < d->tensors; k++) {
    if (plain[k]) memory_desc_destroy(plain[k]);
    if (asked[k]) memory_desc_destroy(asked[k]);
  }
  return failed;
}

static int keep_pool(struct step *s, const struct description *d) {
  struct pool *const p = s->maxima = calloc(1, sizeof *p);
  if (!p) return 1;
  p->source = d->tensor[0];
  p->result = d->tensor[1];
  memcpy(p->kernel, d->kernel, sizeof p->kernel);
  memcpy(p->stride, d->stride, sizeof p->stride);
  memcpy(p->low, d->low, sizeof p->low);
  return 0;
}

/* Create a step; return null if the library has no implementation. `constants` holds for each tensor the address of its
   data if it is a constant, else null; it may be null itself. The caller frees the step with hlogym_onednn_destroy. */
EXPORT struct step *hlogym_onednn_create(const struct description *d, void *const *constants) {
  struct step *const s = calloc(1, sizeof *s);
  if (!s) return 0;
  s->one_thread = d->one_thread;
  hlogym_use_one_thread(s->one_thread);
  int failed = build(s, d, constants);
  hlogym_use_one_thread(0);
  if (d->operation == MAX_POOL && !failed) failed = keep_pool(s, d);
  if (!failed) return s;
  hlogym_onednn_destroy(s);
  return 0;
}

EXPORT int64_t hlogym_onednn_scratch(const struct step *s) { return (int64_t)s->scratch_bytes; }

/* Return the name of the implementation that the library has chosen, such as "brgconv:avx512_core". */
EXPORT const char *hlogym_onednn_name(const struct step *s) { return s->name; }

/* ---- maxima of windows with NaN or minus infinity, which the library's maximum loses */

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

/* ---- execution */

static void execute(const struct step *s, struct frame *f, char *const *buffers, char *scratch) {
  hlogym_use_one_thread(s->one_thread);
  argument_t arguments[MAX_TENSORS + 1];
  int count = 0;
  for (int k = 0; k < s->edges; k++) {
    const struct edge *const e = &s->edge[k];
    const handle_t used = e->reorder ? f->inside[k] : f->outside[k];
    if (e->reorder) memory_set_data_handle(f->inside[k], e->constant ? e->constant : scratch + e->offset);
    memory_set_data_handle(f->outside[k], buffers[e->buffer]);
    if (e->reorder && !e->is_output && !e->constant) {
      const argument_t pair[] = {{ARG_SRC, f->outside[k]}, {ARG_DST, f->inside[k]}};
      primitive_execute(e->reorder, f->stream, 2, pair);
    }
    arguments[count++] = (argument_t){e->argument, used};
  }
  if (s->scratchpad) {
    memory_set_data_handle(f->scratchpad, scratch + s->scratch_bytes - s->scratchpad_bytes);
    arguments[count++] = (argument_t){ARG_SCRATCHPAD, f->scratchpad};
  }
  primitive_execute(s->primitive, f->stream, count, arguments);
  for (int k = 0; k < s->edges; k++) {
    if (!s->edge[k].reorder || !s->edge[k].is_output) continue;
    const argument_t pair[] = {{ARG_SRC, f->inside[k]}, {ARG_DST, f->outside[k]}};
    primitive_execute(s->edge[k].reorder, f->stream, 2, pair);
  }
  hlogym_use_one_thread(0);
  if (s->maxima) repair_maxima(s->maxima, buffers[0], buffers[1]);
}

/* Run a step; `buffers` are the tensors of its description. The scratch memory was sized when the program was compiled;
   another number of threads may need more. */
EXPORT void hlogym_onednn_run(struct step *s, char *const *buffers, char *scratch, long scratch_bytes) {
  void *const larger = (size_t)scratch_bytes < s->scratch_bytes ? aligned_alloc(PAGE, s->scratch_bytes) : 0;
  if (larger) scratch = larger;
  for (int k = 0; k < MAX_FRAMES; k++) {
    struct frame *const f = &s->frame[k];
    if (atomic_flag_test_and_set_explicit(&f->busy, memory_order_acquire)) continue;
    if (f->stream || new_frame(s, f) == 0) execute(s, f, buffers, scratch);
    atomic_flag_clear_explicit(&f->busy, memory_order_release);
    free(larger);
    return;
  }
  struct frame extra = {0};
  if (new_frame(s, &extra) == 0) execute(s, &extra, buffers, scratch);
  free_frame(s, &extra);
  free(larger);
}

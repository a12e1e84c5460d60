/* Declarations: the part of oneDNN's C API (version 3, dnnl.h) that is used here, and the descriptions of primitives.

   The library is opened with dlopen, so these files compile without it. They are compiled as one, in the order openmp.c,
   api.c, transpose.h of generated kernels, turns.c, maxima.c, onednn.c. */
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
enum { ELTWISE_ELU = 34, ELTWISE_HARDSWISH = 52 };
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
void hlogym_limit_threads(int count);
void hlogym_use_independent_members(int set);

/* Defined by the runtime. */
int hlogym_gang_size(void);
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
  int32_t algorithm; /* of oneDNN, or MAX_ZERO */
  int32_t operand;   /* number of the tensor that a binary operation reads, or -1 for an elementwise one */
  float alpha, beta;
};

enum { MAX_ZERO = 0x10000 }; /* an elementwise maximum with 0 that keeps NaN, see "maxima with 0" in onednn.c */
enum { FLOAT32 = 3 }; /* the type of a tensor in oneDNN's numbers */

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

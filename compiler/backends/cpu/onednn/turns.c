/* Reorders between features first and features last: transposes of matrices of floats, several times as fast as the
   library's reorders, which are fast for up to 16 features only. They need AVX-512; without it, the library reorders. */

/* from[batch][rows][columns] becomes to[batch][columns][rows]; no transpose if `batch` is 0. */
struct turn {
  int64_t batch, rows, columns;
};

#define TURN_EDGE 16
#define TURN_RUN 1024 /* elements of the longer dimension that one task transposes */

struct turn_call {
  const struct turn *turn;
  const float *from;
  float *to;
  int64_t blocks, runs; /* of the shorter and of the longer dimension */
};

/* Return the start of a block, which is earlier if the block would not be whole: its common part is written twice. */
static inline int64_t whole_block(int64_t start, int64_t extent) {
  return start + TURN_EDGE > extent ? extent - TURN_EDGE : start;
}

/* Transpose tasks `first` to `last`. A task has one block of the shorter dimension, so that it reads or writes few streams
   of memory, and a run of the longer one. */
__attribute__((target("avx512f"))) static void turn_tasks(void *context, int64_t first, int64_t last) {
  const struct turn_call *const c = context;
  const int64_t rows = c->turn->rows, columns = c->turn->columns, wide = columns >= rows;
  const int64_t extent = wide ? rows : columns, length = wide ? columns : rows;
  for (int64_t task = first; task < last; task++) {
    const int64_t batch = task / (c->blocks * c->runs), run = task / c->blocks % c->runs * TURN_RUN;
    const int64_t block = whole_block(task % c->blocks * TURN_EDGE, extent);
    const int64_t end = run + TURN_RUN < length ? run + TURN_RUN : length;
    const float *const from = c->from + batch * rows * columns;
    float *const to = c->to + batch * rows * columns;
    for (int64_t k = run; k < end; k += TURN_EDGE) {
      const int64_t along = whole_block(k, length), row = wide ? block : along, column = wide ? along : block;
      transpose_block_32((tile_item_32 *)(to + column * rows + row), rows,
                         (const tile_item_32 *)(from + row * columns + column), columns);
    }
  }
}

/* Transpose on all threads, or on the calling one. */
static void run_turn(const struct turn *t, const void *from, void *to, int alone) {
  const int64_t shorter = t->rows < t->columns ? t->rows : t->columns;
  const int64_t longer = t->rows < t->columns ? t->columns : t->rows;
  struct turn_call c = {t, from, to, (shorter + TURN_EDGE - 1) / TURN_EDGE, (longer + TURN_RUN - 1) / TURN_RUN};
  if (alone)
    turn_tasks(&c, 0, t->batch * c.blocks * c.runs);
  else
    hlogym_parallel(turn_tasks, &c, t->batch * c.blocks * c.runs, 1);
}

/* Return the transpose that brings a tensor with the features first into the layout `inside`, or back. It is none if the
   tensor has another layout, or if in `inside` the features are not last. */
static struct turn turn_of(const struct tensor *t, handle_t inside, int is_output) {
  const struct turn none = {0, 0, 0};
  const int64_t features = t->dims[1];
  int64_t space = 1, turned[MAX_RANK];
  handle_t wanted;
  if (t->type != FLOAT32 || t->rank < 3 || !__builtin_cpu_supports("avx512f")) return none;
  for (int k = t->rank - 1; k >= 2; k--) {
    if (t->strides[k] != space && t->dims[k] != 1) return none;
    turned[k] = space * features;
    space *= t->dims[k];
  }
  if (features <= TURN_EDGE || space < TURN_EDGE || t->strides[1] != space) return none;
  if (t->strides[0] != space * features && t->dims[0] != 1) return none;
  turned[0] = space * features;
  turned[1] = 1;
  if (memory_desc_create_with_strides(&wanted, t->rank, t->dims, t->type, turned)) return none;
  const int same = memory_desc_equal(inside, wanted);
  memory_desc_destroy(wanted);
  if (!same) return none;
  return is_output ? (struct turn){t->dims[0], space, features} : (struct turn){t->dims[0], features, space};
}

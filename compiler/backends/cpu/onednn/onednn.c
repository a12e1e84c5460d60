/* Library steps of cpu programs: primitives of oneDNN, created when a program is loaded and executed by its driver.

   A step is one primitive with the reorders around it: where the primitive works on another memory layout than the
   program (weights in blocks, for example), its inputs are reordered before it and its output after it, in scratch
   memory that the caller provides. Weights that are constants are reordered once, when the step is created. */

/* One argument of the primitive: buffer `buffer` of the program, with the reorder between the two layouts, if any. */
struct edge {
  int argument, buffer, is_output;
  handle_t outside, inside; /* memory descriptors */
  handle_t reorder;         /* null if the layouts are equal */
  struct turn turn;         /* the transpose that does the same as the reorder, if there is one */
  size_t offset;            /* of the reordered data in the scratch memory */
  void *constant;           /* reordered data of a constant, or null */
};

/* The memory objects of one call; concurrent calls use different frames. */
struct frame {
  atomic_flag busy;
  handle_t stream, outside[MAX_TENSORS], inside[MAX_TENSORS], scratchpad;
};

/* A step may be divided into parts, see "gradients of weights" below; then it has no primitive itself. */
struct step {
  struct step *part; /* null unless it is divided */
  int parts;
  int64_t part_bytes[2], outputs; /* from one part of the inputs to the next; number of elements of the output */
  handle_t primitive, scratchpad; /* a memory descriptor */
  struct pool *maxima; /* of a maximum pooling, else null */
  struct maximum *maximum; /* with 0, if there is one after the primitive, else null */
  int edges;
  size_t scratch_bytes, scratchpad_bytes;
  int threads, independent; /* threads at most, or 0; whether the library's threads do not wait for each other */
  struct edge edge[MAX_TENSORS];
  struct frame frame[MAX_FRAMES];
  char name[64];
};

/* The other primitive of a step with a maximum with 0, see "maxima with 0". */
struct maximum {
  struct step *_Atomic exact; /* made when it is needed first */
  atomic_int use_exact;
  struct description description;
  void *constants[MAX_TENSORS];
  int has_constants, threads;
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
  if (s->maximum && atomic_load(&s->maximum->exact)) hlogym_onednn_destroy(atomic_load(&s->maximum->exact));
  free(s->maximum);
  if (s->part) hlogym_onednn_destroy(s->part);
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

/* Check whether the threads of an implementation do not wait for each other. In oneDNN 3.2 there are barriers in
   gradients of weights, and in products that pack operands together (names with "gemm"). */
static int has_no_barrier(const struct step *s, const struct description *d) {
  if (d->operation == WEIGHTS_GRADIENT || strstr(s->name, "gemm")) return 0;
  return !strncmp(s->name, "jit", 3) || !strncmp(s->name, "brg", 3);
}

static int make_post_ops(handle_t attributes, const struct description *d, const handle_t *plain, int exact) {
  handle_t list;
  if (d->posts == 0) return 0;
  int failed = post_ops_create(&list);
  for (int k = 0; k < d->posts && !failed; k++) {
    const struct post *const p = &d->post[k];
    if (p->algorithm == MAX_ZERO)
      failed = exact ? post_ops_append_eltwise(list, ELTWISE_ELU, 0, 0)
                     : post_ops_append_eltwise(list, ELTWISE_HARDSWISH, 3.402823466e38f, 0);
    else
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

static int build(struct step *s, const struct description *d, void *const *constants, int exact) {
  handle_t plain[MAX_TENSORS] = {0}, asked[MAX_TENSORS] = {0}, attributes = 0, made = 0;
  int failed = 0;
  for (int k = 0; k < d->tensors && !failed; k++) {
    const struct tensor *const t = &d->tensor[k];
    failed = memory_desc_create_with_strides(&plain[k], t->rank, t->dims, t->type, t->strides) ||
             (t->free ? memory_desc_create_with_tag(&asked[k], t->rank, t->dims, t->type, TAG_ANY)
                      : memory_desc_clone(&asked[k], plain[k]));
  }
  failed = failed || primitive_attr_create(&attributes) ||
           primitive_attr_set_scratchpad_mode(attributes, SCRATCHPAD_BY_USER) || make_post_ops(attributes, d, plain, exact) ||
           describe(&made, d, asked, attributes) || primitive_create(&s->primitive, made) ||
           add_edges(s, d, made, plain);
  const char *name = "";
  if (made && primitive_desc_query(made, QUERY_NAME, 0, &name) == 0) strncpy(s->name, name, sizeof s->name - 1);
  s->independent = has_no_barrier(s, d);
  for (int k = 0; k < s->edges && !failed; k++) {
    struct edge *const e = &s->edge[k];
    if (e->reorder && e->argument != ARG_WEIGHTS && e->argument != ARG_DIFF_WEIGHTS)
      e->turn = turn_of(&d->tensor[e->buffer], e->inside, e->is_output);
  }
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

/* ---- maxima with 0

   The library's maximum, relu and clip lose NaN. Its hardswish, x min(max(a x, 0), 1), keeps NaN, and with the largest float
   as `a` it is the maximum of x and 0 for all x but minus infinity, for which it is NaN, and some subnormal numbers. In both
   cases the processor notes an exception: an invalid operation, or an operand that is subnormal. Then the step is run again,
   from then on always, with an exponential linear unit of factor 0, which keeps NaN and is exact for all x, but takes longer:
   all other results are equal in both. */

enum { INVALID = 1, SUBNORMAL = 2 };

static int has_maximum(const struct description *d) {
  for (int k = 0; k < d->posts; k++)
    if (d->post[k].algorithm == MAX_ZERO) return 1;
  return 0;
}

static int keep_maximum(struct step *s, const struct description *d, void *const *constants, int threads) {
  struct maximum *const m = s->maximum = calloc(1, sizeof *m);
  if (!m) return 1;
  m->description = *d;
  m->threads = threads;
  m->has_constants = constants != 0;
  for (int k = 0; constants && k < d->tensors; k++) m->constants[k] = constants[k];
  return 0;
}

static struct step *create(const struct description *d, void *const *constants, int threads, int exact);

/* Return the exact step of a maximum; null if it cannot be made. */
static struct step *exact_step(struct maximum *m) {
  struct step *found = atomic_load(&m->exact);
  if (found) return found;
  struct step *const made = create(&m->description, m->has_constants ? m->constants : 0, m->threads, 1);
  if (!made || atomic_compare_exchange_strong(&m->exact, &found, made)) return made;
  hlogym_onednn_destroy(made);
  return found;
}

/* ---- gradients of weights, which are sums over the batch

   oneDNN divides the batch among its threads, which wait for each other before the sum, and spin meanwhile. Here each
   part of the batch is a call with one thread, which any thread may run. */

EXPORT struct step *hlogym_onednn_create(const struct description *d, void *const *constants, int threads);

/* Divide a step into as many parts as it may have threads; return whether that is possible. */
static int divide(struct step *s, const struct description *d) {
  const int parts = max_threads();
  if (d->operation != WEIGHTS_GRADIENT || parts == 1 || d->tensor[0].dims[0] % parts) return 0;
  struct description one = *d;
  one.one_thread = 1;
  s->outputs = 1;
  for (int k = 0; k < d->tensor[2].rank; k++) s->outputs *= d->tensor[2].dims[k];
  for (int k = 0; k < 3; k++)
    if (d->tensor[k].type != FLOAT32) return 0;
  for (int k = 0; k < 2; k++) {
    one.tensor[k].dims[0] /= parts;
    s->part_bytes[k] = one.tensor[k].dims[0] * d->tensor[k].strides[0] * (int64_t)sizeof(float);
  }
  s->part = hlogym_onednn_create(&one, 0, 1);
  if (!s->part) return 0;
  s->parts = parts;
  s->scratch_bytes = parts * s->part->scratch_bytes + (parts - 1) * rounded(s->outputs * sizeof(float));
  memcpy(s->name, s->part->name, sizeof s->name);
  return 1;
}

/* Create a step; return null if the library has no implementation. `constants` holds for each tensor the address of its
   data if it is a constant, else null; it may be null itself. The step has at most `threads` threads, or if that is 0, as
   many as there are: the library divides the work when a primitive is created. The caller frees the step with
   hlogym_onednn_destroy. */
EXPORT struct step *hlogym_onednn_create(const struct description *d, void *const *constants, int threads) {
  return create(d, constants, threads, 0);
}

static struct step *create(const struct description *d, void *const *constants, int threads, int exact) {
  struct step *const s = calloc(1, sizeof *s);
  if (!s) return 0;
  s->threads = d->one_thread ? 1 : threads;
  hlogym_limit_threads(s->threads);
  const int divided = divide(s, d);
  hlogym_limit_threads(s->threads); /* creating a part has changed it */
  int failed = divided ? 0 : build(s, d, constants, exact);
  hlogym_limit_threads(0);
  if (divided) return s;
  if (d->operation == MAX_POOL && !failed) failed = keep_pool(s, d);
  if (!exact && !failed && has_maximum(d)) failed = keep_maximum(s, d, constants, threads);
  if (!failed) return s;
  hlogym_onednn_destroy(s);
  return 0;
}

EXPORT int64_t hlogym_onednn_scratch(const struct step *s) { return (int64_t)s->scratch_bytes; }

/* Return the name of the implementation that the library has chosen, such as "brgconv:avx512_core". */
EXPORT const char *hlogym_onednn_name(const struct step *s) { return s->name; }

/* ---- execution */

/* Run a step; return the exceptions of floating point arithmetic in its primitive. */
static unsigned execute(const struct step *s, struct frame *f, char *const *buffers, char *scratch) {
  hlogym_limit_threads(s->threads);
  hlogym_use_independent_members(1); /* reorders have no barriers */
  argument_t arguments[MAX_TENSORS + 1];
  int count = 0;
  for (int k = 0; k < s->edges; k++) {
    const struct edge *const e = &s->edge[k];
    const handle_t used = e->reorder ? f->inside[k] : f->outside[k];
    if (e->reorder) memory_set_data_handle(f->inside[k], e->constant ? e->constant : scratch + e->offset);
    memory_set_data_handle(f->outside[k], buffers[e->buffer]);
    if (e->turn.batch && !e->constant) {
      if (!e->is_output) run_turn(&e->turn, buffers[e->buffer], scratch + e->offset, s->threads == 1);
    } else if (e->reorder && !e->is_output && !e->constant) {
      const argument_t pair[] = {{ARG_SRC, f->outside[k]}, {ARG_DST, f->inside[k]}};
      primitive_execute(e->reorder, f->stream, 2, pair);
    }
    arguments[count++] = (argument_t){e->argument, used};
  }
  if (s->scratchpad) {
    memory_set_data_handle(f->scratchpad, scratch + s->scratch_bytes - s->scratchpad_bytes);
    arguments[count++] = (argument_t){ARG_SCRATCHPAD, f->scratchpad};
  }
  hlogym_use_independent_members(s->independent);
  const unsigned before = forget_exceptions();
  primitive_execute(s->primitive, f->stream, count, arguments);
  const unsigned met = restore_exceptions(before);
  hlogym_use_independent_members(1);
  for (int k = 0; k < s->edges; k++) {
    if (!s->edge[k].reorder || !s->edge[k].is_output) continue;
    if (s->edge[k].turn.batch) {
      run_turn(&s->edge[k].turn, scratch + s->edge[k].offset, buffers[s->edge[k].buffer], s->threads == 1);
      continue;
    }
    const argument_t pair[] = {{ARG_SRC, f->inside[k]}, {ARG_DST, f->outside[k]}};
    primitive_execute(s->edge[k].reorder, f->stream, 2, pair);
  }
  hlogym_use_independent_members(0);
  hlogym_limit_threads(0);
  if (s->maxima) repair_maxima(s->maxima, buffers[0], buffers[1]);
  return met;
}

EXPORT void hlogym_onednn_run(struct step *s, char *const *buffers, char *scratch, long scratch_bytes);

/* One call of a divided step. */
struct division {
  const struct step *step;
  char *const *buffers, *scratch;
};

/* Return where part `k` writes its sum. */
static char *sum_of_part(const struct division *d, int64_t k) {
  const struct step *const s = d->step;
  if (k == 0) return d->buffers[2];
  return d->scratch + s->parts * s->part->scratch_bytes + (k - 1) * rounded(s->outputs * sizeof(float));
}

static void run_parts(void *context, int64_t first, int64_t last) {
  const struct division *const d = context;
  const struct step *const s = d->step;
  for (int64_t k = first; k < last; k++) {
    char *const buffers[] = {d->buffers[0] + k * s->part_bytes[0], d->buffers[1] + k * s->part_bytes[1],
                             sum_of_part(d, k)};
    hlogym_onednn_run(s->part, buffers, d->scratch + k * s->part->scratch_bytes, (long)s->part->scratch_bytes);
  }
}

static void add_parts(void *context, int64_t first, int64_t last) {
  const struct division *const d = context;
  float *const sum = (float *)d->buffers[2];
  for (int64_t k = 1; k < d->step->parts; k++) {
    const float *const more = (const float *)sum_of_part(d, k);
    for (int64_t i = first; i < last; i++) sum[i] += more[i];
  }
}

static void run_divided(const struct step *s, char *const *buffers, char *scratch) {
  struct division d = {s, buffers, scratch};
  hlogym_parallel(run_parts, &d, s->parts, 1);
  hlogym_parallel(add_parts, &d, s->outputs, 16384);
}

static unsigned run(struct step *s, char *const *buffers, char *scratch) {
  for (int k = 0; k < MAX_FRAMES; k++) {
    struct frame *const f = &s->frame[k];
    if (atomic_flag_test_and_set_explicit(&f->busy, memory_order_acquire)) continue;
    const unsigned met = f->stream || new_frame(s, f) == 0 ? execute(s, f, buffers, scratch) : 0;
    atomic_flag_clear_explicit(&f->busy, memory_order_release);
    return met;
  }
  struct frame extra = {0};
  const unsigned met = new_frame(s, &extra) == 0 ? execute(s, &extra, buffers, scratch) : 0;
  free_frame(s, &extra);
  return met;
}

/* Run a step; `buffers` are the tensors of its description. The scratch memory was sized when the program was compiled;
   another number of threads may need more, and so may another primitive. */
EXPORT void hlogym_onednn_run(struct step *s, char *const *buffers, char *scratch, long scratch_bytes) {
  struct maximum *const m = s->maximum;
  if (m && atomic_load_explicit(&m->use_exact, memory_order_relaxed)) s = exact_step(m);
  void *const larger = (size_t)scratch_bytes < s->scratch_bytes ? aligned_alloc(PAGE, s->scratch_bytes) : 0;
  if (s->part) {
    run_divided(s, buffers, larger ? larger : scratch);
  } else if ((run(s, buffers, larger ? larger : scratch) & (INVALID | SUBNORMAL)) && s->maximum && exact_step(m)) {
    atomic_store(&m->use_exact, 1);
    hlogym_onednn_run(s, buffers, scratch, scratch_bytes);
  }
  free(larger);
}

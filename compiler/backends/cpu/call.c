/* Calls of programs from Python: a built-in function that checks numpy arrays, allocates the results and runs, and one
   that runs on memory of the caller.

   A call of a small program takes about a microsecond this way, and five through ctypes. This file follows runtime.c in
   one translation unit. It is built without the headers of Python and numpy: the functions come as a table of addresses,
   and arrays are read at the offsets that numpy's ABI fixes. `array_call.py` compares both with Python's own view of
   sample arrays before it enables this path. Whatever is unusual (other types or layouts, wrong shapes, large results)
   is left to Python: the function then returns None. Everything here runs while the caller holds Python's global
   interpreter lock (GIL), except the program itself. */

typedef struct object object;

/* The functions of Python and numpy that a call needs, in the order of `array_call.FUNCTIONS`. */
static struct {
  void (*increment)(object *);
  void (*decrement)(object *);
  void *(*capsule_pointer)(object *, const char *);
  int64_t (*tuple_size)(object *);
  object *(*tuple_item)(object *, int64_t);
  object *(*new_list)(int64_t);
  int (*set_item)(object *, int64_t, object *);
  void *(*release_gil)(void);
  void (*take_gil)(void *);
  void (*restore_error)(object *, object *, object *);
  void *(*address)(object *); /* PyLong_AsVoidPtr */
  object *none, *yes;
  object *array_type;
  object *(*new_array)(object *type, object *descr, int rank, const intptr_t *dimensions, const intptr_t *strides,
                       void *data, int flags, object *base); /* PyArray_NewFromDescr, which takes over `descr` */
  object *(*set_handler)(object *); /* PyDataMem_SetHandler, which returns the one before */
  object *result_handler;           /* a capsule of the handler in result_memory.c */
} api;

/* The head of numpy's array object after the head of every Python object: PyArrayObject_fields. */
struct array {
  intptr_t references;
  object *type;
  char *data;
  int rank;
  intptr_t *dimensions, *strides;
  object *base, *descr;
  int flags;
};

#define C_CONTIGUOUS 0x001
#define OWN_DATA 0x004
#define ALIGNED 0x100
#define WRITEABLE 0x400

struct leaf { /* an argument or a result */
  object *descr;
  const intptr_t *dimensions;
  int64_t size;
  int rank;
  int alias; /* of a result: number of the argument whose memory it takes over, or -1 */
};

/* The working memory of one call. The arguments and results of its last call stay alive with it. */
struct frame {
  struct frame *next;
  char *arena;
  struct hlogym_call *context;
  char **parameters, **results;
  object *arguments, *returned;
};

struct program {
  void (*entry)(char *, char *const *, char *const *, char *const *, struct hlogym_call *);
  char *const *constants;
  const struct leaf *parameters, *results;
  int parameter_count, result_count;
  struct frame *idle;
};

EXPORT void hlogym_set_api(void *const *table) { memcpy(&api, table, sizeof api); }

/* ---- frames */

/* Return a frame that no call uses, or null. */
EXPORT struct frame *hlogym_take_frame(struct program *p) {
  struct frame *const f = p->idle;
  if (f) p->idle = f->next;
  return f;
}

/* Drop what a frame keeps alive. */
EXPORT void hlogym_clear_frame(struct frame *f) {
  object *const arguments = f->arguments, *const returned = f->returned;
  f->arguments = f->returned = 0;
  if (arguments) api.decrement(arguments);
  if (returned) api.decrement(returned);
}

static void put_back(struct program *p, struct frame *f) {
  f->next = p->idle;
  p->idle = f;
}

/* Make a frame available to later calls; `arguments` and `returned` are those of its last call. */
EXPORT void hlogym_give_frame(struct program *p, struct frame *f, object *arguments, object *returned) {
  api.increment(arguments);
  api.increment(returned);
  hlogym_clear_frame(f); /* may run Python code, and so another call, which must not see this frame */
  f->arguments = arguments;
  f->returned = returned;
  put_back(p, f);
}

/* ---- calls */

static int fits(const struct array *a, const struct leaf *leaf) {
  if (a->type != api.array_type || a->descr != leaf->descr || a->rank != leaf->rank) return 0;
  if ((a->flags & (C_CONTIGUOUS | ALIGNED)) != (C_CONTIGUOUS | ALIGNED)) return 0;
  for (int d = 0; d < leaf->rank; d++)
    if (a->dimensions[d] != leaf->dimensions[d]) return 0;
  return 1;
}

static object *new_array(const struct leaf *leaf) {
  object *const before = leaf->size >= LARGE ? api.set_handler(api.result_handler) : 0;
  if (leaf->size >= LARGE && !before) return 0;
  api.increment(leaf->descr);
  object *const out = api.new_array(api.array_type, leaf->descr, leaf->rank, leaf->dimensions, 0, 0, 0, 0);
  if (!before) return out;
  object *const ours = api.set_handler(before);
  api.decrement(before);
  if (ours) api.decrement(ours);
  return out;
}

/* Check whether a result may take over the memory of an argument, as `runtime.donation.may_donate` does. */
static int may_donate(const struct program *p, char *const *parameters, object *arguments, int number) {
  const struct array *const a = (const struct array *)api.tuple_item(arguments, number);
  if ((a->flags & (WRITEABLE | OWN_DATA)) != (WRITEABLE | OWN_DATA)) return 0;
  const char *const start = a->data, *const end = start + p->parameters[number].size;
  for (int k = 0; k < p->parameter_count; k++)
    if (k != number && parameters[k] < end && start < parameters[k] + p->parameters[k].size) return 0;
  return 1;
}

/* Return the list of results with their addresses in `f`, or null with an exception set. */
static object *make_results(const struct program *p, struct frame *f, object *arguments) {
  object *const out = api.new_list(p->result_count);
  if (!out) return 0;
  read_beside.count = 0;
  for (int k = 0; k < p->parameter_count; k++)
    if (p->parameters[k].size >= LARGE) add_read((uintptr_t)f->parameters[k]);
  for (int k = 0; k < p->result_count; k++) {
    const int alias = p->results[k].alias;
    object *item;
    if (alias >= 0) {
      item = api.tuple_item(arguments, alias);
      api.increment(item);
    } else {
      item = new_array(&p->results[k]);
    }
    if (!item) {
      api.decrement(out);
      return 0;
    }
    f->results[k] = ((struct array *)item)->data;
    api.set_item(out, k, item);
  }
  return out;
}

/* Run the program on the addresses in a frame, without the GIL; return 0 with an exception set if it was stopped. */
static int run(const struct program *p, struct frame *f) {
  void *const thread = api.release_gil();
  p->entry(f->arena, f->parameters, f->results, p->constants, f->context);
  api.take_gil(thread);
  if (!f->context->stopped || !f->context->exception[0]) return 1;
  object *const *const e = (object *const *)f->context->exception;
  f->context->stopped = 0;
  api.restore_error(e[0], e[1], e[2]);
  return 0;
}

/* A built-in function: `self` is a capsule of the program, and `arguments` a tuple. Return the list of results, None
   if Python should make the call, or null with an exception set. */
static object *call_program(object *self, object *arguments) {
  struct program *const p = api.capsule_pointer(self, 0);
  if (!p) return 0;
  struct frame *const f = hlogym_take_frame(p);
  if (!f || api.tuple_size(arguments) != p->parameter_count) goto python;
  hlogym_clear_frame(f); /* so that the results can be in the memory of the last ones */
  for (int k = 0; k < p->parameter_count; k++) {
    const struct array *const a = (const struct array *)api.tuple_item(arguments, k);
    if (!fits(a, &p->parameters[k])) goto python;
    f->parameters[k] = a->data;
  }
  for (int k = 0; k < p->result_count; k++)
    if (p->results[k].alias >= 0 && !may_donate(p, f->parameters, arguments, p->results[k].alias)) goto python;
  object *results = make_results(p, f, arguments);
  if (results && !run(p, f)) {
    api.decrement(results);
    results = 0;
  }
  if (results)
    hlogym_give_frame(p, f, arguments, results);
  else
    put_back(p, f);
  return results;

python:
  if (f) put_back(p, f);
  api.increment(api.none);
  return api.none;
}

/* A built-in function whose arguments are the addresses of all arguments and results of the program, which are not
   checked. It runs on threads that are shared with other code, if there are any. Return True, None if Python should make
   the call, or null with an exception set. */
static object *call_program_at(object *self, object *const *addresses, intptr_t count) {
  struct program *const p = api.capsule_pointer(self, 0);
  if (!p) return 0;
  struct frame *const f = count == p->parameter_count + p->result_count ? hlogym_take_frame(p) : 0;
  if (!f) {
    api.increment(api.none);
    return api.none;
  }
  hlogym_clear_frame(f);
  for (int k = 0; k < p->parameter_count; k++) f->parameters[k] = api.address(addresses[k]);
  for (int k = 0; k < p->result_count; k++) f->results[k] = api.address(addresses[p->parameter_count + k]);
  f->context->shares = 1;
  const int done = run(p, f);
  f->context->shares = 0;
  put_back(p, f);
  if (!done) return 0;
  api.increment(api.yes);
  return api.yes;
}

/* Two of PyMethodDef. */
static const struct {
  const char *name;
  void *function;
  int flags;
  const char *doc;
} definitions[] = {
    {"call_program", call_program, 0x8 /* METH_O */, "Run a compiled program on a tuple of arrays."},
    {"call_program_at", call_program_at, 0x80 /* METH_FASTCALL */, "Run a compiled program on memory of the caller."},
};

EXPORT const void *hlogym_call_definition(int number) { return &definitions[number]; }

/* ---- the self-test */

/* Read the fields of an array into `out`: type, data, rank, first dimension, data type and flags. */
EXPORT void hlogym_read_array(const struct array *a, int64_t *out) {
  out[0] = (int64_t)(intptr_t)a->type;
  out[1] = (int64_t)(intptr_t)a->data;
  out[2] = a->rank;
  out[3] = a->rank > 0 ? a->dimensions[0] : -1;
  out[4] = (int64_t)(intptr_t)a->descr;
  out[5] = a->flags;
}

/* Return a new array as a call does for a result, or null with an exception set. */
EXPORT object *hlogym_new_array(const struct leaf *leaf) { return new_array(leaf); }

/* Calls of our programs from inside programs of XLA: one handler of XLA's foreign function interface (FFI).

   An FFI call carries the key of a program as an attribute. Programs are registered under their keys before a program of
   XLA that calls them is built, and stay registered for the life of the process. The handler runs on whichever thread XLA
   chooses and without Python's global interpreter lock, so frames are kept in lists of their own. The FFI's headers come
   with jaxlib. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "xla/ffi/api/c_api.h"

#define EXPORT __attribute__((visibility("default")))
#define ALIGNMENT 64
#define BUCKETS 4096
#define HOST_ERROR 2 /* `native_runtime.HOST_ERROR` */

struct call { /* the head of `struct hlogym_call` of runtime.c */
  void *exception[3];
  volatile int stopped;
};

struct frame {
  struct frame *next;
  char *arena;
  struct call *context;
  char **parameters, **results;
};

struct program { /* `xla_call._ProgramTable` */
  struct program *next;
  int64_t key;
  void (*entry)(char *, char *const *, char *const *, char *const *, struct call *);
  char *const *constants;
  const char *context; /* the context of a call; each frame has a copy */
  int64_t context_bytes, addresses; /* size of a context, and offset of its pointer to the operands' addresses */
  int64_t operand_count, arena_bytes;
  int64_t parameter_count, result_count;
  const int64_t *donors;       /* for each result the argument whose memory it takes over, or -1 */
  const int64_t *result_bytes; /* size of each result */
  struct frame *idle;
  int64_t lock;
};

static struct program *buckets[BUCKETS];

static struct { /* functions of Python, in the order of `xla_call.PYTHON` */
  void (*restore_error)(void *, void *, void *);
  int (*add_pending_call)(int (*)(void *), void *);
  int (*gil_ensure)(void);
  void (*gil_release)(int);
  void *(*to_string)(void *);
  const char *(*utf8)(void *);
  void (*decrement)(void *);
  void (*clear_error)(void);
} python;

EXPORT void hlogym_xla_set_python(void *const *table) { memcpy(&python, table, sizeof python); }

static struct program **bucket(int64_t key) { return &buckets[(uint64_t)key % BUCKETS]; }

/* Register a program; the caller holds a lock, and handlers may look programs up meanwhile. */
EXPORT void hlogym_xla_register(struct program *p) {
  p->next = *bucket(p->key);
  __atomic_store_n(bucket(p->key), p, __ATOMIC_RELEASE);
}

static struct program *find(int64_t key) {
  struct program *p = __atomic_load_n(bucket(key), __ATOMIC_ACQUIRE);
  while (p && p->key != key) p = p->next;
  return p;
}

/* ---- frames */

static void acquire(struct program *p) {
  while (__atomic_exchange_n(&p->lock, 1, __ATOMIC_ACQUIRE)) {
  }
}

static void release(struct program *p) { __atomic_store_n(&p->lock, 0, __ATOMIC_RELEASE); }

static int64_t rounded(int64_t size) { return (size + ALIGNMENT) / ALIGNMENT * ALIGNMENT; }

/* Return a new frame, which is one block of zeros, or null. */
static struct frame *new_frame(const struct program *p) {
  const int64_t sizes[] = {sizeof(struct frame), p->context_bytes, p->operand_count * 8, p->parameter_count * 8,
                           p->result_count * 8, p->arena_bytes};
  char *parts[6];
  int64_t total = ALIGNMENT;
  for (int i = 0; i < 6; i++) total += rounded(sizes[i]);
  char *at = calloc(1, (size_t)total);
  if (!at) return 0;
  at += ALIGNMENT - (uintptr_t)at % ALIGNMENT;
  for (int i = 0; i < 6; i++) {
    parts[i] = at;
    at += rounded(sizes[i]);
  }
  struct frame *const f = (struct frame *)parts[0];
  memcpy(parts[1], p->context, (size_t)p->context_bytes);
  memcpy(parts[1] + p->addresses, &parts[2], sizeof(char *));
  f->context = (struct call *)parts[1];
  f->parameters = (char **)parts[3];
  f->results = (char **)parts[4];
  f->arena = parts[5];
  return f;
}

static struct frame *take_frame(struct program *p) {
  acquire(p);
  struct frame *const f = p->idle;
  if (f) p->idle = f->next;
  release(p);
  return f ? f : new_frame(p);
}

static void give_frame(struct program *p, struct frame *f) {
  acquire(p);
  f->next = p->idle;
  p->idle = f;
  release(p);
}

/* ---- errors */

static XLA_FFI_Error *error(const XLA_FFI_CallFrame *call, XLA_FFI_Error_Code code, const char *message) {
  XLA_FFI_Error_Create_Args args = {XLA_FFI_Error_Create_Args_STRUCT_SIZE, 0, message, code};
  return call->api->XLA_FFI_Error_Create(&args);
}

/* Raise in Python's main thread the exception that a signal handler raised during a call. */
static int raise_exception(void *argument) {
  void **const e = argument;
  python.restore_error(e[0], e[1], e[2]);
  free(argument);
  return -1;
}

static void raise_later(struct call *context) {
  void **const e = malloc(sizeof context->exception);
  if (!e || !context->exception[0]) {
    free(e);
    return;
  }
  memcpy(e, context->exception, sizeof context->exception);
  memset(context->exception, 0, sizeof context->exception);
  python.add_pending_call(raise_exception, e);
}

/* Return the error of XLA for the exception of a host op, which is dropped. */
static XLA_FFI_Error *host_error(const XLA_FFI_CallFrame *call, struct call *context) {
  const int gil = python.gil_ensure();
  void *const text = python.to_string(context->exception[1]);
  const char *const message = text ? python.utf8(text) : 0;
  XLA_FFI_Error *const made =
      error(call, XLA_FFI_Error_Code_INTERNAL, message ? message : "an op that Python evaluates failed");
  if (text) python.decrement(text);
  python.clear_error(); /* of the conversion to text */
  for (int k = 0; k < 3; k++)
    if (context->exception[k]) python.decrement(context->exception[k]);
  memset(context->exception, 0, sizeof context->exception);
  python.gil_release(gil);
  return made;
}

/* ---- the handler */

/* Return the only attribute of a call, the key of its program; 0 if the call has others. */
static int64_t key_of(const XLA_FFI_Attrs *attributes) {
  if (attributes->size != 1 || attributes->types[0] != XLA_FFI_AttrType_SCALAR) return 0;
  const XLA_FFI_Scalar *const scalar = attributes->attrs[0];
  return scalar->dtype == XLA_FFI_DataType_S64 ? *(const int64_t *)scalar->value : 0;
}

EXPORT XLA_FFI_Error *hlogym_xla_call(XLA_FFI_CallFrame *call) {
  if (call->extension_start && call->extension_start->type == XLA_FFI_Extension_Metadata) {
    XLA_FFI_Metadata *const m = ((XLA_FFI_Metadata_Extension *)call->extension_start)->metadata;
    m->api_version.major_version = XLA_FFI_API_MAJOR;
    m->api_version.minor_version = XLA_FFI_API_MINOR;
    return 0;
  }
  if (call->stage != XLA_FFI_ExecutionStage_EXECUTE) return 0;
  struct program *const p = find(key_of(&call->attrs));
  if (!p)
    return error(call, XLA_FFI_Error_Code_NOT_FOUND,
                 "this program calls one that hlogym.jit compiled in another process; trace the function again here");
  if (call->args.size != p->parameter_count || call->rets.size != p->result_count)
    return error(call, XLA_FFI_Error_Code_INVALID_ARGUMENT, "wrong number of arguments or results of an hlogym program");
  struct frame *const f = take_frame(p);
  if (!f) return error(call, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED, "no memory for the temporaries of an hlogym program");
  for (int64_t k = 0; k < p->parameter_count; k++) f->parameters[k] = ((XLA_FFI_Buffer *)call->args.args[k])->data;
  for (int64_t k = 0; k < p->result_count; k++) {
    f->results[k] = ((XLA_FFI_Buffer *)call->rets.rets[k])->data;
    const int64_t donor = p->donors[k];
    if (donor >= 0 && f->results[k] != f->parameters[donor])
      memcpy(f->results[k], f->parameters[donor], (size_t)p->result_bytes[k]);
  }
  p->entry(f->arena, f->parameters, f->results, p->constants, f->context);
  XLA_FFI_Error *failure = 0;
  const int stopped = f->context->stopped;
  f->context->stopped = 0;
  if (stopped == HOST_ERROR) {
    failure = host_error(call, f->context);
  } else if (stopped) {
    raise_later(f->context);
    failure = error(call, XLA_FFI_Error_Code_CANCELLED, "interrupted by a signal");
  }
  give_frame(p, f);
  return failure;
}

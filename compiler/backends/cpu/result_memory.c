/* Memory of results: a freed one is kept for the next array of about its size.

   The C library returns large blocks to the system when they are freed, or not, depending on what lies above them in the
   heap. A program whose results take 48 MiB then spends as long on page faults as on computing. Arrays that a call makes
   own their memory, which comes from here by numpy's handler of data memory (NEP 49). Everything here runs while the
   caller holds the GIL.

   Results begin at different places of their pages, and not where arrays of other libraries begin: a load whose address
   equals that of an earlier store in the lower 12 bits waits for it (see `assign_offsets` in runtime/buffers.py). Their
   places lie between those of temporaries. Large arguments may begin anywhere: a result begins where its stores are far
   ahead of the loads from each of them. This file is part of the runtime's translation unit, before call.c. */

#define LARGE (1 << 16)     /* bytes; smaller results are left to numpy */
#define HUGE_PAGE (4 << 20) /* blocks from this size on ask for huge pages, as numpy's do */
#define BLOCK_HEAD 64       /* bytes of a block before the array, and its alignment */
#define KEPT_BLOCKS 128
#define PAGE_BYTES 4096
#define PLACE 256
#define RESULT_PLACES 15
#define RESULT_STEP 4
#define FAR_AHEAD 1024 /* bytes in a page from which on loads from an argument do not wait for stores to a result */
#define MOST_READ 16   /* arguments to which a result is compared */

struct block { /* before the array */
  void *memory;
  size_t size; /* of the array */
};

static struct {
  struct block *blocks[KEPT_BLOCKS]; /* oldest first */
  int count;
  size_t bytes, limit;
} kept;

static void *array_of(struct block *b) { return (char *)b + BLOCK_HEAD; }
static struct block *block_of(void *array) { return (struct block *)((char *)array - BLOCK_HEAD); }

static struct block *forget(int k) {
  struct block *const b = kept.blocks[k];
  kept.bytes -= b->size;
  memmove(&kept.blocks[k], &kept.blocks[k + 1], (size_t)(--kept.count - k) * sizeof b);
  return b;
}

/* Return all kept memory to the C library; return how many bytes that were. */
EXPORT int64_t hlogym_release_results(void) {
  const size_t bytes = kept.bytes;
  while (kept.count > 0) free(forget(kept.count - 1)->memory);
  return (int64_t)bytes;
}

/* Set how many bytes are kept at most. */
EXPORT void hlogym_keep_results(int64_t limit) {
  hlogym_release_results();
  kept.limit = (size_t)limit;
}

EXPORT int64_t hlogym_kept_results(void) { return (int64_t)kept.bytes; }

/* The large arguments of the call for which results are made. */
static struct {
  uintptr_t starts[MOST_READ];
  int count;
} read_beside;

static void add_read(uintptr_t start) {
  if (read_beside.count < MOST_READ) read_beside.starts[read_beside.count++] = start;
}

/* Set the addresses of the large arguments for which the next results are made. */
EXPORT void hlogym_read_beside(const uintptr_t *starts, int count) {
  read_beside.count = 0;
  for (int k = 0; k < count; k++) add_read(starts[k]);
}

/* Return how many bytes of a page the stores to an array are ahead of the loads from the arguments, at least. */
static uintptr_t least_ahead(uintptr_t start) {
  uintptr_t least = PAGE_BYTES;
  for (int k = 0; k < read_beside.count; k++) {
    const uintptr_t ahead = (start - read_beside.starts[k] - 1) % PAGE_BYTES + 1; /* a whole page for the same place */
    if (ahead < least) least = ahead;
  }
  return least;
}

static uintptr_t place_of(unsigned number) {
  return (RESULT_STEP * number % RESULT_PLACES + 1) * PLACE + PLACE / 2;
}

/* Return the place in a page of the next result. */
static uintptr_t next_place(void) {
  static unsigned number;
  unsigned best = number;
  uintptr_t most = 0;
  for (unsigned k = number; k < number + RESULT_PLACES && most < FAR_AHEAD; k++) {
    const uintptr_t ahead = least_ahead(place_of(k));
    if (ahead > most) best = k, most = ahead;
  }
  number = best + 1;
  return place_of(best);
}

/* Return the head of a block of memory, put in front of the place where its array begins. */
static struct block *placed(void *memory, size_t size) {
  uintptr_t start = (uintptr_t)memory + BLOCK_HEAD;
  start += (next_place() - start) % PAGE_BYTES;
  struct block *const b = block_of((void *)start);
  b->memory = memory;
  b->size = size;
  return b;
}

static struct block *new_block(size_t size) {
  const size_t more = BLOCK_HEAD + PAGE_BYTES;
  void *memory;
  if (size > SIZE_MAX - more || posix_memalign(&memory, BLOCK_HEAD, more + size)) return 0;
  struct block *const b = placed(memory, size);
  if (size >= HUGE_PAGE) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t first = ((uintptr_t)array_of(b) + page - 1) / page * page;
    madvise((void *)first, size - page, MADV_HUGEPAGE); /* a hint: it may fail */
  }
  return b;
}

/* Return memory for an array, which may be up to an eighth longer, or null. */
static void *take_memory(void *context, size_t size) {
  (void)context;
  for (int k = kept.count - 1; k >= 0; k--)
    if (kept.blocks[k]->size >= size && kept.blocks[k]->size - size <= size / 8) {
      struct block *const b = forget(k);
      const int is_far = least_ahead((uintptr_t)array_of(b)) >= FAR_AHEAD;
      return array_of(is_far ? b : placed(b->memory, b->size));
    }
  struct block *b = new_block(size);
  if (!b && hlogym_release_results() > 0) b = new_block(size);
  return b ? array_of(b) : 0;
}

static void give_memory(void *context, void *array, size_t size) {
  (void)context, (void)size;
  if (!array) return;
  struct block *const b = block_of(array);
  if (b->size > kept.limit) {
    free(b->memory);
    return;
  }
  while (kept.count == KEPT_BLOCKS || kept.bytes + b->size > kept.limit) free(forget(0)->memory);
  kept.blocks[kept.count++] = b;
  kept.bytes += b->size;
}

static void *take_zeros(void *context, size_t count, size_t size) {
  void *array = 0;
  if (!__builtin_mul_overflow(count, size, &size) && (array = take_memory(context, size))) memset(array, 0, size);
  return array;
}

static void *resize_memory(void *context, void *array, size_t size) {
  void *const new = take_memory(context, size);
  if (!new || !array) return new;
  const size_t old = block_of(array)->size;
  memcpy(new, array, old < size ? old : size);
  give_memory(context, array, old);
  return new;
}

/* PyDataMem_Handler of numpy, version 1. */
static struct {
  char name[127];
  uint8_t version;
  void *context;
  void *(*allocate)(void *, size_t);
  void *(*allocate_zeros)(void *, size_t, size_t);
  void *(*resize)(void *, void *, size_t);
  void (*release)(void *, void *, size_t);
} handler = {"hlogym_results", 1, 0, take_memory, take_zeros, resize_memory, give_memory};

EXPORT void *hlogym_result_handler(void) { return &handler; }

/* The functions of OpenMP that oneDNN calls, on the threads of our own runtime.

   The library was built for GNU OpenMP, whose threads would spin beside ours on the same cores after each call, are lost
   in a forked child, and exist once per calling thread. Therefore the library's calls are bound to the functions below:
   its table of imported addresses (the global offset table of an ELF object) is changed after loading. Nothing else in
   the process is affected. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xmmintrin.h>

/* Defined by the runtime (compiler/backends/cpu/runtime.c). */
int hlogym_gang_size(void);
void hlogym_gang_begin(void (*task)(void *, int64_t, int64_t), void *context, int count);
void hlogym_gang_end(void);
int hlogym_offer(void (*task)(void *, int64_t, int64_t), void *context, int count);
void hlogym_finish(void);

/* One parallel region. */
struct team {
  void (*function)(void *);
  void *data;
  int size;
  enum { GANG, OFFERED, ALONE } way; /* whether the members run at the same time, at any time, or one after the other */
  _Atomic unsigned waiting, phase; /* of the barrier */
  _Atomic unsigned exceptions;     /* of floating point arithmetic, that other threads than the first have met */
};

/* The calling thread's place in a region, and its share of the loop that it runs there. */
static _Thread_local struct {
  struct team *team; /* null outside of a region */
  int number, nested;
  long next, end, step, chunk, stride;
} member;

/* ---- exceptions of floating point arithmetic, which a processor notes in a register of each thread */

#define EXCEPTIONS 0x3f

static _Thread_local unsigned exceptions; /* that other threads have met in the regions of the calling thread */

/* Forget the exceptions of the calling thread; return them for `restore_exceptions`. */
static unsigned forget_exceptions(void) {
  const unsigned state = _mm_getcsr();
  exceptions = 0;
  _mm_setcsr(state & ~EXCEPTIONS);
  return state & EXCEPTIONS;
}

/* Return the exceptions since `forget_exceptions`, here and in regions, and note those before them again. */
static unsigned restore_exceptions(unsigned before) {
  const unsigned state = _mm_getcsr();
  _mm_setcsr(state | before);
  return (state & EXCEPTIONS) | exceptions;
}

/* ---- regions */

static void run_member(void *context, int64_t number, int64_t end) {
  struct team *const team = context;
  const unsigned before = _mm_getcsr();
  (void)end;
  member.team = team;
  member.number = (int)number;
  _mm_setcsr(before & ~EXCEPTIONS);
  team->function(team->data);
  const unsigned after = _mm_getcsr();
  atomic_fetch_or_explicit(&team->exceptions, after & EXCEPTIONS, memory_order_relaxed);
  _mm_setcsr(after | (before & EXCEPTIONS));
  member.team = 0;
}

static _Thread_local int independent; /* whether the members of the calling thread's regions wait for no other */

static int team_size(void) { return member.team && !member.nested ? member.team->size : 1; }

static _Thread_local int limit; /* threads of the calling thread's regions at most; 0 for as many as there are */

static int max_threads(void) {
  const int threads = limit == 1 ? 1 : hlogym_gang_size();
  return limit && limit < threads ? limit : threads;
}

/* Start a region: the other threads call function(data), and then the caller does so itself. */
static void parallel_start(void (*function)(void *), void *data, unsigned threads) {
  static _Thread_local struct team team;
  if (member.team) { /* a region within a region has one thread */
    member.nested++;
    return;
  }
  team.function = function;
  team.data = data;
  team.size = threads ? (int)threads : max_threads();
  atomic_store(&team.waiting, 0);
  atomic_store(&team.exceptions, 0);
  member.team = &team;
  member.number = 0;
  if (team.size == 1) return;
  team.way = GANG;
  if (independent)
    team.way = hlogym_offer(run_member, &team, team.size) ? OFFERED : ALONE;
  else
    hlogym_gang_begin(run_member, &team, team.size);
}

static void parallel_end(void) {
  if (member.nested) {
    member.nested--;
    return;
  }
  struct team *const team = member.team;
  member.team = 0;
  if (team->size == 1) return;
  if (team->way == GANG) hlogym_gang_end();
  if (team->way == OFFERED) hlogym_finish();
  if (team->way == ALONE)
    for (int number = 1; number < team->size; number++) run_member(team, number, number + 1);
  exceptions |= atomic_load(&team->exceptions);
}

static void barrier(void) {
  struct team *const team = member.team;
  if (team_size() == 1) return;
  const unsigned phase = atomic_load(&team->phase);
  if (atomic_fetch_add(&team->waiting, 1) + 1 == (unsigned)team->size) {
    atomic_store(&team->waiting, 0);
    atomic_store(&team->phase, phase + 1);
    return;
  }
  for (int tries = 0; atomic_load_explicit(&team->phase, memory_order_acquire) == phase; tries++)
    if (tries < 20000)
      __builtin_ia32_pause();
    else
      sched_yield();
}

/* ---- questions */

static int num_threads(void) { return team_size(); }
static int thread_num(void) { return member.nested ? 0 : member.number * (member.team != 0); }
static int in_parallel(void) { return team_size() > 1; }

/* ---- loops with a static schedule: iterations start, start + step, ... before `end`, in chunks if `chunk` is not 0 */

static _Bool loop_next(long *first, long *last) {
  const int up = member.step > 0;
  if (up ? member.next >= member.end : member.next <= member.end) return 0;
  const long stop = member.next + member.chunk;
  *first = member.next;
  *last = up ? (stop < member.end ? stop : member.end) : (stop > member.end ? stop : member.end);
  member.next += member.stride;
  return 1;
}

static _Bool loop_start(long start, long end, long step, long chunk, long *first, long *last) {
  const long count = step > 0 ? (end - start + step - 1) / step : (start - end - step - 1) / -step;
  const long threads = team_size(), number = thread_num();
  member.step = step;
  member.end = end;
  if (chunk > 0) {
    member.next = start + number * chunk * step;
    member.chunk = chunk * step;
    member.stride = threads * chunk * step;
  } else { /* one chunk for each thread, of equal sizes up to one iteration */
    const long size = count / threads, more = count % threads;
    const long from = number * size + (number < more ? number : more), length = size + (number < more);
    member.next = length > 0 ? start + from * step : end;
    member.chunk = length * step;
    member.stride = count * step + step;
  }
  return loop_next(first, last);
}

static void loop_end(void) {}

/* Set how many threads the regions that the calling thread starts have at most; 0 for no limit. */
void hlogym_limit_threads(int count) { limit = count; }

/* Set whether the members of the regions that the calling thread starts wait for no other: they have no barriers. */
void hlogym_use_independent_members(int set) { independent = set; }

/* ---- binding */

static const struct {
  const char *name;
  void *function;
} functions[] = {
    {"GOMP_parallel_start", parallel_start},
    {"GOMP_parallel_end", parallel_end},
    {"GOMP_barrier", barrier},
    {"GOMP_loop_static_start", loop_start},
    {"GOMP_loop_static_next", loop_next},
    {"GOMP_loop_end_nowait", loop_end},
    {"omp_get_max_threads", max_threads},
    {"omp_get_num_threads", num_threads},
    {"omp_get_thread_num", thread_num},
    {"omp_in_parallel", in_parallel},
};
enum { FUNCTIONS_OF_OPENMP = sizeof functions / sizeof *functions };

/* Write one imported address; the page may have been made read-only after loading. Return whether that failed. */
static int bind(void **slot, void *function) {
  const long page = sysconf(_SC_PAGESIZE);
  void *const start = (void *)((uintptr_t)slot / page * page);
  if (mprotect(start, page, PROT_READ | PROT_WRITE)) return 1;
  *slot = function;
  return 0;
}

/* Bind the library's calls of OpenMP to the functions above; return 0, or a message that says what failed. */
const char *hlogym_share_threads(void *library) {
  struct link_map *map;
  const ElfW(Rela) *imports = 0;
  const ElfW(Sym) *symbols = 0;
  const char *names = 0;
  size_t bytes = 0;
  int bound = 0;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map)) return "it has no table of imports";
  for (const ElfW(Dyn) *d = map->l_ld; d->d_tag != DT_NULL; d++) {
    if (d->d_tag == DT_JMPREL) imports = (const ElfW(Rela) *)d->d_un.d_ptr;
    if (d->d_tag == DT_PLTRELSZ) bytes = d->d_un.d_val;
    if (d->d_tag == DT_SYMTAB) symbols = (const ElfW(Sym) *)d->d_un.d_ptr;
    if (d->d_tag == DT_STRTAB) names = (const char *)d->d_un.d_ptr;
  }
  if (!imports || !symbols || !names) return "it has no table of imports";
  for (const ElfW(Rela) *r = imports; r < imports + bytes / sizeof *r; r++) {
    const char *const name = names + symbols[ELF64_R_SYM(r->r_info)].st_name;
    if (strncmp(name, "GOMP_", 5) && strncmp(name, "omp_", 4)) continue;
    int k = 0;
    while (k < FUNCTIONS_OF_OPENMP && strcmp(name, functions[k].name)) k++;
    if (k == FUNCTIONS_OF_OPENMP) return "it calls functions of OpenMP that are not known here";
    if (bind((void **)(map->l_addr + r->r_offset), functions[k].function)) return "its table of imports is protected";
    bound++;
  }
  return bound == FUNCTIONS_OF_OPENMP ? 0 : "it does not import the functions of GNU OpenMP";
}

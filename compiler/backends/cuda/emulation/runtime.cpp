// The runtime of the emulator: it runs the blocks of a launch one after another, and their threads as fibers.
//
// A thread runs until it waits for its block or for lanes of its warp; then the next thread continues. Each access to
// memory is checked: it must lie in one of the arrays of the launch and be aligned, and between two barriers no thread
// may write to shared memory what another one accesses. A launch ends at the first error.
#include <link.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <vector>

namespace {
using namespace emulation;
enum State { READY, AT_BARRIER, AT_EXCHANGE, DONE };
const size_t STACK = 256 << 10;
const int MOST_THREADS = 1024;

struct Fiber {
  State state;
  bool started;
  jmp_buf context;
  ucontext_t first_context;
  Index thread;
  int predicate;
  // the operation of the warp that the lane waits for
  int operation;
  unsigned mask, size;
  const void *position;
  unsigned char value[MOST_BYTES];
  const Exchange *result;
};

struct Touch {  // the last accesses to a byte of shared memory
  long wrote, read;  // barriers before them
  long wrote_turn, read_turn;  // operations of the warp before them
  int writer, reader;  // thread, or SEVERAL
  int reader_warp;
};
const int SEVERAL = -2;

struct Pending {  // a write to what another thread accessed; not an error if the value stays the same
  bool is_set;
  const char *address;
  unsigned size;
  int other;
  unsigned char before[16];
};

Runtime runtime;
Launch *current;
Fiber fibers[MOST_THREADS];
char *stacks;
jmp_buf scheduler;
ucontext_t scheduler_context;
int running, threads;
bool reversed;
Exchange exchanges[MOST_THREADS];
int barrier_count;
long epoch, block_epoch;
long turns[MOST_THREADS / 32];
std::vector<Touch> touches;
std::vector<char> dynamic_memory;
Pending pending;
counters::Recorder recorder;
char message[500];

// ---- switching

void fail(const char *text) {
  if (!message[0]) snprintf(message, sizeof message, "%s", text);
}
void leave() { longjmp(scheduler, 1); }
void fail_thread(const char *text) {
  fail(text);
  leave();
}
void wait(State why) {
  Fiber &f = fibers[running];
  f.state = why;
  if (!_setjmp(f.context)) leave();
}
void settle();
void run_thread() {
  for (;;) {
    current->kernel(current->arguments);
    settle();
    wait(DONE);
  }
}
void resume(int thread) {
  Fiber &f = fibers[thread];
  running = thread;
  runtime.thread = f.thread;
  runtime.lane = thread & 31;
  f.state = READY;
  if (_setjmp(scheduler)) return;
  if (f.started) longjmp(f.context, 1);
  f.started = true;
  getcontext(&f.first_context);
  f.first_context.uc_stack.ss_sp = stacks + thread * STACK;
  f.first_context.uc_stack.ss_size = STACK;
  f.first_context.uc_link = nullptr;
  makecontext(&f.first_context, run_thread, 0);
  setcontext(&f.first_context);
}

// ---- checks of accesses

const char *buffer_name(char *text, size_t room, const char *address) {
  const Buffer *nearest = nullptr;
  long best = 0;
  for (int k = 0; k < current->buffer_count; k++) {
    const Buffer &b = current->buffers[k];
    const long before = b.base - address, behind = address - (b.base + b.size) + 1;
    const long distance = before > 0 ? before : behind;
    if (!nearest || distance < best) nearest = &b, best = distance;
  }
  if (!nearest) return "there are no arrays";
  snprintf(text, room, "byte %ld of argument %d, which has %lu bytes", (long)(address - nearest->base),
           (int)(nearest - current->buffers), nearest->size);
  return text;
}
void fail_access(const char *what, const char *address, unsigned long size, int kind) {
  char text[400], name[120];
  snprintf(text, sizeof text, "thread %d of block %u %s %lu bytes %s: %s", running, runtime.block.x,
           kind == READ ? "reads" : kind == WRITE ? "writes" : "updates", size, what,
           buffer_name(name, sizeof name, address));
  fail_thread(text);
}
void race(const char *address, int other, const char *what) {
  char text[300];
  snprintf(text, sizeof text,
           "race on shared memory: thread %d %s what thread %d accessed, without a barrier between (byte %ld, block %u)",
           running, what, other, (long)(address - current->shared), runtime.block.x);
  fail(text);
}
// Report a pending write if it changed the value.
void settle() {
  if (!pending.is_set) return;
  pending.is_set = false;
  if (memcmp(pending.before, pending.address, pending.size)) {
    race(pending.address, pending.other, "writes");
    leave();
  }
}
bool conflicts(long when, long turn, int who, int who_warp, int me) {
  if (when != epoch || who == me) return false;
  return who_warp != me / 32 || turn == turns[me / 32];
}
void touch_shared(size_t offset, const char *address, unsigned long size, int kind) {
  const int me = running, warp = me / 32;
  for (unsigned long k = 0; k < size; k++) {
    Touch &t = touches[offset + k];
    const int writer_warp = t.writer < 0 ? SEVERAL : t.writer / 32;
    if (kind == READ && t.wrote < block_epoch) {
      char text[160];
      snprintf(text, sizeof text, "thread %d of block %u reads shared memory that no thread of the block has written before", me,
               runtime.block.x);
      fail_thread(text);
    }
    if (kind == READ) {
      if (conflicts(t.wrote, t.wrote_turn, t.writer, writer_warp, me)) {
        race(address + k, t.writer, "reads");
        leave();
      }
      const bool is_new = t.read != epoch || (t.reader_warp == warp && t.read_turn != turns[warp]);
      if (is_new) {
        t.reader = me, t.reader_warp = warp;
      } else {
        if (t.reader != me) t.reader = SEVERAL;
        if (t.reader_warp != warp) t.reader_warp = SEVERAL;
      }
      t.read = epoch, t.read_turn = turns[warp];
      continue;
    }
    int other = -1;
    if (conflicts(t.wrote, t.wrote_turn, t.writer, writer_warp, me)) other = t.writer;
    if (conflicts(t.read, t.read_turn, t.reader, t.reader_warp, me)) other = t.reader;
    if (other != -1 && kind == WRITE && !pending.is_set && size <= sizeof pending.before) {
      pending.is_set = true, pending.address = address, pending.size = size, pending.other = other;
      memcpy(pending.before, address, size);
    }
    t.wrote = epoch, t.wrote_turn = turns[warp], t.writer = me;
  }
}
void on_access(const void *p, unsigned long size, int kind, const void *position) {
  const char *address = (const char *)p;
  if (address >= stacks && address < stacks + MOST_THREADS * STACK) return;
  settle();
  for (int k = 0; k < current->buffer_count; k++) {
    const Buffer &b = current->buffers[k];
    if (address < b.base || address + size > b.base + b.size) continue;
    if ((size & (size - 1)) == 0 && (address - b.base) % size) fail_access("that are not aligned", address, size, kind);
    return recorder.add(running, k, address - b.base, size, kind, position);
  }
  const char *dynamic = runtime.dynamic_shared;
  size_t offset = address - current->shared;
  bool is_shared = address >= current->shared && address + size <= current->shared_end;
  if (address >= dynamic && address + size <= dynamic + current->dynamic_shared) {
    // Behind the static part, at an address with the same bank.
    offset = (current->shared_end - current->shared + 127) / 128 * 128 + (address - dynamic);
    is_shared = true;
  }
  if (is_shared) {
    touch_shared(offset, address, size, kind);
    return recorder.add(running, counters::SHARED, offset, size, kind, position);
  }
  if (kind == READ && address >= current->image && address + size <= current->image_end) return;  // constants
  fail_access("outside of all arrays", address, size, kind);
}

// ---- barriers and exchanges

int on_barrier(int predicate) {
  settle();
  fibers[running].predicate = predicate;
  wait(AT_BARRIER);
  return barrier_count;
}
const Exchange *on_exchange(int operation, unsigned mask, const void *value, unsigned size, const void *position) {
  settle();
  Fiber &f = fibers[running];
  f.operation = operation, f.mask = mask, f.size = size, f.position = position;
  if (size) memcpy(f.value, value, size);
  wait(AT_EXCHANGE);
  return f.result;
}
void release(int first, unsigned mask) {
  Exchange &e = exchanges[first + __builtin_ctz(mask)];
  e.mask = mask;
  recorder.exchange(fibers[first + __builtin_ctz(mask)].operation);
  for (int k = 0; k < 32; k++) {
    if (!(mask >> k & 1)) continue;
    Fiber &f = fibers[first + k];
    if (f.size) memcpy(e.values[k], f.value, f.size);
    f.result = &e;
    f.state = READY;
  }
  turns[first / 32]++;
}
unsigned lanes_in(int first, State state) {
  unsigned out = 0;
  for (int k = 0; k < 32 && first + k < threads; k++)
    if (fibers[first + k].state == state) out |= 1u << k;
  return out;
}
// Let the lanes of a warp continue whose exchange is complete; check whether there are any.
bool release_exchanges(int first) {
  const unsigned waiting = lanes_in(first, AT_EXCHANGE);
  const unsigned present = waiting | lanes_in(first, AT_BARRIER);
  bool any = false;
  for (unsigned left = waiting; left;) {
    const int lane = __builtin_ctz(left);
    const Fiber &f = fibers[first + lane];
    if (f.operation == ACTIVE_MASK) {
      left &= ~(1u << lane);
      continue;
    }
    unsigned alike = 0;
    for (int k = 0; k < 32; k++)
      if (waiting >> k & 1 && fibers[first + k].operation == f.operation && fibers[first + k].mask == f.mask) alike |= 1u << k;
    if (!(f.mask >> lane & 1)) {
      fail("a lane is not in the mask of the operation of its warp");
      return false;
    }
    const unsigned wanted = f.mask & present;
    if ((alike & wanted) == wanted) {
      release(first, wanted);
      any = true;
    }
    left &= ~alike;
  }
  if (any) return true;
  // Lanes that ask which lanes are active continue together with those that ask at the same place.
  for (unsigned left = waiting; left; left &= left - 1) {
    const Fiber &f = fibers[first + __builtin_ctz(left)];
    if (f.operation != ACTIVE_MASK) continue;
    unsigned alike = 0;
    for (int k = 0; k < 32; k++)
      if (waiting >> k & 1 && fibers[first + k].operation == ACTIVE_MASK && fibers[first + k].position == f.position)
        alike |= 1u << k;
    release(first, alike);
    return true;
  }
  return false;
}
// Run the ready lanes of a warp, and those that its exchanges release, until all wait or are done.
void run_warp(int first) {
  for (;;) {
    bool ran = false;
    for (int k = 0; k < 32; k++) {
      const int thread = first + (reversed ? 31 - k : k);
      if (thread >= threads || fibers[thread].state != READY) continue;
      resume(thread);
      if (message[0]) return;
      ran = true;
    }
    recorder.gather(first, threads);
    if (!release_exchanges(first) && !ran) return;
    if (message[0]) return;
  }
}
void run_block() {
  for (int t = 0; t < threads; t++) fibers[t].state = READY;
  epoch++;
  block_epoch = epoch;
  const int warps = (threads + 31) / 32;
  for (;;) {
    for (int w = 0; w < warps; w++) {
      run_warp(32 * (reversed ? warps - 1 - w : w));
      if (message[0]) return;
    }
    int at_barrier = 0, done = 0;
    barrier_count = 0;
    for (int t = 0; t < threads; t++) {
      const Fiber &f = fibers[t];
      done += f.state == DONE;
      at_barrier += f.state == AT_BARRIER;
      if (f.state == AT_BARRIER) barrier_count += f.predicate;
    }
    recorder.drain();
    if (done == threads) return;
    recorder.barrier(warps);
    if (done + at_barrier < threads)  // threads that have ended do not count at a barrier
      return fail("threads of one block wait for each other: some at a barrier, some at an operation of their warp");
    for (int t = 0; t < threads; t++) fibers[t].state = READY;
    epoch++;
  }
}
// Find the library that holds a function, and its writable part.
int find_image(dl_phdr_info *info, size_t, void *data) {
  Launch *l = (Launch *)data;
  char *begin = nullptr, *end = nullptr, *shared = nullptr, *shared_end = nullptr;
  for (int k = 0; k < info->dlpi_phnum; k++) {
    const ElfW(Phdr) &part = info->dlpi_phdr[k];
    if (part.p_type != PT_LOAD) continue;
    char *first = (char *)info->dlpi_addr + part.p_vaddr, *last = first + part.p_memsz;
    if (!begin || first < begin) begin = first;
    if (last > end) end = last;
    if (part.p_flags & PF_W) shared = first, shared_end = last;
  }
  if ((char *)l->kernel < begin || (char *)l->kernel >= end) return 0;
  l->image = begin, l->image_end = end, l->shared = shared, l->shared_end = shared_end;
  return 1;
}
bool prepare(Launch &l) {
  if (!stacks) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *found = mmap(nullptr, MOST_THREADS * STACK, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (found == MAP_FAILED) return false;
    stacks = (char *)found;
  }
  if (!dl_iterate_phdr(find_image, &l)) return false;
  threads = (int)(l.block.x * l.block.y * l.block.z);
  for (int t = 0; t < threads; t++) {
    const unsigned plane = l.block.x * l.block.y;
    fibers[t].thread = {t % l.block.x, t / l.block.x % l.block.y, t / plane};
  }
  dynamic_memory.assign(l.dynamic_shared + 128, 0x5a);
  runtime.dynamic_shared = (char *)(((size_t)dynamic_memory.data() + 127) & ~(size_t)127);
  touches.assign(l.shared_end - l.shared + 128 + l.dynamic_shared, Touch{-1, -1, -1, -1, -1, -1, -1});
  runtime.block_size = l.block;
  runtime.grid_size = l.grid;
  pending.is_set = false;
  message[0] = 0;
  epoch = 0;
  return true;
}
void run_window(const Launch &l, unsigned long first, unsigned long count, int window) {
  for (unsigned long b = first; b < first + count && !message[0]; b++) {
    const unsigned long row = b / l.grid.x;
    runtime.block = {(unsigned)(b % l.grid.x), (unsigned)(row % l.grid.y), (unsigned)(row / l.grid.y)};
    reversed = b & 1;
    recorder.begin_block(window);
    run_block();
  }
}
void run_grid(const Launch &l) {
  recorder.begin(l, threads);
  if (!l.windows) run_window(l, 0, (unsigned long)l.grid.x * l.grid.y * l.grid.z, 0);
  for (int w = 0; l.windows && w < l.window_count; w++) run_window(l, l.windows[w].first, l.windows[w].count, w);
  recorder.end();
  if (message[0])  // the threads are somewhere in the kernel, so the next launch starts new ones
    for (Fiber &f : fibers) f.started = false;
}
}  // namespace

extern "C" Runtime *emulation_runtime_of() {
  runtime.access = on_access;
  runtime.barrier = on_barrier;
  runtime.exchange = on_exchange;
  return &runtime;
}
// Run a launch; return the first error, or "".
extern "C" const char *emulation_run(Launch *l) {
  current = l;
  if (!prepare(*l)) return "the kernel cannot be prepared: there is no memory for the stacks of its threads";
  run_grid(*l);
  return message;
}

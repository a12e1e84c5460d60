// Runs CUDA kernels as plain C++, one block after another, and checks accesses to shared memory.
//
// The threads of a block are fibers: each runs until it reaches __syncthreads or a shuffle, then the next one continues.
// Shared arrays record which threads accessed each element since the last __syncthreads. If two threads accessed an
// element and one of them wrote to it, that is a data race.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ucontext.h>
#include <utility>
#include <vector>
#undef NAN
#undef INFINITY
#define __global__
#define __device__
#define __launch_bounds__(n)

struct dim { int x; };
static dim threadIdx, blockIdx, blockDim, gridDim;

namespace emulation {
enum State { RUNNING, AT_BARRIER, AT_SHUFFLE, DONE };
struct Fiber {
  ucontext_t context;
  State state;
  unsigned shuffles;
  std::vector<char> stack;
};
static std::vector<Fiber> fibers;
static ucontext_t scheduler;
static unsigned long long slots[1024][2];
static long epoch;
static void (*body)(void *);
static void *body_data;
static char message[400];

inline void fail(const char *text) {
  if (!message[0]) snprintf(message, sizeof message, "%s", text);
}
inline void wait(State why) {
  Fiber &f = fibers[threadIdx.x];
  f.state = why;
  swapcontext(&f.context, &scheduler);
}
static void start() {
  body(body_data);
  Fiber &f = fibers[threadIdx.x];
  f.state = DONE;
  swapcontext(&f.context, &scheduler);
}
static void run_block(int order) {
  const int n = blockDim.x;
  for (int t = 0; t < n; t++) {
    Fiber &f = fibers[t];
    f.state = RUNNING;
    f.shuffles = 0;
    f.stack.resize(96 * 1024);
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.data();
    f.context.uc_stack.ss_size = f.stack.size();
    f.context.uc_link = nullptr;
    makecontext(&f.context, start, 0);
  }
  for (;;) {
    for (int k = 0; k < n; k++) {
      const int t = order ? n - 1 - k : k;
      if (fibers[t].state == DONE) continue;
      threadIdx.x = t;
      swapcontext(&scheduler, &fibers[t].context);
    }
    const State first = fibers[0].state;
    for (int t = 1; t < n; t++)
      if (fibers[t].state != first) return fail("threads of one block reach different barriers");
    if (first == DONE) return;
    if (first == AT_BARRIER) epoch++;
  }
}
static void run_grid(int grid, int block, void (*f)(void *), void *data) {
  gridDim.x = grid;
  blockDim.x = block;
  body = f;
  body_data = data;
  message[0] = 0;
  if ((int)fibers.size() < block) fibers.resize(block);
  for (int b = 0; b < grid && !message[0]; b++) {
    blockIdx.x = b;
    epoch += 2;
    run_block(b & 1);
  }
}

template <class T, int N> struct Shared {
  struct Touch { long wrote_at, read_at; int writer, reader; };
  const char *name;
  T data[N];
  Touch touch[N];
  explicit Shared(const char *n) : name(n) { memset(touch, 0xff, sizeof touch); }
  struct Element {
    Shared &array;
    long at;
    operator T() const { return array.read(at); }
    Element &operator=(T v) { array.write(at, v); return *this; }
    Element &operator=(const Element &other) { return *this = (T)other; }
  };
  Element operator[](long at) { return {*this, at}; }
  void race(long at, int other, const char *what) {
    char text[300];
    snprintf(text, sizeof text, "race on %s[%ld]: thread %d %s what thread %d accessed, without a barrier between", name, at,
             threadIdx.x, what, other);
    fail(text);
  }
  bool outside(long at) {
    if (at >= 0 && at < N) return false;
    fail("shared array accessed out of bounds");
    return true;
  }
  T read(long at) {
    if (outside(at)) return T();
    Touch &t = touch[at];
    if (t.wrote_at == epoch && t.writer != threadIdx.x) race(at, t.writer, "reads");
    // Only one reader is recorded; a second one is recorded as -2, so that any later writer differs from it.
    t.reader = t.read_at == epoch && t.reader != threadIdx.x ? -2 : threadIdx.x;
    t.read_at = epoch;
    return data[at];
  }
  void write(long at, T v) {
    if (outside(at)) return;
    Touch &t = touch[at];
    // Threads that write the same value do not conflict.
    const bool same = memcmp(&data[at], &v, sizeof v) == 0;
    if (t.wrote_at == epoch && t.writer != threadIdx.x && !same) race(at, t.writer, "writes");
    if (t.read_at == epoch && t.reader != threadIdx.x && !same) race(at, t.reader, "writes");
    t.wrote_at = epoch;
    t.writer = threadIdx.x;
    data[at] = v;
  }
};

template <class... A, size_t... I> void call(void (*f)(A...), void **arguments, std::index_sequence<I...>) {
  f((A)arguments[I]...);
}
template <class... A> struct Launch {
  void (*f)(A...);
  void **arguments;
};
template <class... A> const char *launch(void (*f)(A...), void **arguments, int grid, int block) {
  Launch<A...> l{f, arguments};
  run_grid(grid, block, [](void *p) {
    auto *l = (Launch<A...> *)p;
    call(l->f, l->arguments, std::index_sequence_for<A...>());
  }, &l);
  return message;
}
}  // namespace emulation

inline void __syncthreads() { emulation::wait(emulation::AT_BARRIER); }
template <class T> T __shfl_xor_sync(unsigned, T value, int mask) {
  emulation::Fiber &f = emulation::fibers[threadIdx.x];
  const int half = f.shuffles++ & 1, other = threadIdx.x ^ mask;
  memcpy(&emulation::slots[threadIdx.x][half], &value, sizeof value);
  emulation::wait(emulation::AT_SHUFFLE);
  T out = value;
  if (other < blockDim.x) memcpy(&out, &emulation::slots[other][half], sizeof out);
  return out;
}
template <class T> T atomicAdd(T *address, T value) { T old = *address; *address = old + value; return old; }
template <class T> T atomicCAS(T *address, T wanted, T value) {
  T old = *address;
  if (old == wanted) *address = value;
  return old;
}

template <class To, class From> To emulation_bits(From x) { To y; memcpy(&y, &x, sizeof y); return y; }
inline float __uint_as_float(unsigned x) { return emulation_bits<float>(x); }
inline float __int_as_float(int x) { return emulation_bits<float>(x); }
inline unsigned __float_as_uint(float x) { return emulation_bits<unsigned>(x); }
inline double __longlong_as_double(long long x) { return emulation_bits<double>(x); }
inline long long __double_as_longlong(double x) { return emulation_bits<long long>(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }

struct __nv_bfloat16 { unsigned short bits; };
inline float __bfloat162float(__nv_bfloat16 x) { return __uint_as_float((unsigned)x.bits << 16); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  const unsigned u = __float_as_uint(x);
  return {(unsigned short)(x != x ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16)};
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short x) { return {x}; }

// g++ before version 13 has no _Float16, so halves are converted explicitly.
inline float half_value(unsigned short h) {
  const int e = h >> 10 & 31, m = h & 1023;
  const float size = e == 31 ? (m ? __int_as_float(0x7fc00000) : __int_as_float(0x7f800000))
                     : e ? std::ldexp(1024.f + m, e - 25) : std::ldexp((float)m, -24);
  return h >> 15 ? -size : size;
}
inline unsigned short half_bits(double x) {
  const unsigned sign = std::signbit(x) ? 0x8000 : 0;
  const double size = std::fabs(x);
  if (x != x) return 0x7fff;
  if (size >= 65520.) return sign | 0x7c00;
  int e = 0;
  std::frexp(size, &e);
  const int step = e - 11 < -24 ? -24 : e - 11;
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(size, -step)), step);
  if (rounded == 0) return sign;
  std::frexp(rounded, &e);
  if (e - 11 < -24) return sign | (unsigned)std::ldexp(rounded, 24);
  return sign | ((unsigned)(e + 14) << 10) + ((unsigned)std::ldexp(rounded, 11 - e) & 1023);
}
struct __half {
  unsigned short bits;
  __half() = default;
  explicit __half(float x) : bits(half_bits(x)) {}
  operator float() const { return half_value(bits); }
};
inline float __half2float(__half x) { return x; }
inline __half __float2half_rn(float x) { return __half(x); }
inline __half __double2half(double x) { __half h; h.bits = half_bits(x); return h; }
inline unsigned short __half_as_ushort(__half x) { return x.bits; }
inline __half __ushort_as_half(unsigned short x) { __half h; h.bits = x; return h; }

// The preamble declares these types with the widths of CUDA.
#define int8_t cuda_int8_t
#define int16_t cuda_int16_t
#define int32_t cuda_int32_t
#define int64_t cuda_int64_t
#define uint8_t cuda_uint8_t
#define uint16_t cuda_uint16_t
#define uint32_t cuda_uint32_t
#define uint64_t cuda_uint64_t

// Lets g++ compile CUDA kernels as functions of one thread, which the runtime of the emulator runs as fibers.
//
// g++ instruments each access to memory by a call, as it does for its thread sanitizer; here these calls lead to the
// runtime, which checks and counts them. Functions that are part of the emulation are not instrumented.
#include <cmath>
#include <cstdint>
#include <cstring>
#undef NAN
#undef INFINITY
#define HLOGYM_EMULATED 1
#define __global__
#define __device__
#define __host__
#define __shared__ static __constinit
#define __constant__ static const
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __align__(n) alignas(n)
#define __launch_bounds__(...)
#define __builtin_assume(x)
#define EMULATION __attribute__((no_sanitize("thread"), noinline))
#define EMULATION_TEMPLATE template <class T> EMULATION inline
#define HERE __builtin_return_address(0)

static emulation::Runtime *emulation_runtime;
extern "C" {
__attribute__((visibility("default"))) EMULATION void emulation_connect(emulation::Runtime *r) { emulation_runtime = r; }
#define EMULATION_ACCESS(name, size, kind) \
  EMULATION void name(void *p) { emulation_runtime->access(p, size, emulation::kind, HERE); }
#define EMULATION_ACCESSES(size)                           \
  EMULATION_ACCESS(__tsan_read##size, size, READ)          \
  EMULATION_ACCESS(__tsan_write##size, size, WRITE)        \
  EMULATION_ACCESS(__tsan_unaligned_read##size, size, READ) \
  EMULATION_ACCESS(__tsan_unaligned_write##size, size, WRITE)
EMULATION_ACCESSES(1)
EMULATION_ACCESSES(2)
EMULATION_ACCESSES(4)
EMULATION_ACCESSES(8)
EMULATION_ACCESSES(16)
EMULATION void __tsan_read_range(void *p, unsigned long n) { emulation_runtime->access(p, n, emulation::READ, HERE); }
EMULATION void __tsan_write_range(void *p, unsigned long n) { emulation_runtime->access(p, n, emulation::WRITE, HERE); }
EMULATION void __tsan_init() {}
}

// An address that becomes a pointer of the type of the kernel's parameter.
struct emulation_argument {
  void *address;
  template <class T> operator T *() const { return (T *)address; }
};

// ---- indices: they do not change while a thread runs, so calls of these functions may be merged

EMULATION __attribute__((const)) inline unsigned emulation_index(int which) {
  const unsigned *all = &emulation_runtime->thread.x;
  return all[which];
}
struct emulation_dim {
  template <int First> struct of {
    struct X { operator unsigned() const { return emulation_index(First); } };
    struct Y { operator unsigned() const { return emulation_index(First + 1); } };
    struct Z { operator unsigned() const { return emulation_index(First + 2); } };
    [[no_unique_address]] X x;
    [[no_unique_address]] Y y;
    [[no_unique_address]] Z z;
  };
};
static const emulation_dim::of<0> threadIdx;
static const emulation_dim::of<3> blockIdx;
static const emulation_dim::of<6> blockDim;
static const emulation_dim::of<9> gridDim;
static const int warpSize = 32;
EMULATION inline char *emulation_dynamic_shared() { return emulation_runtime->dynamic_shared; }

// ---- barriers and operations of warps

EMULATION inline void __syncthreads() { emulation_runtime->barrier(0); }
EMULATION inline int __syncthreads_count(int p) { return emulation_runtime->barrier(p != 0); }
EMULATION inline int __syncthreads_or(int p) { return emulation_runtime->barrier(p != 0) > 0; }
EMULATION inline int __syncthreads_and(int p) { return emulation_runtime->barrier(p == 0) == 0; }
EMULATION inline void __syncwarp(unsigned mask = 0xffffffffu) {
  emulation_runtime->exchange(emulation::SYNC_WARP, mask, nullptr, 0, HERE);
}
EMULATION inline unsigned __activemask() {
  return emulation_runtime->exchange(emulation::ACTIVE_MASK, 0xffffffffu, nullptr, 0, HERE)->mask;
}
EMULATION_TEMPLATE T emulation_shuffle(unsigned mask, T value, unsigned source, const void *position) {
  static_assert(sizeof(T) <= 8, "values of up to 8 bytes can be shuffled");
  struct Sent { unsigned source; T value; } sent = {source, value};
  const emulation::Exchange *all =
      emulation_runtime->exchange(emulation::SHUFFLE, mask, &sent, sizeof sent, position);
  memcpy(&sent, all->values[source & 31], sizeof sent);
  return sent.value;
}
EMULATION_TEMPLATE T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const unsigned lane = emulation_runtime->lane, first = lane & ~(width - 1);
  return emulation_shuffle(mask, value, first + (source & (width - 1)), HERE);
}
EMULATION_TEMPLATE T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  const unsigned lane = emulation_runtime->lane, other = lane ^ lanes;
  return emulation_shuffle(mask, value, other > (lane | (width - 1)) ? lane : other, HERE);
}
EMULATION_TEMPLATE T __shfl_up_sync(unsigned mask, T value, unsigned lanes, int width = 32) {
  const unsigned lane = emulation_runtime->lane, place = lane & (width - 1);
  return emulation_shuffle(mask, value, place < lanes ? lane : lane - lanes, HERE);
}
EMULATION_TEMPLATE T __shfl_down_sync(unsigned mask, T value, unsigned lanes, int width = 32) {
  const unsigned lane = emulation_runtime->lane, place = lane & (width - 1);
  return emulation_shuffle(mask, value, place + lanes >= (unsigned)width ? lane : lane + lanes, HERE);
}
EMULATION inline unsigned emulation_vote(unsigned mask, int predicate, const void *position) {
  const char is_true = predicate != 0;
  const emulation::Exchange *all = emulation_runtime->exchange(emulation::VOTE, mask, &is_true, 1, position);
  unsigned out = 0;
  for (int k = 0; k < 32; k++)
    if (all->mask >> k & 1 && all->values[k][0]) out |= 1u << k;
  return out;
}
EMULATION inline unsigned __ballot_sync(unsigned mask, int p) { return emulation_vote(mask, p, HERE); }
EMULATION inline int __any_sync(unsigned mask, int p) { return emulation_vote(mask, p, HERE) != 0; }
EMULATION inline int __all_sync(unsigned mask, int p) { return emulation_vote(mask, !p, HERE) == 0; }
EMULATION_TEMPLATE unsigned __match_any_sync(unsigned mask, T value) {
  const emulation::Exchange *all = emulation_runtime->exchange(emulation::MATCH, mask, &value, sizeof value, HERE);
  unsigned out = 0;
  for (int k = 0; k < 32; k++)
    if (all->mask >> k & 1 && !memcmp(all->values[k], &value, sizeof value)) out |= 1u << k;
  return out;
}
#define EMULATION_REDUCTION(name, expression)                                                                     \
  EMULATION_TEMPLATE T name(unsigned mask, T value) {                                                             \
    const emulation::Exchange *all = emulation_runtime->exchange(emulation::VOTE, mask, &value, sizeof value, HERE); \
    bool first = true;                                                                                            \
    T a = value, b;                                                                                               \
    for (int k = 0; k < 32; k++)                                                                                  \
      if (all->mask >> k & 1) {                                                                                   \
        memcpy(&b, all->values[k], sizeof b);                                                                     \
        a = first ? b : (T)(expression);                                                                          \
        first = false;                                                                                            \
      }                                                                                                           \
    return a;                                                                                                     \
  }
EMULATION_REDUCTION(__reduce_add_sync, a + b)
EMULATION_REDUCTION(__reduce_min_sync, b < a ? b : a)
EMULATION_REDUCTION(__reduce_max_sync, a < b ? b : a)
EMULATION_REDUCTION(__reduce_and_sync, a & b)
EMULATION_REDUCTION(__reduce_or_sync, a | b)
EMULATION_REDUCTION(__reduce_xor_sync, a ^ b)

// Threads run one at a time and do not lose control inside of an atomic operation.
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline void __nanosleep(unsigned) {}

template <class T> struct emulation_same { typedef T type; };
#define EMULATION_ATOMIC(name, expression)                                                        \
  EMULATION_TEMPLATE T name(T *address, typename emulation_same<T>::type value) {                 \
    emulation_runtime->access(address, sizeof(T), emulation::ATOMIC, HERE);                       \
    const T old = *address;                                                                       \
    *address = (T)(expression);                                                                   \
    return old;                                                                                   \
  }
EMULATION_ATOMIC(atomicAdd, old + value)
EMULATION_ATOMIC(atomicSub, old - value)
EMULATION_ATOMIC(atomicExch, value)
EMULATION_ATOMIC(atomicMin, value < old ? value : old)
EMULATION_ATOMIC(atomicMax, old < value ? value : old)
EMULATION_ATOMIC(atomicAnd, old & value)
EMULATION_ATOMIC(atomicOr, old | value)
EMULATION_ATOMIC(atomicXor, old ^ value)
EMULATION_ATOMIC(atomicInc, old >= value ? 0 : old + 1)
EMULATION_ATOMIC(atomicDec, old == 0 || old > value ? value : old - 1)
EMULATION_TEMPLATE T atomicCAS(T *address, typename emulation_same<T>::type wanted,
                               typename emulation_same<T>::type value) {
  emulation_runtime->access(address, sizeof(T), emulation::ATOMIC, HERE);
  const T old = *address;
  if (!memcmp(&old, &wanted, sizeof old)) *address = value;
  return old;
}

// ---- loads and stores with hints for the caches

template <class T> T __ldg(const T *p) { return *p; }
template <class T> T __ldcs(const T *p) { return *p; }
template <class T> T __ldcg(const T *p) { return *p; }
template <class T> T __ldca(const T *p) { return *p; }
template <class T> void __stcs(T *p, typename emulation_same<T>::type v) { *p = v; }
template <class T> void __stcg(T *p, typename emulation_same<T>::type v) { *p = v; }
template <class T> void __stwt(T *p, typename emulation_same<T>::type v) { *p = v; }

// ---- vector types: they are assigned as a whole, so that one access of a kernel is one access here

#define EMULATION_ASSIGNED(name)                                            \
  __attribute__((always_inline)) name &operator=(const name &other) {       \
    struct Bytes { char bytes[sizeof(name)]; } all;                         \
    __builtin_memcpy(&all, &other, sizeof all);                             \
    __builtin_memcpy(this, &all, sizeof all);                               \
    return *this;                                                           \
  }
#define EMULATION_VECTORS(T, base)                                                                      \
  struct base##1 { T x; };                                                                              \
  struct alignas(2 * sizeof(T)) base##2 { T x, y; EMULATION_ASSIGNED(base##2) };                        \
  struct base##3 { T x, y, z; };                                                                        \
  struct alignas(sizeof(T) < 4 ? 4 * sizeof(T) : 16) base##4 { T x, y, z, w; EMULATION_ASSIGNED(base##4) }; \
  inline base##2 make_##base##2(T x, T y) { return base##2{x, y}; }                                     \
  inline base##3 make_##base##3(T x, T y, T z) { return base##3{x, y, z}; }                             \
  inline base##4 make_##base##4(T x, T y, T z, T w) { return base##4{x, y, z, w}; }
EMULATION_VECTORS(float, float)
EMULATION_VECTORS(double, double)
EMULATION_VECTORS(signed char, char)
EMULATION_VECTORS(unsigned char, uchar)
EMULATION_VECTORS(short, short)
EMULATION_VECTORS(unsigned short, ushort)
EMULATION_VECTORS(int, int)
EMULATION_VECTORS(unsigned, uint)
EMULATION_VECTORS(long long, longlong)
EMULATION_VECTORS(unsigned long long, ulonglong)

// ---- bits and arithmetic

template <class To, class From> inline To emulation_bits(From x) { To y; memcpy(&y, &x, sizeof y); return y; }
inline float __uint_as_float(unsigned x) { return emulation_bits<float>(x); }
inline float __int_as_float(int x) { return emulation_bits<float>(x); }
inline unsigned __float_as_uint(float x) { return emulation_bits<unsigned>(x); }
inline int __float_as_int(float x) { return emulation_bits<int>(x); }
inline double __longlong_as_double(long long x) { return emulation_bits<double>(x); }
inline long long __double_as_longlong(double x) { return emulation_bits<long long>(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
inline int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned n) {
  return (unsigned)(((unsigned long long)high << 32 | low) << (n & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned n) {
  return (unsigned)(((unsigned long long)high << 32 | low) >> (n & 31));
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const unsigned long long bytes = (unsigned long long)b << 32 | a;
  unsigned out = 0;
  for (int k = 0; k < 4; k++) {
    const unsigned s = selector >> 4 * k & 15, byte = bytes >> 8 * (s & 7) & 255;
    out |= (s & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * k;
  }
  return out;
}
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __frcp_rn(float a) { return 1 / a; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __saturatef(float x) { return x > 0 ? x < 1 ? x : 1 : 0; }
inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline double rsqrt(double x) { return 1 / sqrt(x); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
template <class T> T min(T a, T b) { return b < a ? b : a; }
template <class T> T max(T a, T b) { return a < b ? b : a; }

// ---- types of 16 bits

struct __nv_bfloat16 { unsigned short bits; };
inline float __bfloat162float(__nv_bfloat16 x) { return __uint_as_float((unsigned)x.bits << 16); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  const unsigned u = __float_as_uint(x);
  return {(unsigned short)(x != x ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16)};
}
inline __nv_bfloat16 __float2bfloat16(float x) { return __float2bfloat16_rn(x); }
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
inline __half __float2half(float x) { return __half(x); }
inline __half __double2half(double x) { __half h; h.bits = half_bits(x); return h; }
inline unsigned short __half_as_ushort(__half x) { return x.bits; }
inline __half __ushort_as_half(unsigned short x) { __half h; h.bits = x; return h; }

struct alignas(4) __half2 { __half x, y; EMULATION_ASSIGNED(__half2) };
struct alignas(4) __nv_bfloat162 { __nv_bfloat16 x, y; EMULATION_ASSIGNED(__nv_bfloat162) };
typedef __half half;
typedef __half2 half2;
inline __half2 __halves2half2(__half x, __half y) { return __half2{x, y}; }
inline __half __low2half(__half2 v) { return v.x; }
inline __half __high2half(__half2 v) { return v.y; }
inline __half2 __floats2half2_rn(float x, float y) { return __half2{__half(x), __half(y)}; }
inline __half2 __float22half2_rn(float2 v) { return __floats2half2_rn(v.x, v.y); }
inline float2 __half22float2(__half2 v) { return float2{(float)v.x, (float)v.y}; }
inline float __low2float(__half2 v) { return v.x; }
inline float __high2float(__half2 v) { return v.y; }
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return __nv_bfloat162{x, y}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return __nv_bfloat162{__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
inline __nv_bfloat162 __float22bfloat162_rn(float2 v) { return __floats2bfloat162_rn(v.x, v.y); }
inline float2 __bfloat1622float2(__nv_bfloat162 v) { return float2{__bfloat162float(v.x), __bfloat162float(v.y)}; }
inline float __low2float(__nv_bfloat162 v) { return __bfloat162float(v.x); }
inline float __high2float(__nv_bfloat162 v) { return __bfloat162float(v.y); }
#define EMULATION_PACKED(name, expression)                                                        \
  inline __half2 name(__half2 a_, __half2 b_) {                                                   \
    const float2 a = __half22float2(a_), b = __half22float2(b_);                                  \
    auto f = [](float a, float b) { return (float)(expression); };                                \
    return __floats2half2_rn(f(a.x, b.x), f(a.y, b.y));                                           \
  }                                                                                               \
  inline __nv_bfloat162 name(__nv_bfloat162 a_, __nv_bfloat162 b_) {                              \
    const float2 a = __bfloat1622float2(a_), b = __bfloat1622float2(b_);                          \
    auto f = [](float a, float b) { return (float)(expression); };                                \
    return __floats2bfloat162_rn(f(a.x, b.x), f(a.y, b.y));                                       \
  }
EMULATION_PACKED(__hadd2, a + b)
EMULATION_PACKED(__hsub2, a - b)
EMULATION_PACKED(__hmul2, a * b)
EMULATION_PACKED(__hmax2, a != a ? b : b != b ? a : a < b ? b : a)
EMULATION_PACKED(__hmin2, a != a ? b : b != b ? a : b < a ? b : a)

// The preamble declares these types with the widths of CUDA.
#define int8_t cuda_int8_t
#define int16_t cuda_int16_t
#define int32_t cuda_int32_t
#define int64_t cuda_int64_t
#define uint8_t cuda_uint8_t
#define uint16_t cuda_uint16_t
#define uint32_t cuda_uint32_t
#define uint64_t cuda_uint64_t

// Declarations for the generated CUDA kernels.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef __nv_bfloat16 bfloat16_t;
typedef __half half_t;
typedef uint64_t complex64_t;
#define NAN __int_as_float(0x7fc00000)
#define INFINITY __int_as_float(0x7f800000)
#define CLZ32(x) __clz((int)(x))
#define CLZ64(x) __clzll((long long)(x))
#define POPCOUNT32(x) __popc(x)
#define POPCOUNT64(x) __popcll(x)

__device__ inline float BITS_TO_F32(uint32_t x) { return __uint_as_float(x); }
__device__ inline uint32_t F32_TO_BITS(float x) { return __float_as_uint(x); }
__device__ inline double BITS_TO_F64(uint64_t x) { return __longlong_as_double((long long)x); }
__device__ inline uint64_t F64_TO_BITS(double x) { return (uint64_t)__double_as_longlong(x); }
// Maximum and minimum that propagate NaN, as in HLO.
__device__ inline float maximum_f32(float x, float y) { return y != y ? y : y > x ? y : x; }
__device__ inline float minimum_f32(float x, float y) { return y != y ? y : y < x ? y : x; }
__device__ inline double maximum_f64(double x, double y) { return y != y ? y : y > x ? y : x; }
__device__ inline double minimum_f64(double x, double y) { return y != y ? y : y < x ? y : x; }
// Integers in the total order of the floats: -NaN < -inf < ... < -0 < 0 < ... < inf < NaN.
__device__ inline int32_t TOTAL_ORDER_F32(float x) {
  int32_t bits = (int32_t)F32_TO_BITS(x);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}
__device__ inline int64_t TOTAL_ORDER_F64(double x) {
  int64_t bits = (int64_t)F64_TO_BITS(x);
  return bits ^ ((bits >> 63) & 0x7fffffffffffffffLL);
}
__device__ inline float BITS_TO_BF16(uint16_t x) { return __bfloat162float(__ushort_as_bfloat16(x)); }
/* The payload of a NaN survives a round trip through float; rounding a wider number gives the canonical NaN. */
__device__ inline uint16_t BF16_TO_BITS(float x) {
  const uint32_t high = F32_TO_BITS(x) >> 16;
  return (uint16_t)(x != x ? high | (uint32_t)((high & 0x7fu) == 0) << 6 : __bfloat16_as_ushort(__float2bfloat16_rn(x)));
}
__device__ inline float ROUND_BF16(float x) { return __bfloat162float(__float2bfloat16_rn(x)); }
__device__ inline float BITS_TO_F16(uint16_t x) { return __half2float(__ushort_as_half(x)); }
/* A NaN keeps its sign, by which total order places it. */
__device__ inline uint16_t F16_TO_BITS(float x) {
  return (uint16_t)(x != x ? (F32_TO_BITS(x) >> 16 & 0x8000u) | 0x7e00u : __half_as_ushort(__float2half_rn(x)));
}
__device__ inline float ROUND_F16(float x) { return __half2float(__float2half_rn(x)); }
__device__ inline float ROUND_F64_TO_F16(double x) { return __half2float(__double2half(x)); }

__device__ inline float tanh_f32(float x) { return tanhf(x); }

struct combine_add { template <class T> __device__ T operator()(T a, T b) const { return a + b; } };
struct combine_multiply { template <class T> __device__ T operator()(T a, T b) const { return a * b; } };
struct combine_and { template <class T> __device__ T operator()(T a, T b) const { return a & b; } };
struct combine_or { template <class T> __device__ T operator()(T a, T b) const { return a | b; } };
struct combine_maximum {
  template <class T> __device__ T operator()(T a, T b) const { return (a >= b) | (a != a) ? a : b; }
};
struct combine_minimum {
  template <class T> __device__ T operator()(T a, T b) const { return (a <= b) | (a != a) ? a : b; }
};

// Elements of an array that one access reads or writes.
template <class T, int N> struct alignas(sizeof(T) * N) wide {
  T at[N];
#ifdef HLOGYM_EMULATED
  EMULATION_ASSIGNED(wide)
#endif
};
template <int N, class T> __device__ inline wide<T, N> load_wide(const T *from) {
  wide<T, N> value;
  value = *(const wide<T, N> *)from;
  return value;
}
template <int N, class T> __device__ inline void store_wide(T *to, const wide<T, N> &value) {
  *(wide<T, N> *)to = value;
}

// Reduce one value per lane over groups of N adjacent lanes of a warp; every lane gets the result of its group.
template <int N, class T, class F> __device__ T lanes_reduce(T value, F combine) {
#pragma unroll
  for (int step = N / 2; step > 0; step >>= 1) {
    T other = __shfl_xor_sync(0xffffffffu, value, step);
    value = combine(value, other);
  }
  return value;
}

// Reduce one value per lane over the lanes of a group of N whose number has the same remainder by TEAMS; all get it.
template <int TEAMS, int N, class T, class F> __device__ T strided_lanes_reduce(T value, F combine) {
#pragma unroll
  for (int step = N / 2; step >= TEAMS; step >>= 1) {
    T other = __shfl_xor_sync(0xffffffffu, value, step);
    value = combine(value, other);
  }
  return value;
}

// Reduce one value per thread over the block; every thread gets the result.
template <class T, class F> __device__ T block_reduce(T value, F combine, T identity) {
  __shared__ T partial[32];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = (blockDim.x + 31) >> 5;
  for (int step = 16; step > 0; step >>= 1) {
    T other = __shfl_xor_sync(0xffffffffu, value, step);
    value = combine(value, other);
  }
  if (lane == 0) partial[warp] = value;
  __syncthreads();
  value = lane < warps ? partial[lane] : identity;
  for (int step = 16; step > 0; step >>= 1) {
    T other = __shfl_xor_sync(0xffffffffu, value, step);
    value = combine(value, other);
  }
  __syncthreads();
  return value;
}

// *address = combine(*address, value), atomically.
template <class T, class F> __device__ void atomic_update(T *address, T value, F combine) {
  if constexpr (sizeof(T) == 2) {
    unsigned short *raw = (unsigned short *)address, seen = *raw, before;
    do {
      before = seen;
      T next = combine(*(T *)&before, value);
      seen = atomicCAS(raw, before, *(unsigned short *)&next);
    } while (seen != before);
  } else if constexpr (sizeof(T) == 4) {
    unsigned int *raw = (unsigned int *)address, seen = *raw, before;
    do {
      before = seen;
      T next = combine(*(T *)&before, value);
      seen = atomicCAS(raw, before, *(unsigned int *)&next);
    } while (seen != before);
  } else {
    unsigned long long *raw = (unsigned long long *)address, seen = *raw, before;
    do {
      before = seen;
      T next = combine(*(T *)&before, value);
      seen = atomicCAS(raw, before, *(unsigned long long *)&next);
    } while (seen != before);
  }
}
template <class F> __device__ void atomic_update(bfloat16_t *address, float value, F combine) {
  unsigned short *raw = (unsigned short *)address, seen = *raw, before;
  do {
    before = seen;
    seen = atomicCAS(raw, before, BF16_TO_BITS(combine(BITS_TO_BF16(before), value)));
  } while (seen != before);
}
template <class F> __device__ void atomic_update(half_t *address, float value, F combine) {
  unsigned short *raw = (unsigned short *)address, seen = *raw, before;
  do {
    before = seen;
    seen = atomicCAS(raw, before, F16_TO_BITS(combine(BITS_TO_F16(before), value)));
  } while (seen != before);
}
__device__ inline void atomic_update(float *address, float value, combine_add) { atomicAdd(address, value); }
__device__ inline void atomic_update(double *address, double value, combine_add) { atomicAdd(address, value); }
__device__ inline void atomic_update(int *address, int value, combine_add) { atomicAdd(address, value); }

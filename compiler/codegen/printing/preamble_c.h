/* Declarations for the generated CPU kernels. System headers are avoided: they take longer to compile than the kernels. */
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef uint16_t bfloat16_t, half_t;
/* Both parts of a complex number. Arrays of NumPy are aligned for one of them. */
typedef uint64_t complex64_t __attribute__((aligned(4)));
/* Two adjacent elements, the first in the lower half: all processors of the backend are little-endian. */
typedef uint32_t __attribute__((may_alias, aligned(2))) bfloat16_pair_t;
#define bool _Bool
/* A call in a vector loop must be inlined: the limits of the compiler leave it out of large functions. */
#define INLINE static inline __attribute__((always_inline))
#define NAN __builtin_nanf("")
#define INFINITY __builtin_inff()
/* Defined by the runtime (compiler/backends/cpu/runtime.c). */
void hlogym_parallel_brief(void (*task)(void *context, int64_t first, int64_t last), void *context, int64_t count,
                           int64_t grain);
void hlogym_parallel(void (*task)(void *context, int64_t first, int64_t last), void *context, int64_t count,
                     int64_t grain);
int hlogym_interrupted(void);
/* The width of the vectors that the loops of a function use, where the processor has a choice. */
#ifdef __AVX512F__
#define VECTOR_BITS(n) __attribute__((target("prefer-vector-width=" #n)))
#else
#define VECTOR_BITS(n)
#endif
/* Otherwise gcc loads a vector again for each of a few uses, as an operand in memory. */
#ifdef __AVX__
#define IN_REGISTER(v) __asm__("" : "+v"(v))
#else
#define IN_REGISTER(v)
#endif
/* A number that the compiler does not know. */
INLINE int64_t hlogym_opaque(int64_t x) {
  __asm__("" : "+r"(x));
  return x;
}
/* Write the positions of the flags that are not zero to `list`, then 16 zeros, and return their number. */
static inline int32_t hlogym_flagged(const int32_t *flags, int32_t count, int32_t *list) {
  int32_t found = 0, at = 0;
#if defined(__AVX512F__) && !defined(__clang__)
  typedef int32_t vector __attribute__((vector_size(64)));
  typedef vector unaligned __attribute__((aligned(4)));
  vector positions = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  for (; at + 16 <= count; at += 16, positions += 16) {
    const vector flag = *(const unaligned *)(flags + at);
    const uint16_t set = __builtin_ia32_ptestmd512(flag, flag, 0xffff);
    *(unaligned *)(list + found) = __builtin_ia32_compresssi512_mask(positions, (vector){0}, set);
    found += __builtin_popcount(set);
  }
#elif defined(__AVX2__)
  typedef int32_t vector __attribute__((vector_size(32)));
  typedef float floats __attribute__((vector_size(32)));
  typedef vector unaligned __attribute__((aligned(4)));
  for (; at + 8 <= count; at += 8)
    for (int set = __builtin_ia32_movmskps256((floats)(*(const unaligned *)(flags + at) != 0)); set; set &= set - 1)
      list[found++] = at + __builtin_ctz(set);
#endif
  for (; at < count; at++) {
    list[found] = at;
    found += flags[at] != 0;
  }
  for (int k = 0; k < 16; k++) list[found + k] = 0;
  return found;
}

/* The simd attribute declares the vector variants in glibc's libmvec. */
#define VECTOR_MATH(name) \
  __attribute__((simd("notinbranch"), const, nothrow)) float name##f(float); \
  __attribute__((simd("notinbranch"), const, nothrow)) double name(double);
#define VECTOR_MATH2(name) \
  __attribute__((simd("notinbranch"), const, nothrow)) float name##f(float, float); \
  __attribute__((simd("notinbranch"), const, nothrow)) double name(double, double);
#define SCALAR_MATH(name) float name##f(float); double name(double);
#define SCALAR_MATH2(name) float name##f(float, float); double name(double, double);
SCALAR_MATH(ceil) SCALAR_MATH(fabs) SCALAR_MATH(floor) SCALAR_MATH(rint) SCALAR_MATH(round) SCALAR_MATH(sqrt)
SCALAR_MATH2(fmod)
VECTOR_MATH(exp) VECTOR_MATH(log) VECTOR_MATH(sin) VECTOR_MATH(cos) VECTOR_MATH2(pow)
#ifdef HLOGYM_LIBMVEC_FULL
VECTOR_MATH(acos) VECTOR_MATH(acosh) VECTOR_MATH(asin) VECTOR_MATH(asinh) VECTOR_MATH(atanh) VECTOR_MATH(cbrt)
VECTOR_MATH(cosh) VECTOR_MATH(erf) VECTOR_MATH(expm1) VECTOR_MATH(log1p) VECTOR_MATH(sinh) VECTOR_MATH(tan)
VECTOR_MATH(tanh) VECTOR_MATH2(atan2)
#else
SCALAR_MATH(acos) SCALAR_MATH(acosh) SCALAR_MATH(asin) SCALAR_MATH(asinh) SCALAR_MATH(atanh) SCALAR_MATH(cbrt)
SCALAR_MATH(cosh) SCALAR_MATH(erf) SCALAR_MATH(expm1) SCALAR_MATH(log1p) SCALAR_MATH(sinh) SCALAR_MATH(tan)
SCALAR_MATH(tanh) SCALAR_MATH2(atan2)
#endif

INLINE float BITS_TO_F32(uint32_t x) { union { uint32_t u; float f; } v = {x}; return v.f; }
INLINE uint32_t F32_TO_BITS(float x) { union { float f; uint32_t u; } v = {x}; return v.u; }
INLINE double BITS_TO_F64(uint64_t x) { union { uint64_t u; double f; } v = {x}; return v.f; }
INLINE uint64_t F64_TO_BITS(double x) { union { double f; uint64_t u; } v = {x}; return v.u; }
/* Counts of bits. Vectors of integers have no instructions for them before AVX-512. */
#ifdef __AVX512CD__
#define CLZ32(x) __builtin_clz(x)
#else
/* The exponent of the highest bit. Without the bits that follow one, no number is rounded up to the next power of two. */
INLINE int32_t hlogym_clz32(uint32_t x) {
  const float highest = (float)(int32_t)(x & ~(x >> 1));
  const int32_t zeros = 158 - (int32_t)(F32_TO_BITS(highest) >> 23);
  return (int32_t)x < 0 ? 0 : zeros;
}
#define CLZ32(x) hlogym_clz32(x)
#endif
#ifdef __AVX512VPOPCNTDQ__
#define POPCOUNT32(x) __builtin_popcount(x)
#else
/* Sums of adjacent bits, then of adjacent groups of bits: without a product, from which gcc would make an instruction. */
INLINE uint32_t hlogym_popcount32(uint32_t x) {
  x -= x >> 1 & 0x55555555u;
  x = (x & 0x33333333u) + (x >> 2 & 0x33333333u);
  x = (x + (x >> 4)) & 0x0f0f0f0fu;
  x += x >> 8;
  return (x + (x >> 16)) & 0x3fu;
}
#define POPCOUNT32(x) hlogym_popcount32(x)
#endif
#define CLZ64(x) __builtin_clzll(x)
#define POPCOUNT64(x) __builtin_popcountll(x)
/* Integers in the total order of the floats: -NaN < -inf < ... < -0 < 0 < ... < inf < NaN. */
INLINE int32_t TOTAL_ORDER_F32(float x) {
  int32_t bits = (int32_t)F32_TO_BITS(x);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}
INLINE int64_t TOTAL_ORDER_F64(double x) {
  int64_t bits = (int64_t)F64_TO_BITS(x);
  return bits ^ ((bits >> 63) & 0x7fffffffffffffffLL);
}
INLINE float BITS_TO_BF16(uint16_t x) { return BITS_TO_F32((uint32_t)x << 16); }
/* The bits of a number that bf16 represents; the payload of a NaN survives. */
INLINE uint16_t BF16_BITS_OF(float x) { return (uint16_t)(F32_TO_BITS(x) >> 16); }
INLINE uint16_t BF16_TO_BITS(float x) {
  const uint32_t u = F32_TO_BITS(x), rounded = u + 0x7fffu + ((u >> 16) & 1u);
  return (uint16_t)((x != x ? u | 0x400000u : rounded) >> 16);
}
INLINE float ROUND_BF16(float x) {
  const uint32_t u = F32_TO_BITS(x), rounded = u + 0x7fffu + ((u >> 16) & 1u);
  return BITS_TO_F32((x != x ? u | 0x400000u : rounded) & 0xffff0000u);
}
/* f16 is converted by integer and float arithmetic, which vectorizes on every processor. _Float16 does not: gcc 12 converts
   it element by element on most processors, and on those with half-precision arithmetic (AVX512-FP16) it contracts rounded
   products and emits instructions that its assembler rejects. */
INLINE float BITS_TO_F16(uint16_t x) {
  const uint32_t sign = (uint32_t)(x & 0x8000u) << 16, size = (uint32_t)(x & 0x7fffu) << 13;
  /* The exponent biases differ by 112; a multiplication adjusts them, also for subnormal numbers. */
  const float finite = BITS_TO_F32(size) * 0x1p112f;
  return BITS_TO_F32(sign | (size >= 0x0f800000u ? size | 0x7f800000u : F32_TO_BITS(finite)));
}
/* Adding 2^13 times the power of two below a number and subtracting it again leaves 11 significant bits, rounded to even;
   below 2^-14, where f16 is subnormal, the spacing of numbers is constant. */
INLINE float ROUND_F16(float x) {
  const uint32_t bits = F32_TO_BITS(x), sign = bits & 0x80000000u, size = bits & 0x7fffffffu;
  const uint32_t power = size & 0x7f800000u, least = power < 0x38800000u ? 0x38800000u : power;
  const float step = BITS_TO_F32((least > 0x47800000u ? 0x47800000u : least) + (13u << 23));
  const float near = (BITS_TO_F32(size) + step) - step;
  const float inside = near > 65504.0f ? INFINITY : near;
  return x != x ? x : BITS_TO_F32(F32_TO_BITS(inside) | sign);
}
/* The bits of a number that f16 represents; the payload of a NaN survives. */
INLINE uint16_t F16_BITS_OF(float x) {
  const uint32_t bits = F32_TO_BITS(x), sign = (bits >> 16) & 0x8000u, size = bits & 0x7fffffffu;
  /* This multiplication is exact. */
  const uint32_t finite = F32_TO_BITS(BITS_TO_F32(size) * 0x1p-112f) >> 13;
  return (uint16_t)(sign | (size >= 0x7f800000u ? 0x7c00u | ((size >> 13) & 0x3ffu) : finite));
}
INLINE uint16_t F16_TO_BITS(float x) { return (uint16_t)(F16_BITS_OF(ROUND_F16(x)) | (uint16_t)(x != x) << 9); }
/* One, 4, 8 and 16 elements, which are converted by one instruction where there is one. In a loop that gcc vectorizes it
   cannot be used for one element. */
#ifdef __F16C__
typedef short halves_in_f16 __attribute__((vector_size(16), aligned(2), may_alias));
typedef float halves_in_f32 __attribute__((vector_size(32), aligned(4), may_alias));
typedef float few_halves_in_f32 __attribute__((vector_size(16), aligned(4), may_alias));
typedef int64_t few_halves_in_f16 __attribute__((aligned(2), may_alias));
typedef long long few_halves_in_f16_pair __attribute__((vector_size(16), may_alias));
INLINE float widen_half(half_t x) { return __builtin_ia32_vcvtph2ps((halves_in_f16){(short)x})[0]; }
INLINE half_t narrow_half(float x) { return (half_t)__builtin_ia32_vcvtps2ph((few_halves_in_f32){x}, 0)[0]; }
INLINE void widen_4_halves(float *to, const half_t *from) {
  const few_halves_in_f16_pair bits = {*(const few_halves_in_f16 *)from, 0};
  *(few_halves_in_f32 *)to = __builtin_ia32_vcvtph2ps((halves_in_f16)bits);
}
INLINE void narrow_4_halves(half_t *to, const float *from) {
  *(few_halves_in_f16 *)to =
      ((few_halves_in_f16_pair)__builtin_ia32_vcvtps2ph(*(const few_halves_in_f32 *)from, 0))[0];
}
INLINE void widen_8_halves(float *to, const half_t *from) {
  *(halves_in_f32 *)to = __builtin_ia32_vcvtph2ps256(*(const halves_in_f16 *)from);
}
INLINE void narrow_8_halves(half_t *to, const float *from) {
  *(halves_in_f16 *)to = __builtin_ia32_vcvtps2ph256(*(const halves_in_f32 *)from, 0);
}
#else
INLINE float widen_half(half_t x) { return BITS_TO_F16(x); }
INLINE half_t narrow_half(float x) { return F16_TO_BITS(x); }
#define HALVES_ONE_BY_ONE(n) \
  INLINE void widen_##n##_halves(float *to, const half_t *from) { \
    for (int k = 0; k < n; k++) to[k] = BITS_TO_F16(from[k]); \
  } \
  INLINE void narrow_##n##_halves(half_t *to, const float *from) { \
    for (int k = 0; k < n; k++) to[k] = F16_TO_BITS(from[k]); \
  }
HALVES_ONE_BY_ONE(4) HALVES_ONE_BY_ONE(8)
#endif
#if defined(__AVX512F__) && !defined(__clang__)
typedef float all_halves_in_f32 __attribute__((vector_size(64), aligned(4), may_alias));
typedef short all_halves_in_f16 __attribute__((vector_size(32), aligned(2), may_alias));
INLINE void widen_halves(float *to, const half_t *from) {
  *(all_halves_in_f32 *)to =
      __builtin_ia32_vcvtph2ps512_mask(*(const all_halves_in_f16 *)from, (all_halves_in_f32){0}, -1, 4);
}
INLINE void narrow_halves(half_t *to, const float *from) {
  *(all_halves_in_f16 *)to =
      __builtin_ia32_vcvtps2ph512_mask(*(const all_halves_in_f32 *)from, 0, (all_halves_in_f16){0}, -1);
}
#else
INLINE void widen_halves(float *to, const half_t *from) { widen_8_halves(to, from), widen_8_halves(to + 8, from + 8); }
INLINE void narrow_halves(half_t *to, const float *from) { narrow_8_halves(to, from), narrow_8_halves(to + 8, from + 8); }
#endif
INLINE float ROUND_F64_TO_F16(double x) {
  const uint64_t bits = F64_TO_BITS(x), size = bits & 0x7fffffffffffffffULL, power = size & 0x7ff0000000000000ULL;
  const uint64_t low = 0x3f10000000000000ULL, high = 0x40f0000000000000ULL;
  const uint64_t least = power < low ? low : power > high ? high : power;
  const double step = BITS_TO_F64(least + (42ULL << 52));
  const double near = (BITS_TO_F64(size) + step) - step;
  const double inside = near > 65504.0 ? INFINITY : near;
  return (float)(x != x ? x : bits >> 63 ? -inside : inside);
}

/* A select by a condition that is the same for all elements of a vector loop; all bits of the mask are the condition. */
#define CHOOSE(type, bits) \
  INLINE type choose_##type(bits mask, type x, type y) { \
    return (type)(((bits)x & mask) | ((bits)y & (bits)~mask)); \
  }
CHOOSE(int8_t, uint8_t) CHOOSE(int16_t, uint16_t) CHOOSE(int32_t, uint32_t) CHOOSE(int64_t, uint64_t)
CHOOSE(uint8_t, uint8_t) CHOOSE(uint16_t, uint16_t) CHOOSE(uint32_t, uint32_t) CHOOSE(uint64_t, uint64_t)
INLINE float choose_float(uint32_t mask, float x, float y) {
  return BITS_TO_F32(choose_uint32_t(mask, F32_TO_BITS(x), F32_TO_BITS(y)));
}
INLINE double choose_double(uint64_t mask, double x, double y) {
  return BITS_TO_F64(choose_uint64_t(mask, F64_TO_BITS(x), F64_TO_BITS(y)));
}

/* Maximum and minimum that propagate NaN, as in HLO. In two steps, gcc makes them one instruction and one under a mask; a
   single select by two conditions combines masks, and a chain of these takes four times as long. NAN, because gcc joins
   two selects of y. */
#define EXTREME(name, type, better) \
  INLINE type name(type x, type y) { \
    const type number = y better x ? y : x; \
    return y != y ? (type)NAN : number; \
  }
EXTREME(maximum_f32, float, >)
EXTREME(minimum_f32, float, <)
EXTREME(maximum_f64, double, >)
EXTREME(minimum_f64, double, <)
/* Conversions of floats to integers, as in HLO: saturated, and 0 for NaN. In steps, because gcc combines the masks of a chain
   of selects. What a conversion gives out of range is not used. */
#define SATURATED(name, from, to, least, most, bottom, top) \
  INLINE to name(from x) { \
    const to below = x >= most ? (to)top : (to)x; \
    const to inside = x <= least ? (to)bottom : below; \
    return x != x ? (to)0 : inside; \
  }
#define SATURATED_TO(name, to, least, most, bottom, top) \
  SATURATED(f32_to_##name, float, to, (float)(least), (float)(most), (bottom), (top)) \
  SATURATED(f64_to_##name, double, to, (least), (most), (bottom), (top))
SATURATED_TO(s32, int32_t, -2147483648.0, 2147483648.0, -2147483648LL, 2147483647)
SATURATED_TO(s64, int64_t, -9223372036854775808.0, 9223372036854775808.0, -9223372036854775807LL - 1, 9223372036854775807LL)
SATURATED_TO(u32, uint32_t, 0.0, 4294967296.0, 0, 4294967295u)
SATURATED_TO(u64, uint64_t, 0.0, 18446744073709551616.0, 0, 18446744073709551615u)

#pragma omp declare reduction(maximum : float : omp_out = (omp_out >= omp_in) | (omp_out != omp_out) ? omp_out : omp_in) initializer(omp_priv = omp_orig)
#pragma omp declare reduction(minimum : float : omp_out = (omp_out <= omp_in) | (omp_out != omp_out) ? omp_out : omp_in) initializer(omp_priv = omp_orig)
#pragma omp declare reduction(maximum : double : omp_out = (omp_out >= omp_in) | (omp_out != omp_out) ? omp_out : omp_in) initializer(omp_priv = omp_orig)
#pragma omp declare reduction(minimum : double : omp_out = (omp_out <= omp_in) | (omp_out != omp_out) ? omp_out : omp_in) initializer(omp_priv = omp_orig)

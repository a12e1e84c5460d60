#ifndef HLOGYM_LANE_RESULTS
#define HLOGYM_LANE_RESULTS
/* The elements of a local array, which fill a vector or a part of one, combined to one value. */
#define ADD_LANES(x, y) ((x) + (y))
#define OF_2_LANES(name, type, t, combine) \
  INLINE type name##_of_2_##t(const type *lanes) { return combine(lanes[0], lanes[1]); }
OF_2_LANES(sum, float, f32, ADD_LANES)
OF_2_LANES(sum, double, f64, ADD_LANES)
OF_2_LANES(maximum, float, f32, maximum_f32)
OF_2_LANES(maximum, double, f64, maximum_f64)
OF_2_LANES(minimum, float, f32, minimum_f32)
OF_2_LANES(minimum, double, f64, minimum_f64)
#if defined(__AVX__) && !defined(__clang__) && __GNUC__ >= 12
/* Extremes propagate NaN, for which loops over halves combine masks, and take branches in the end. Here the instructions for
   extremes, which lose NaN, are followed by one test of all lanes. */
typedef float lanes_4_f32 __attribute__((vector_size(16), aligned(4), may_alias));
typedef float lanes_8_f32 __attribute__((vector_size(32), aligned(4), may_alias));
typedef double lanes_2_f64 __attribute__((vector_size(16), aligned(8), may_alias));
typedef double lanes_4_f64 __attribute__((vector_size(32), aligned(8), may_alias));
#define HALF_OF_8(v, at) __builtin_shufflevector(v, v, at, at + 1, at + 2, at + 3)
#define HALF_OF_4(v, at) __builtin_shufflevector(v, v, at, at + 1)
#define SWAPPED_4(v) __builtin_shufflevector(v, v, 2, 3, 0, 1)
#define SWAPPED_2(v) __builtin_shufflevector(v, v, 1, 0, 3, 2)
#ifdef __AVX512VL__
#define IS_NAN_4_f32(v) __builtin_ia32_cmpps128_mask(v, v, 3, 15)
#define IS_NAN_8_f32(v) __builtin_ia32_cmpps256_mask(v, v, 3, -1)
#define IS_NAN_4_f64(v) __builtin_ia32_cmppd256_mask(v, v, 3, 15)
#else
#define IS_NAN_4_f32(v) __builtin_ia32_movmskps(__builtin_ia32_cmpps(v, v, 3))
#define IS_NAN_8_f32(v) __builtin_ia32_movmskps256(__builtin_ia32_cmpps256(v, v, 3))
#define IS_NAN_4_f64(v) __builtin_ia32_movmskpd256(__builtin_ia32_cmppd256(v, v, 3))
#endif
#define NUMBER(is_nan, x) (x)
#define NUMBER_OR_NAN(is_nan, x) ((is_nan) ? NAN : (x))
#define COMBINED_F32(name, f4, result) \
  INLINE float name##_in_4_f32(lanes_4_f32 v) { \
    const lanes_4_f32 pairs = f4(v, SWAPPED_4(v)); \
    return f4(pairs, SWAPPED_2(pairs))[0]; \
  } \
  INLINE float name##_in_8_f32(lanes_8_f32 v) { return name##_in_4_f32(f4(HALF_OF_8(v, 0), HALF_OF_8(v, 4))); } \
  OF_LANES(name, float, f32, 4, result) OF_LANES(name, float, f32, 8, result)
#define COMBINED_F64(name, f2, result) \
  INLINE double name##_in_4_f64(lanes_4_f64 v) { \
    const lanes_2_f64 half = f2(HALF_OF_4(v, 0), HALF_OF_4(v, 2)); \
    return f2(half, __builtin_shufflevector(half, half, 1, 0))[0]; \
  } \
  OF_LANES(name, double, f64, 4, result)
#define OF_LANES(name, type, t, n, result) \
  INLINE type name##_of_##n##_##t(const type *lanes) { \
    const lanes_##n##_##t v = *(const lanes_##n##_##t *)lanes; \
    return result(IS_NAN_##n##_##t(v), name##_in_##n##_##t(v)); \
  }
COMBINED_F32(sum, ADD_LANES, NUMBER)
COMBINED_F32(maximum, __builtin_ia32_maxps, NUMBER_OR_NAN)
COMBINED_F32(minimum, __builtin_ia32_minps, NUMBER_OR_NAN)
COMBINED_F64(sum, ADD_LANES, NUMBER)
COMBINED_F64(maximum, __builtin_ia32_maxpd, NUMBER_OR_NAN)
COMBINED_F64(minimum, __builtin_ia32_minpd, NUMBER_OR_NAN)
#else
#define HALVED(name, type, t, combine, n, fewer) \
  INLINE type name##_of_##n##_##t(const type *lanes) { \
    type halves[fewer] __attribute__((aligned(64))); \
    for (int k = 0; k < fewer; k++) halves[k] = combine(lanes[k], lanes[k + fewer]); \
    return name##_of_##fewer##_##t(halves); \
  }
#define COMBINED(name, type, t, combine) \
  HALVED(name, type, t, combine, 4, 2) HALVED(name, type, t, combine, 8, 4)
COMBINED(sum, float, f32, ADD_LANES) COMBINED(sum, double, f64, ADD_LANES)
COMBINED(maximum, float, f32, maximum_f32) COMBINED(maximum, double, f64, maximum_f64)
COMBINED(minimum, float, f32, minimum_f32) COMBINED(minimum, double, f64, minimum_f64)
#endif
#endif

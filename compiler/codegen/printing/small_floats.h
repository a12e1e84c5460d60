/* Floats of 8 bits, which kernels hold as their bits. NAME has M bits of significand and the exponent bias BIAS; TOP is the
   largest number, and numbers beyond it become OVERFLOW. Numbers are rounded to nearest, to even where two are equally near.
   FINITE is the number of codes of finite numbers without their signs; of the codes from there on, the first is an infinity
   where HAS_INFINITY is 1, and all others are NaN. The types UNSIGNED_ZERO have neither -0 nor infinities, and the code of
   -0 is their NaN. All conversions work where processors treat subnormal numbers of f32 as zeros. */
#ifndef HLOGYM_SMALL_FLOATS
#define HLOGYM_SMALL_FLOATS
#ifndef INLINE
#define INLINE __device__ inline
#endif
/* A number with M bits after the first one, rounded, and with the same spacing below the smallest normal number LEAST. */
#define SMALL_FLOAT(NAME, M, BIAS, TOP, OVERFLOW_CODE, NAN_CODE, FINITE, HAS_INFINITY, UNSIGNED_ZERO)                      \
  INLINE float NAME##_TO_F32(uint8_t x) {                                                                                \
    const uint32_t size = x & 0x7fu, sign = (uint32_t)(x & 0x80u) << 24;                                                 \
    const float normal = BITS_TO_F32((size << (23 - M)) + ((127u - BIAS) << 23));                                         \
    const float small = (float)(int32_t)size * BITS_TO_F32((128u - BIAS - M) << 23);                                      \
    const uint32_t finite = F32_TO_BITS(size >> M == 0 ? small : normal) | sign;                                          \
    const uint32_t special = HAS_INFINITY && size == FINITE ? 0x7f800000u | sign : 0x7fc00000u | sign;                    \
    const int is_special = UNSIGNED_ZERO ? x == 0x80u : size >= FINITE;                                                  \
    return BITS_TO_F32(is_special ? special : finite);                                                                   \
  }                                                                                                                      \
  INLINE uint8_t F32_TO_##NAME(float x) {                                                                                 \
    const uint32_t bits = F32_TO_BITS(x), sign = bits >> 24 & 0x80u, size = bits & 0x7fffffffu;                          \
    const uint32_t least = (128u - BIAS) << 23, power = size & 0x7f800000u;                                              \
    const uint32_t low = power < least ? least : power > 0x47800000u ? 0x47800000u : power;                              \
    const float step = BITS_TO_F32(low + ((23u - M) << 23));                                                             \
    const float near = (BITS_TO_F32(size) + step) - step;                                                                \
    const uint32_t normal = (F32_TO_BITS(near) >> (23 - M)) - ((127u - BIAS) << M);                                       \
    const float below = F32_TO_BITS(near) < least ? near : 0.0f;                                                         \
    const uint32_t small = (uint32_t)(int32_t)(below * BITS_TO_F32((126u + BIAS + M) << 23));                             \
    const uint32_t finite = F32_TO_BITS(near) < least ? small : normal;                                                  \
    const uint32_t code = size > 0x7f800000u ? NAN_CODE : near > TOP ? OVERFLOW_CODE : finite;                           \
    const uint32_t signed_code = UNSIGNED_ZERO && (code == 0 || code == 0x80u) ? code : code | sign;                     \
    return (uint8_t)signed_code;                                                                                         \
  }
SMALL_FLOAT(F8E5M2, 2, 15u, 57344.0f, 0x7cu, 0x7eu, 0x7cu, 1, 0)
SMALL_FLOAT(F8E4M3, 3, 7u, 240.0f, 0x78u, 0x7cu, 0x78u, 1, 0)
SMALL_FLOAT(F8E3M4, 4, 3u, 15.5f, 0x70u, 0x78u, 0x70u, 1, 0)
SMALL_FLOAT(F8E4M3FN, 3, 7u, 448.0f, 0x7fu, 0x7fu, 0x7fu, 0, 0)
SMALL_FLOAT(F8E4M3B11FNUZ, 3, 11u, 30.0f, 0x80u, 0x80u, 0x80u, 0, 1)
SMALL_FLOAT(F8E4M3FNUZ, 3, 8u, 240.0f, 0x80u, 0x80u, 0x80u, 0, 1)
SMALL_FLOAT(F8E5M2FNUZ, 2, 16u, 57344.0f, 0x80u, 0x80u, 0x80u, 0, 1)
/* The float next to a double towards zero, with its last bit set if they differ: rounding it again, to fewer bits, gives what
   rounding the double gives. */
INLINE float F64_TO_ODD_F32(double x) {
  const float near = (float)x;
  const uint32_t bits = F32_TO_BITS(near);
  const double size = x < 0 ? -x : x, rounded = near < 0 ? -(double)near : (double)near;
  return x != x || rounded == size ? near : BITS_TO_F32((rounded > size ? bits - 1u : bits) | 1u);
}
#endif

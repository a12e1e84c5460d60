/* Quotients and remainders of integers in vector loops. Processors have no instruction that divides vectors of integers, so
   gcc makes the whole loop one of scalars, and computes what a selection does not need as well. A quotient of floats, rounded
   towards zero, is that of the integers if the significand has more bits than the dividend a: a quotient a / b that is no
   integer is further from the next one, by at least 1 / b, than it is moved by rounding. Divisions by zero, and of the least integer by -1, give what
   they give in `compiler.interpreter`. */
#ifndef HLOGYM_DIVISION
#define HLOGYM_DIVISION
/* The divisor, or 1 where the result does not depend on the quotient. */
INLINE double divisor_s32(int32_t b) { return (double)(b == 0 || b == -1 ? 1 : b); }
INLINE int32_t quotient_s32(int32_t a, int32_t b) {
  const int32_t q = (int32_t)((double)a / divisor_s32(b));
  return b == 0 ? -1 : b == -1 ? (int32_t)(0u - (uint32_t)a) : q;
}
INLINE int32_t remainder_s32(int32_t a, int32_t b) {
  const int32_t q = (int32_t)((double)a / divisor_s32(b));
  return b == 0 ? a : b == -1 ? 0 : (int32_t)((uint32_t)a - (uint32_t)q * (uint32_t)b);
}
/* Conversions of unsigned integers as those of signed ones, which all vector units have. */
INLINE double double_of_u32(uint32_t x) { return (double)(int32_t)(x ^ 0x80000000u) + 0x1p31; }
INLINE uint32_t divided_u32(uint32_t a, uint32_t b) {
  const double q = __builtin_trunc(double_of_u32(a) / double_of_u32(b == 0 ? 1u : b));
  return (uint32_t)(int32_t)(q - 0x1p31) ^ 0x80000000u;
}
INLINE uint32_t quotient_u32(uint32_t a, uint32_t b) { return b == 0 ? ~0u : divided_u32(a, b); }
INLINE uint32_t remainder_u32(uint32_t a, uint32_t b) { return b == 0 ? a : a - divided_u32(a, b) * b; }

/* Those by one divisor for all elements multiply by its reciprocal. One half is added to the dividend, away from zero:
   (|a| + 1/2) / |b| has the same integer part and is at least 1 / 2|b| away from all integers, while the roundings of
   reciprocal and product move it by less than |a| / |b| / 2^51.
   Results for the divisors 0 and -1 follow without selections, of which gcc makes no vectors if all elements take one side. */
typedef struct { int32_t b, minus, zero; double r; } one_divisor_s32; /* all bits of `minus`: b is -1; of `zero`: b is 0 */
typedef struct { uint32_t b, zero; double r; } one_divisor_u32;
INLINE one_divisor_s32 one_s32(int32_t b) {
  return (one_divisor_s32){
    (int32_t)hlogym_opaque(b), (int32_t)hlogym_opaque(-(b == -1)), (int32_t)hlogym_opaque(-(b == 0)), 1 / divisor_s32(b)};
}
INLINE one_divisor_u32 one_u32(uint32_t b) {
  return (one_divisor_u32){
    (uint32_t)hlogym_opaque(b), (uint32_t)hlogym_opaque(-(b == 0)), 1 / double_of_u32(b == 0 ? 1u : b)};
}
INLINE uint32_t divided_by_s32(int32_t a, one_divisor_s32 d) {
  const int32_t q = (int32_t)(((double)a + (a < 0 ? -0.5 : 0.5)) * d.r);
  return ((uint32_t)q ^ (uint32_t)d.minus) - (uint32_t)d.minus;
}
INLINE uint32_t divided_by_u32(uint32_t a, one_divisor_u32 d) {
  const double q = __builtin_trunc((double_of_u32(a) + 0.5) * d.r);
  return (uint32_t)(int32_t)(q - 0x1p31) ^ 0x80000000u;
}
INLINE int32_t quotient_by_s32(int32_t a, one_divisor_s32 d) { return (int32_t)divided_by_s32(a, d) | d.zero; }
INLINE int32_t remainder_by_s32(int32_t a, one_divisor_s32 d) {
  return (int32_t)((uint32_t)a - divided_by_s32(a, d) * (uint32_t)d.b);
}
INLINE uint32_t quotient_by_u32(uint32_t a, one_divisor_u32 d) { return divided_by_u32(a, d) | d.zero; }
INLINE uint32_t remainder_by_u32(uint32_t a, one_divisor_u32 d) { return a - divided_by_u32(a, d) * d.b; }

#define NARROW_DIVISION(NAME, TYPE)                                                                   \
  INLINE int32_t divided_##NAME(TYPE a, TYPE b) { return (int32_t)((float)a / (float)(b == 0 ? 1 : b)); } \
  INLINE TYPE quotient_##NAME(TYPE a, TYPE b) { return (TYPE)(b == 0 ? -1 : divided_##NAME(a, b)); }        \
  INLINE TYPE remainder_##NAME(TYPE a, TYPE b) { return (TYPE)(b == 0 ? a : a - divided_##NAME(a, b) * b); }
NARROW_DIVISION(s8, int8_t)
NARROW_DIVISION(u8, uint8_t)
NARROW_DIVISION(s16, int16_t)
NARROW_DIVISION(u16, uint16_t)
#endif

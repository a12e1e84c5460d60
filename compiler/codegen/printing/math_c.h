/* Elementary functions for the generated CPU kernels. They are plain arithmetic without branches, which gcc vectorizes
   and schedules with the rest of a loop; around a call of glibc's vector functions all vector registers are saved. Only
   functions that are at least as fast this way are here. Those of glibc have instructions for exponents and tables in
   registers (log), and branch to a slow path for large angles (sin, cos), which plain vector code computes every time.

   ARCHITECTURE.md states the errors, `python -m experiments.function_errors` measures them, and
   experiments/derivations/elementary.py derives the coefficients. Zeros keep their sign and NaN propagates as in C. A
   processor without fused multiply-add calls glibc throughout. */
#ifdef __FP_FAST_FMAF
#define FMAF __builtin_fmaf
#define FMA __builtin_fma
/* Adding and subtracting it rounds to an integer, which the low bits of the sum hold. */
#define ROUNDER 0x1.8p23f
#define ROUNDER_F64 0x1.8p52

INLINE float size_of(float x) { return BITS_TO_F32(F32_TO_BITS(x) & 0x7fffffffu); }
/* `y`, which is positive or zero, or has the sign of `x` already. */
INLINE float with_sign(float y, float x) { return BITS_TO_F32(F32_TO_BITS(y) | (F32_TO_BITS(x) & 0x80000000u)); }

/* The smaller one of a number that is not negative and a limit; NaN stays. With masks, a select of floats is two
   instructions, of which the comparison is slow, and a minimum of integers one. With these bits added, infinity is the
   largest integer and NaN a negative one. */
INLINE float at_most(float x, float limit) {
#ifdef __AVX512VL__
  const int32_t a = (int32_t)(F32_TO_BITS(x) + 0x7fffffu), b = (int32_t)(F32_TO_BITS(limit) + 0x7fffffu);
  return BITS_TO_F32((uint32_t)(a < b ? a : b) - 0x7fffffu);
#else
  return x > limit ? limit : x;
#endif
}
/* exp(x) = 2^n (1 + q) with the integer n nearest to `near` / ln 2; `bits` end in n + 127 * `biases`. */
INLINE float reduced_exp_near(float x, float near, int biases, uint32_t *bits) {
  const float rounder = ROUNDER + 127.0f * biases, t = FMAF(near, 0x1.715476p+0f, rounder), n = t - rounder;
  const float r = FMAF(n, 0x1.05c61p-29f, FMAF(n, -0x1.62e43p-1f, x));
  const float p = FMAF(FMAF(FMAF(FMAF(0x1.6bebb6p-10f, r, 0x1.122786p-7f), r, 0x1.555674p-5f), r, 0x1.5554bp-3f), r,
      0x1.fffffep-2f);
  *bits = F32_TO_BITS(t);
  return FMAF(r * r, p, r);
}
INLINE float reduced_exp(float x, int biases, uint32_t *bits) { return reduced_exp_near(x, x, biases, bits); }
/* exp of numbers between -87 and 88. */
INLINE float middle_exp(float x) {
  uint32_t bits;
  const float q = reduced_exp(x, 1, &bits);
  return (q + 1.0f) * BITS_TO_F32(bits << 23);
}
/* 2^n may be too large or too small for a float, so it is the product of two powers. What rounds to zero is chosen: a
   product that underflows takes a hundred times as long, and masked scores are all such numbers. */
INLINE float exp_f32(float x) {
  uint32_t bits;
#ifdef __AVX512VL__
  /* The exponent is that of a number between -104 and 90, for which integers are compared: unsigned ones order negative
     floats by size. NaN stays in `q`, which is infinite for larger numbers. Masks hide products that underflow. */
  const int32_t signed_bits = (int32_t)F32_TO_BITS(x), most = (int32_t)F32_TO_BITS(90.0f);
  const uint32_t high = (uint32_t)(signed_bits < most ? signed_bits : most), least = F32_TO_BITS(-104.0f);
  const float q = reduced_exp_near(x, BITS_TO_F32(high < least ? high : least), 2, &bits);
  const float y = (q + 1.0f) * BITS_TO_F32(bits >> 1 << 23) * BITS_TO_F32((bits - (bits >> 1)) << 23);
  return x < -103.98f ? 0.0f : y;
#else
  const float high = x > 90.0f ? 90.0f : x, c = high < -104.0f ? -104.0f : high;
  const float q = reduced_exp(c, 2, &bits), power = BITS_TO_F32((bits - (bits >> 1)) << 23);
  return (q + 1.0f) * BITS_TO_F32(bits >> 1 << 23) * (x < -103.98f ? 0.0f : power);
#endif
}

INLINE float expm1_f32(float x) {
  const float high = x > 89.0f ? 89.0f : x, c = high < -20.0f ? -20.0f : high;
  uint32_t bits;
  const float q = reduced_exp(c, 1, &bits), half = BITS_TO_F32((bits - 1u) << 23);
  const float y = FMAF(half, q, half - 0.5f);
  return with_sign(half == 0.5f ? q : y + y, x);
}
/* expm1(2|x|) / (expm1(2|x|) + 2). It is exactly 1 from 9.02 on: programs rely on `1 - tanh(x)` being 0. */
INLINE float tanh_f32(float x) {
  const float a = 2.0f * size_of(x), c = a > 20.0f ? 20.0f : a;
  uint32_t bits;
  const float q = reduced_exp(c, 1, &bits), power = BITS_TO_F32(bits << 23);
  const float y = FMAF(power, q, power - 1.0f);
  return with_sign(y / (y + 2.0f), x);
}

/* log(2^k (1 + f)) with 1 + f between sqrt(1/2) and sqrt(2). */
INLINE float reduced_log(float f, float k) {
  const float p = FMAF(FMAF(FMAF(FMAF(FMAF(FMAF(FMAF(-0x1.38b542p-4f, f, 0x1.055b3ep-3f), f, -0x1.0d853ep-3f), f,
      0x1.22da24p-3f), f, -0x1.547246p-3f), f, 0x1.99a008p-3f), f, -0x1.000226p-2f), f, 0x1.555554p-2f);
  return FMAF(k, 0x1.62e43p-1f, FMAF(f * f, FMAF(f, p, -0.5f), f));
}
INLINE float log_f32(float x) {
  const bool is_small = x < 0x1p-126f;
  const float m = is_small ? x * 0x1p23f : x;
  const int32_t e = (int32_t)(F32_TO_BITS(m) - 0x3f3504f3u) >> 23;
  const float f = BITS_TO_F32(F32_TO_BITS(m) - ((uint32_t)e << 23)) - 1.0f;
  const float y = reduced_log(f, (float)(is_small ? e - 23 : e));
  /* Infinity and NaN stay, and negative numbers become NaN. */
  const float outside = BITS_TO_F32(F32_TO_BITS(x) | (uint32_t)((int32_t)F32_TO_BITS(x) >> 31));
  const float other = x == 0.0f ? -INFINITY : outside;
  return (x > 0.0f) & (x < INFINITY) ? y : other;
}
INLINE float log1p_f32(float x) {
  const float m = 1.0f + x, low = x - (m - 1.0f);
  const int32_t e = (int32_t)(F32_TO_BITS(m) - 0x3f3504f3u) >> 23;
  const float power = BITS_TO_F32((uint32_t)(e > 126 ? 0 : 127 - e) << 23);
  const float f = BITS_TO_F32(F32_TO_BITS(m) - ((uint32_t)e << 23)) - 1.0f;
  const float y = with_sign(reduced_log(FMAF(low, power, f), (float)e), x);
  /* Infinity and NaN stay, and other numbers below -1 become NaN. */
  const float outside = BITS_TO_F32(F32_TO_BITS(x) | (uint32_t)((int32_t)F32_TO_BITS(x) >> 31));
  const float other = x == -1.0f ? -INFINITY : outside;
  return (x > -1.0f) & (x < INFINITY) ? y : other;
}

/* x P(x^2) / Q(x^2), which is 1 from 3.93 on. */
INLINE float erf_f32(float x) {
  const float c = at_most(size_of(x), 3.93f), z = c * c, w = z * z;
  const float p = FMAF(FMAF(FMAF(0x1.12405ep-19f, z, 0x1.2a6b0cp-12f), w, FMAF(0x1.ee5294p-9f, z, 0x1.b03f12p-5f)), w,
      FMAF(0x1.86563ep-3f, z, 0x1.20dd74p+0f));
  const float q = FMAF(FMAF(FMAF(0x1.3ecfb2p-15f, z, 0x1.30ea58p-10f), w, FMAF(0x1.eae4bp-7f, z, 0x1.d3ace8p-4f)), w,
      FMAF(0x1.0125e4p-1f, z, 1.0f));
  return with_sign(at_most(c * p / q, 1.0f), x);
}

/* In double, exp2(y log2|x|). */
INLINE float pow_f32(float x, float y) {
  const float a = size_of(x);
  const bool is_small = a < 0x1p-126f;
  const float m = is_small ? a * 0x1p23f : a;
  const int32_t e = (int32_t)(F32_TO_BITS(m) - 0x3f3504f3u) >> 23;
  const double f = BITS_TO_F32(F32_TO_BITS(m) - ((uint32_t)e << 23)) - 1.0f;
  const float whole = (float)(is_small ? e - 23 : e), finite = a < INFINITY ? whole : a;
  const float power = a == 0 ? -INFINITY : finite;
  const double log2 = FMA(f, FMA(FMA(FMA(FMA(FMA(FMA(FMA(FMA(FMA(FMA(FMA(FMA(0x1.3ce889f629e9cp-4, f,
      -0x1.2488c41c27d69p-3), f, 0x1.2871ce4af9ebfp-3), f, -0x1.252f3e31feffcp-3), f, 0x1.45291e654d8fdp-3), f,
      -0x1.714170b6514b1p-3), f, 0x1.a63f43f6b5eacp-3), f, -0x1.ec72b59536db9p-3), f, 0x1.277651fe250dbp-2), f,
      -0x1.71547097a4521p-2), f, 0x1.ec709ebb8d265p-2), f, -0x1.715476565d2e6p-1), f, 0x1.71547652a1eaap+0),
      (double)power);
  const float low = y > 0x1p127f ? 0x1p127f : y, bounded = low < -0x1p127f ? -0x1p127f : low;
  const double product = log2 * (double)bounded;
  const double under = product > 200.0 ? 200.0 : product, exponent = under < -200.0 ? -200.0 : under;
  const double t = exponent + ROUNDER_F64, r = exponent - (t - ROUNDER_F64);
  const double p = FMA(FMA(FMA(FMA(FMA(FMA(0x1.41d33cfb4bbb3p-13, r, 0x1.5f459a315b9f7p-10), r, 0x1.3b2dbc156ac9dp-7),
      r, 0x1.c6aed458d6309p-5), r, 0x1.ebfbdadbbd5f5p-3), r, 0x1.62e430c8346b8p-1), r, 0x1.0000000261708p+0);
  const float size = (float)(p * BITS_TO_F64((F64_TO_BITS(t) + 1023u) << 52));
  /* In place of selects: gcc does not vectorize those whose condition is the same for all elements, as the exponent is. */
  const float fraction = bounded - __builtin_rintf(bounded), to_even = bounded - 2.0f * __builtin_rintf(0.5f * bounded);
  const uint32_t is_odd = (uint32_t)(int32_t)to_even;
  const float signed_size = BITS_TO_F32(F32_TO_BITS(size) ^ (F32_TO_BITS(x) & (is_odd << 31)));
  const float undefined = BITS_TO_F32(F32_TO_BITS(fraction) & -(uint32_t)((x < 0) & (x > -INFINITY)));
  const float real = undefined != 0 ? NAN : signed_size;
  const float other_than_one = BITS_TO_F32(F32_TO_BITS(y) & ((uint32_t)(x == 1.0f) - 1u));
  return other_than_one == 0 ? 1.0f : real;
}

/* atan(t) for t between 0 and 1. */
INLINE float middle_atan(float t) {
  const float z = t * t;
  return FMAF(t * z, FMAF(FMAF(FMAF(FMAF(FMAF(FMAF(FMAF(0x1.8602a4p-9f, z, -0x1.0fbaecp-6f), z, 0x1.64d824p-5f), z,
      -0x1.36862ap-4f), z, 0x1.b56bc4p-4f), z, -0x1.231bcap-3f), z, 0x1.997aeap-3f), z, -0x1.5554e6p-2f), t);
}
INLINE float atan2_f32(float y, float x) {
  const float a = size_of(x), b = size_of(y);
  const float large = a > b ? a : b, small = a > b ? b : a;
  /* 0 / 0 counts as 0 and inf / inf as 1. */
  const float quotient = large == 0 ? 0.0f : small / large, t = small == INFINITY ? 1.0f : quotient;
  const float first = middle_atan(t), octant = a >= b ? first : (0x1.921fb6p+0f - first) - 0x1.777a5cp-25f;
  const float half = F32_TO_BITS(x) >> 31 ? (0x1.921fb6p+1f - octant) - 0x1.777a5cp-24f : octant;
  return (x != x) | (y != y) ? x + y : with_sign(half, y);
}
/* asin(t) for t between 0 and 1/2. */
INLINE float middle_asin(float t) {
  const float z = t * t;
  return FMAF(t * z, FMAF(FMAF(FMAF(FMAF(0x1.59ccccp-5f, z, 0x1.8bb50ap-6f), z, 0x1.748a2ep-5f), z, 0x1.33016ap-4f), z,
      0x1.5555cap-3f), t);
}
INLINE float asin_f32(float x) {
  const float a = size_of(x);
  const bool is_small = a < 0.5f;
  const float y = middle_asin(is_small ? a : __builtin_sqrtf(0.5f - 0.5f * a));
  return with_sign(is_small ? y : 0x1.921fb6p+0f - (y + y), x);
}
INLINE float acos_f32(float x) {
  const float a = size_of(x);
  const bool is_small = a < 0.5f;
  const float y = middle_asin(is_small ? a : __builtin_sqrtf(0.5f - 0.5f * a)), twice = y + y;
  const float inner = 0x1.921fb6p+0f - (with_sign(y, x) + 0x1.777a5cp-25f);
  const float outer = x > 0 ? twice : 0x1.921fb6p+1f - (twice + 0x1.777a5cp-24f);
  return is_small ? inner : outer;
}

/* e / (e + 2) with e = exp(2 |x|) - 1 = 2^n (1 + q) - 1, where q = r + r^2 p is exp(r) - 1 */
INLINE double tanh_f64(double x) {
  const double a = x < 0 ? -x : x, c = a > 20.0 ? 20.0 : a;
  const double rounder = ROUNDER_F64 + 1023.0, t = FMA(c, 0x1.71547652b82fep+1, rounder), n = t - rounder;
  const double r = FMA(n, -0x1.abc9e3b39803fp-56, FMA(n, -0x1.62e42fefa39efp-1, c + c));
  const double p = FMA(FMA(FMA(FMA(FMA(FMA(FMA(FMA(FMA(FMA(0x1.1ee8893567a68p-29, r, 0x1.af5e81d76a622p-26), r,
      0x1.27e53632145eep-22), r, 0x1.71ddf877fc1f7p-19), r, 0x1.a01a017bc043bp-16), r, 0x1.a01a01afd64a3p-13), r,
      0x1.6c16c16c1f099p-10), r, 0x1.111111110f6d5p-7), r, 0x1.555555555553fp-5), r, 0x1.5555555555559p-3), r, 0x1p-1);
  const double power = BITS_TO_F64(F64_TO_BITS(t) << 52), e = FMA(power, FMA(r * r, p, r), power - 1.0);
  const double size = e / (e + 2.0);
  return BITS_TO_F64((F64_TO_BITS(size) & 0x7fffffffffffffffULL) | (F64_TO_BITS(x) & 0x8000000000000000ULL));
}

/* Sine (turn 0) or cosine (turn 1) of an angle |x| <= 2^16, which is reduced by a multiple of pi/2. */
INLINE float near_angle(float size, uint32_t sign, uint32_t turn) {
  const float t = FMAF(size, 0x1.45f306p-1f, ROUNDER), n = t - ROUNDER;
  const float r = FMAF(n, 0x1.ee59dap-50f, FMAF(n, 0x1.777a5cp-25f, FMAF(n, -0x1.921fb6p+0f, size))), z = r * r;
  const float s = FMAF(r * z, FMAF(FMAF(-0x1.9943f2p-13f, z, 0x1.11073cp-7f), z, -0x1.555546p-3f), r);
  const float c = FMAF(z * z, FMAF(FMAF(0x1.99eb9cp-16f, z, -0x1.6c0c34p-10f), z, 0x1.55554ap-5f), FMAF(z, -0.5f, 1.0f));
  const uint32_t quarter = F32_TO_BITS(t) + turn;
  return BITS_TO_F32(F32_TO_BITS(quarter & 1u ? c : s) ^ ((quarter & 2u) << 30) ^ sign);
}
INLINE float near_sin_f32(float x) { return near_angle(size_of(x), F32_TO_BITS(x) & 0x80000000u, 0u); }
INLINE float near_cos_f32(float x) { return near_angle(size_of(x), 0u, 1u); }

/* The exact remainder: a float divided by a float is less than 2^277, and each step leaves less than 2^-51 of the quotient.
   A step is exact, because `r` and `b` have few bits more than a float. */
INLINE float fmod_f32(float x, float y) {
  const double finite = size_of(y), b = finite > 0x1p200 ? 0x1p200 : finite, inverse = 1.0 / b;
  double r = size_of(x);
  r = FMA(-__builtin_trunc(r * inverse), b, r);
  r = FMA(-__builtin_trunc(r * inverse), b, r);
  r = FMA(-__builtin_trunc(r * inverse), b, r);
  r = FMA(-__builtin_trunc(r * inverse), b, r);
  r = FMA(-__builtin_trunc(r * inverse), b, r);
  r = FMA(-__builtin_trunc(r * inverse), b, r);
  r = r < 0.0 ? r + b : r;
  r = r >= b ? r - b : r;
  return with_sign(size_of((float)r), x);
}

/* 1 or a power of two, with the sign of a divisor: multiplied by it, the divisor is positive and its reciprocal normal. There
   are no branches, which the compiler would not move out of a loop. */
INLINE float divisor_scale(float divisor) {
  const uint32_t bits = F32_TO_BITS(divisor);
  const int32_t exponent = (int32_t)(bits >> 23 & 0xffu), power = 127 + ((exponent < 63) << 6) - ((exponent > 190) << 6);
  return BITS_TO_F32((uint32_t)power << 23 | (bits & 0x80000000u));
}
/* x / divisor, for which a loop divides once: the compiler moves what depends on the divisor alone in front of it. The
   quotient is corrected by what it leaves. That is exact unless it is subnormal, so that only quotients of scaled numbers
   below 2^-100 may be off by one in the last place. */
INLINE float uniform_quotient_f32(float x, float divisor) {
  const float scale = divisor_scale(divisor), d = divisor * scale, inverse = 1.0f / d, scaled = x * scale;
  const float near = scaled * inverse, left = FMAF(near, d, -scaled), quotient = FMAF(left, -inverse, near);
  return quotient == quotient ? quotient : near; /* infinities leave NaN */
}

/* 1 / sqrt(x), where other divisions would have to wait. Its first bits come from those of the root; a step with three terms
   makes four times as many of them, and Newton's twice as many. For zeros, infinities and NaN, the bits alone are right. */
INLINE float reciprocal_root_f32(float x) {
  const float s = __builtin_sqrtf(x), first = BITS_TO_F32(0x7ef311c7u - F32_TO_BITS(s)), e = FMAF(-s, first, 1.0f);
  const float second = FMAF(first, FMAF(e, FMAF(e, e, e), e), first), y = FMAF(second, FMAF(-s, second, 1.0f), second);
  return y > 0.0f ? y : BITS_TO_F32(0x7f800000u - F32_TO_BITS(s));
}

#define expf(x) exp_f32(x)
#define fmodf(x, y) fmod_f32(x, y)
#define expm1f(x) expm1_f32(x)
#define logf(x) log_f32(x)
#define log1pf(x) log1p_f32(x)
#define tanhf(x) tanh_f32(x)
#define erff(x) erf_f32(x)
#define asinf(x) asin_f32(x)
#define acosf(x) acos_f32(x)
#define powf(x, y) pow_f32(x, y)
#define atan2f(y, x) atan2_f32(y, x)
#define tanh(x) tanh_f64(x)
#else
#define tanh_f32(x) tanhf(x)
#define near_sin_f32(x) sinf(x)
#define near_cos_f32(x) cosf(x)
#define uniform_quotient_f32(x, divisor) ((x) / (divisor))
#define reciprocal_root_f32(x) (1.0f / __builtin_sqrtf(x))
#endif

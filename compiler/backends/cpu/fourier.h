#ifndef HLOGYM_FOURIER_TYPE
#define HLOGYM_FOURIER_TYPE
/* Fourier transforms of LANES lines at once: vector 2 j of `z` has the real parts of element j of all lines, and vector
   2 j + 1 the imaginary parts. `w` has the roots of unity exp(-2 pi i k / n), real and imaginary parts in turn; every
   `step`th of them belongs to a shorter transform. An inverse transform exchanges the parts. */
typedef REAL fourier_TYPE __attribute__((vector_size(VECTOR_BYTES)));
typedef REAL fourier_row_TYPE __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL)), may_alias));
typedef REAL fourier_item_TYPE __attribute__((may_alias));
typedef INDEX fourier_index_TYPE __attribute__((vector_size(VECTOR_BYTES)));
#define FOURIER_ROTATED(to, re, im, wr, wi) \
  to[part] = (re) * (wr) - (im) * (wi); \
  to[1 - part] = (re) * (wi) + (im) * (wr);

/* One pass of Stockham's algorithm: y[q + s (r p + k)] is the sum over i of x[q + s (p + i m)] w_r^(i k), times w_n^(p k),
   where the transform has n s elements, r = `radix` and m = n / r. Elements are numbered in pairs of vectors. */
INLINE void fourier_pass_TYPE(const fourier_TYPE *x, fourier_TYPE *y, int64_t n, int64_t s, const int radix,
                              const REAL *w, int64_t step, const int part) {
  const int64_t m = n / radix;
  for (int64_t p = 0; p < m; p++) {
    REAL wr[4], wi[4];
    for (int k = 1; k < (radix <= 5 ? radix : 1); k++) {
      wr[k - 1] = w[2 * p * k * s * step];
      wi[k - 1] = w[2 * p * k * s * step + 1];
    }
    for (int64_t q = 0; q < s; q++) {
      const fourier_TYPE *const from = x + 2 * (q + s * p);
      fourier_TYPE *const to = y + 2 * (q + s * radix * p);
#define FOURIER_RE(i) from[2 * (i) * s * m + part]
#define FOURIER_IM(i) from[2 * (i) * s * m + 1 - part]
#define FOURIER_STORE(k, re, im) \
  { \
    fourier_TYPE *const at = to + 2 * (k) * s; \
    if ((k) == 0 || m == 1) { \
      at[part] = re; \
      at[1 - part] = im; \
    } else { \
      FOURIER_ROTATED(at, re, im, wr[(k) - 1], wi[(k) - 1]) \
    } \
  }
      if (radix == 2) {
        const fourier_TYPE ar = FOURIER_RE(0), ai = FOURIER_IM(0), br = FOURIER_RE(1), bi = FOURIER_IM(1);
        FOURIER_STORE(0, ar + br, ai + bi)
        FOURIER_STORE(1, (ar - br), (ai - bi))
      } else if (radix == 3) {
        const fourier_TYPE ar = FOURIER_RE(0), ai = FOURIER_IM(0);
        const fourier_TYPE tr = FOURIER_RE(1) + FOURIER_RE(2), ti = FOURIER_IM(1) + FOURIER_IM(2);
        const fourier_TYPE ur = (REAL)0.86602540378443864676 * (FOURIER_RE(1) - FOURIER_RE(2));
        const fourier_TYPE ui = (REAL)0.86602540378443864676 * (FOURIER_IM(1) - FOURIER_IM(2));
        const fourier_TYPE cr = ar - (REAL)0.5 * tr, ci = ai - (REAL)0.5 * ti;
        FOURIER_STORE(0, ar + tr, ai + ti)
        FOURIER_STORE(1, (cr + ui), (ci - ur))
        FOURIER_STORE(2, (cr - ui), (ci + ur))
      } else if (radix == 4) {
        const fourier_TYPE ar = FOURIER_RE(0) + FOURIER_RE(2), ai = FOURIER_IM(0) + FOURIER_IM(2);
        const fourier_TYPE br = FOURIER_RE(0) - FOURIER_RE(2), bi = FOURIER_IM(0) - FOURIER_IM(2);
        const fourier_TYPE cr = FOURIER_RE(1) + FOURIER_RE(3), ci = FOURIER_IM(1) + FOURIER_IM(3);
        const fourier_TYPE dr = FOURIER_RE(1) - FOURIER_RE(3), di = FOURIER_IM(1) - FOURIER_IM(3);
        FOURIER_STORE(0, ar + cr, ai + ci)
        FOURIER_STORE(1, (br + di), (bi - dr))
        FOURIER_STORE(2, (ar - cr), (ai - ci))
        FOURIER_STORE(3, (br - di), (bi + dr))
      } else if (radix == 5) {
        const REAL c1 = (REAL)0.30901699437494742410, c2 = (REAL)-0.80901699437494742410;
        const REAL s1 = (REAL)0.95105651629515357212, s2 = (REAL)0.58778525229247312917;
        const fourier_TYPE ar = FOURIER_RE(0), ai = FOURIER_IM(0);
        const fourier_TYPE tr = FOURIER_RE(1) + FOURIER_RE(4), ti = FOURIER_IM(1) + FOURIER_IM(4);
        const fourier_TYPE ur = FOURIER_RE(1) - FOURIER_RE(4), ui = FOURIER_IM(1) - FOURIER_IM(4);
        const fourier_TYPE vr = FOURIER_RE(2) + FOURIER_RE(3), vi = FOURIER_IM(2) + FOURIER_IM(3);
        const fourier_TYPE xr = FOURIER_RE(2) - FOURIER_RE(3), xi = FOURIER_IM(2) - FOURIER_IM(3);
        const fourier_TYPE br = ar + c1 * tr + c2 * vr, bi = ai + c1 * ti + c2 * vi;
        const fourier_TYPE cr = ar + c2 * tr + c1 * vr, ci = ai + c2 * ti + c1 * vi;
        const fourier_TYPE dr = s1 * ur + s2 * xr, di = s1 * ui + s2 * xi;
        const fourier_TYPE er = s2 * ur - s1 * xr, ei = s2 * ui - s1 * xi;
        FOURIER_STORE(0, ar + tr + vr, ai + ti + vi)
        FOURIER_STORE(1, (br + di), (bi - dr))
        FOURIER_STORE(2, (cr + ei), (ci - er))
        FOURIER_STORE(3, (cr - ei), (ci + er))
        FOURIER_STORE(4, (br - di), (bi + dr))
      } else { /* a prime number: sums and differences of the elements i and radix - i have the same roots */
        const int half = (radix - 1) / 2;
        const int64_t root = n / radix * s * step;
        fourier_TYPE tr[radix / 2 + 1], ti[radix / 2 + 1], ur[radix / 2 + 1], ui[radix / 2 + 1];
        fourier_TYPE sumr = FOURIER_RE(0), sumi = FOURIER_IM(0);
        for (int i = 1; i <= half; i++) {
          tr[i] = FOURIER_RE(i) + FOURIER_RE(radix - i);
          ti[i] = FOURIER_IM(i) + FOURIER_IM(radix - i);
          ur[i] = FOURIER_RE(i) - FOURIER_RE(radix - i);
          ui[i] = FOURIER_IM(i) - FOURIER_IM(radix - i);
          sumr += tr[i];
          sumi += ti[i];
        }
        to[part] = sumr;
        to[1 - part] = sumi;
        for (int k = 1; k <= half; k++) {
          fourier_TYPE cr = FOURIER_RE(0), ci = FOURIER_IM(0), dr = {0}, di = {0};
          int turn = 0;
          for (int i = 1; i <= half; i++) {
            turn = turn + k < radix ? turn + k : turn + k - radix;
            const REAL *const at = w + 2 * root * turn;
            cr += at[0] * tr[i];
            ci += at[0] * ti[i];
            dr += at[1] * ur[i];
            di += at[1] * ui[i];
          }
          fourier_TYPE *const first = to + 2 * k * s, *const second = to + 2 * (radix - k) * s;
          const REAL *const a = w + 2 * p * k * s * step, *const b = w + 2 * p * (radix - k) * s * step;
          FOURIER_ROTATED(first, cr - di, ci + dr, a[0], a[1])
          FOURIER_ROTATED(second, cr + di, ci - dr, b[0], b[1])
        }
      }
    }
  }
}

/* z = x, where line l begins at x + l pitch and has `count` numbers that follow each other. Lines from `lines` on are 0. */
INLINE void fourier_load_rows_TYPE(fourier_TYPE *z, const REAL *x, int64_t pitch, int64_t count, int lines) {
  int64_t f = 0;
  if (lines == LANES)
    for (; f + LANES <= count; f += LANES)
      transpose_block_BITS((tile_item_BITS *)(z + f), LANES, (const tile_item_BITS *)(x + f), pitch);
  for (; f < count; f++) {
    REAL *const at = (REAL *)(z + f);
    for (int l = 0; l < LANES; l++) at[l] = l < lines ? x[l * pitch + f] : 0;
  }
}

/* y = z, as for `fourier_load_rows`. */
INLINE void fourier_store_rows_TYPE(const fourier_TYPE *z, REAL *y, int64_t pitch, int64_t count, int lines) {
  int64_t f = 0;
  if (lines == LANES)
    for (; f + LANES <= count; f += LANES)
      transpose_block_BITS((tile_item_BITS *)(y + f), pitch, (const tile_item_BITS *)(z + f), LANES);
  for (; f < count; f++)
    for (int l = 0; l < lines; l++) y[l * pitch + f] = ((const REAL *)(z + f))[l];
}

/* z = x, where `count` elements of adjacent lines are `pitch` numbers apart. */
INLINE void fourier_load_columns_TYPE(fourier_TYPE *z, const REAL *x, int64_t pitch, int64_t count, int lines) {
  for (int64_t j = 0; j < count; j++) {
    const REAL *const from = x + j * pitch;
    if (lines == LANES) {
      const fourier_TYPE a = *(const fourier_row_TYPE *)from, b = *(const fourier_row_TYPE *)(from + LANES);
      z[2 * j] = __builtin_shuffle(a, b, (fourier_index_TYPE){EVENS});
      z[2 * j + 1] = __builtin_shuffle(a, b, (fourier_index_TYPE){EVENS} + 1);
    } else
      for (int l = 0; l < LANES; l++) {
        ((REAL *)(z + 2 * j))[l] = l < lines ? from[2 * l] : 0;
        ((REAL *)(z + 2 * j + 1))[l] = l < lines ? from[2 * l + 1] : 0;
      }
  }
}

/* y = z, as for `fourier_load_columns`. */
INLINE void fourier_store_columns_TYPE(const fourier_TYPE *z, REAL *y, int64_t pitch, int64_t count, int lines) {
  for (int64_t j = 0; j < count; j++) {
    REAL *const to = y + j * pitch;
    if (lines == LANES) {
      *(fourier_row_TYPE *)to = __builtin_shuffle(z[2 * j], z[2 * j + 1], (fourier_index_TYPE){FIRSTS});
      *(fourier_row_TYPE *)(to + LANES) =
          __builtin_shuffle(z[2 * j], z[2 * j + 1], (fourier_index_TYPE){FIRSTS} + LANES / 2);
    } else
      for (int l = 0; l < lines; l++) {
        to[2 * l] = ((const REAL *)(z + 2 * j))[l];
        to[2 * l + 1] = ((const REAL *)(z + 2 * j + 1))[l];
      }
  }
}

/* The transform y of 2 half real numbers from that of the `half` pairs of them (z, element by element): both have elements
   of two `type`s, and z may be y. */
#define FOURIER_UNPACK_TYPE(type, z, y, half, w) \
  { \
    const type first = z[0], second = z[1]; \
    for (int64_t k = 1; 2 * k <= half; k++) { \
      const type ar = z[2 * k], ai = z[2 * k + 1], br = z[2 * ((half) - k)], bi = z[2 * ((half) - k) + 1]; \
      const type er = (ar + br) * (REAL)0.5, ei = (ai - bi) * (REAL)0.5; \
      const type or_ = (ai + bi) * (REAL)0.5, oi = (br - ar) * (REAL)0.5; \
      const type tr = or_ * w[2 * k] - oi * w[2 * k + 1], ti = or_ * w[2 * k + 1] + oi * w[2 * k]; \
      y[2 * k] = er + tr; \
      y[2 * k + 1] = ei + ti; \
      y[2 * ((half) - k)] = er - tr; \
      y[2 * ((half) - k) + 1] = ti - ei; \
    } \
    y[0] = first + second; \
    y[1] = (type){0}; \
    y[2 * (half)] = first - second; \
    y[2 * (half) + 1] = (type){0}; \
  }

/* The pairs y whose inverse transform has 2 half real numbers, from their transform z; the result is twice as large. */
#define FOURIER_PACK_TYPE(type, z, y, half, w) \
  { \
    y[0] = z[0] + z[2 * (half)]; \
    y[1] = z[0] - z[2 * (half)]; \
    for (int64_t k = 1; 2 * k <= half; k++) { \
      const type ar = z[2 * k], ai = z[2 * k + 1], br = z[2 * ((half) - k)], bi = z[2 * ((half) - k) + 1]; \
      const type er = ar + br, ei = ai - bi, dr = ar - br, di = ai + bi; \
      const type tr = dr * w[2 * k] + di * w[2 * k + 1], ti = di * w[2 * k] - dr * w[2 * k + 1]; \
      y[2 * k] = er - ti; \
      y[2 * k + 1] = ei + tr; \
      y[2 * ((half) - k)] = er + ti; \
      y[2 * ((half) - k) + 1] = tr - ei; \
    } \
  }
#undef FOURIER_RE
#undef FOURIER_IM
#undef FOURIER_STORE
#endif

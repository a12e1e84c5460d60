#ifndef HLOGYM_TRANSPOSE
#define HLOGYM_TRANSPOSE
/* Transposition of tiles in registers: log2(n) rounds exchange elements between pairs of n vectors of n elements. In round
   `step`, vectors k and k + step exchange the blocks of `step` elements that are off the diagonal. */
#define TILE_ROOM(n, size) ((n) < (size) ? (int)(n) : (size))
/* The elements may be floats. */
typedef uint32_t tile_item_32 __attribute__((may_alias));
typedef uint64_t tile_item_64 __attribute__((may_alias));
/* Elements of the widest vectors that shuffles take; gcc takes shuffles of wider ones apart. */
#ifdef __AVX512F__
#define TILE_32 16
#define TILE_64 8
#else
#define TILE_32 8
#define TILE_64 4
#endif
typedef uint32_t tile_row_32 __attribute__((vector_size(4 * TILE_32), aligned(4), may_alias));
typedef uint64_t tile_row_64 __attribute__((vector_size(8 * TILE_64), aligned(8), may_alias));
#define LOW_OF(n, i, s) (((i) / (s)) % 2 ? (n) + (i) - (s) : (i))
#define HIGH_OF(n, i, s) (((i) / (s)) % 2 ? (n) + (i) : (i) + (s))
#define INDICES_4(f, n, i, s) f(n, i, s), f(n, (i) + 1, s), f(n, (i) + 2, s), f(n, (i) + 3, s)
#define INDICES_8(f, n, i, s) INDICES_4(f, n, i, s), INDICES_4(f, n, (i) + 4, s)
#define INDICES_16(f, n, i, s) INDICES_8(f, n, i, s), INDICES_8(f, n, (i) + 8, s)
#define TRANSPOSE_ROUND(type, n, s) \
  _Pragma("GCC unroll 16") for (int k = 0; k < n; k++) \
    if (k / (s) % 2 == 0) { \
      const type x = rows[k], y = rows[k + (s)]; \
      rows[k] = __builtin_shuffle(x, y, (type){INDICES_##n(LOW_OF, n, 0, s)}); \
      rows[k + (s)] = __builtin_shuffle(x, y, (type){INDICES_##n(HIGH_OF, n, 0, s)}); \
    }
#define TRANSPOSE_ROWS_4(type) TRANSPOSE_ROUND(type, 4, 1) TRANSPOSE_ROUND(type, 4, 2)
#define TRANSPOSE_ROWS_8(type) TRANSPOSE_ROUND(type, 8, 1) TRANSPOSE_ROUND(type, 8, 2) TRANSPOSE_ROUND(type, 8, 4)
#define TRANSPOSE_ROWS_16(type) \
  TRANSPOSE_ROUND(type, 16, 1) TRANSPOSE_ROUND(type, 16, 2) TRANSPOSE_ROUND(type, 16, 4) TRANSPOSE_ROUND(type, 16, 8)
#ifdef __AVX512F__
#define TRANSPOSE_ROWS_32 TRANSPOSE_ROWS_16(tile_row_32)
#define TRANSPOSE_ROWS_64 TRANSPOSE_ROWS_8(tile_row_64)
#else
#define TRANSPOSE_ROWS_32 TRANSPOSE_ROWS_8(tile_row_32)
#define TRANSPOSE_ROWS_64 TRANSPOSE_ROWS_4(tile_row_64)
#endif
#define TRANSPOSE_BLOCK(bits) \
  static inline void transpose_block_##bits( \
      tile_item_##bits *to, int64_t pitch, const tile_item_##bits *from, int64_t stride) { \
    tile_row_##bits rows[TILE_##bits]; \
    _Pragma("GCC unroll 16") for (int k = 0; k < TILE_##bits; k++) \
        rows[k] = *(const tile_row_##bits *)(from + k * stride); \
    TRANSPOSE_ROWS_##bits \
    _Pragma("GCC unroll 16") for (int k = 0; k < TILE_##bits; k++) *(tile_row_##bits *)(to + k * pitch) = rows[k]; \
  }
TRANSPOSE_BLOCK(32)
TRANSPOSE_BLOCK(64)
/* to[a * pitch + b] = from[a + b * stride] for a < rows and b < columns. The last block of a row or column of blocks begins
   early enough to be whole; what it has in common with the one before is written twice. */
#define TRANSPOSE_TILE(name, n, result, item, element) \
  static inline __attribute__((always_inline)) void transpose_tile_##name( \
      result *to, const item *from, int64_t stride, int pitch, int rows, int columns) { \
    if (rows < n || columns < n) { \
      for (int b = 0; b < columns; b++) \
        for (int a = 0; a < rows; a++) to[a * pitch + b] = element(from[a + b * stride]); \
      return; \
    } \
    for (int block = 0; block < columns; block += n) { \
      const int b = block + n > columns ? columns - n : block; \
      for (int row = 0; row < rows; row += n) { \
        const int a = row + n > rows ? rows - n : row; \
        transpose_block_##name(to + a * pitch + b, pitch, from + a + b * stride, stride); \
      } \
    } \
  }
#define AS_IT_IS(x) (x)
TRANSPOSE_TILE(32, TILE_32, tile_item_32, tile_item_32, AS_IT_IS)
TRANSPOSE_TILE(64, TILE_64, tile_item_64, tile_item_64, AS_IT_IS)
/* Strips of four elements of as many rows as a vector has elements. Each of four vectors has the strips of every fourth
   row, so that exchanges of elements inside of groups of four put adjacent rows side by side. The last strip of a row
   begins early enough to be whole. */
#if defined(__clang__) || __GNUC__ >= 12
typedef uint32_t tile_strip __attribute__((vector_size(16), aligned(4), may_alias));
#define STRIP_PAIR(x, y) __builtin_shufflevector(x, y, 0, 1, 2, 3, 4, 5, 6, 7)
#define STRIP_AT(from) (*(const tile_strip *)(from))
#define STORE_STRIP(to, v, l) \
  *(tile_strip *)(to) = __builtin_shufflevector(v, v, 4 * (l), 4 * (l) + 1, 4 * (l) + 2, 4 * (l) + 3)
#ifdef __AVX512F__
#define STRIPS(from, stride) \
  __builtin_shufflevector( \
      STRIP_PAIR(STRIP_AT(from), STRIP_AT((from) + 4 * (stride))), \
      STRIP_PAIR(STRIP_AT((from) + 8 * (stride)), STRIP_AT((from) + 12 * (stride))), \
      0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
#define STORE_STRIPS(to, stride, v) \
  STORE_STRIP(to, v, 0), STORE_STRIP((to) + 4 * (stride), v, 1), STORE_STRIP((to) + 8 * (stride), v, 2), \
      STORE_STRIP((to) + 12 * (stride), v, 3)
#define STRIP_LOW(x, y) __builtin_shufflevector(x, y, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29)
#define STRIP_HIGH(x, y) __builtin_shufflevector(x, y, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31)
#define STRIP_FIRST(x, y) __builtin_shufflevector(x, y, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
#define STRIP_SECOND(x, y) __builtin_shufflevector(x, y, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31)
#else
#define STRIPS(from, stride) STRIP_PAIR(STRIP_AT(from), STRIP_AT((from) + 4 * (stride)))
#define STORE_STRIPS(to, stride, v) STORE_STRIP(to, v, 0), STORE_STRIP((to) + 4 * (stride), v, 1)
#define STRIP_LOW(x, y) __builtin_shufflevector(x, y, 0, 8, 1, 9, 4, 12, 5, 13)
#define STRIP_HIGH(x, y) __builtin_shufflevector(x, y, 2, 10, 3, 11, 6, 14, 7, 15)
#define STRIP_FIRST(x, y) __builtin_shufflevector(x, y, 0, 1, 8, 9, 4, 5, 12, 13)
#define STRIP_SECOND(x, y) __builtin_shufflevector(x, y, 2, 3, 10, 11, 6, 7, 14, 15)
#endif
#define EXCHANGE_STRIPS(v) \
  do { \
    const tile_row_32 low = STRIP_LOW(v[0], v[1]), high = STRIP_HIGH(v[0], v[1]); \
    const tile_row_32 low_2 = STRIP_LOW(v[2], v[3]), high_2 = STRIP_HIGH(v[2], v[3]); \
    v[0] = STRIP_FIRST(low, low_2), v[1] = STRIP_SECOND(low, low_2); \
    v[2] = STRIP_FIRST(high, high_2), v[3] = STRIP_SECOND(high, high_2); \
  } while (0)
#endif
/* to[a * pitch + b] = from[a + b * stride] for a < stride and b < columns, a multiple of 16. */
static inline __attribute__((always_inline)) void transpose_rows_32(
    tile_item_32 *to, const tile_item_32 *from, int stride, int pitch, int columns) {
#ifdef STRIPS
  if (stride >= 4) {
    for (int b = 0; b < columns; b += TILE_32) {
#pragma GCC unroll 8
      for (int strip = 0; strip < stride; strip += 4) {
        const int a = strip + 4 > stride ? stride - 4 : strip;
        const tile_item_32 *const rows = from + a + b * stride;
        tile_row_32 v[4];
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++) v[k] = STRIPS(rows + k * stride, stride);
        EXCHANGE_STRIPS(v);
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++) *(tile_row_32 *)(to + (a + k) * pitch + b) = v[k];
      }
    }
    return;
  }
#endif
  for (int b = 0; b < columns; b++)
    for (int a = 0; a < stride; a++) to[a * pitch + b] = from[a + b * stride];
}
/* to[a + b * stride] = from[a * pitch + b] for a < stride and b < columns, a multiple of 16. */
static inline __attribute__((always_inline)) void store_transposed_32(
    tile_item_32 *to, int stride, const tile_item_32 *from, int pitch, int columns) {
#ifdef STRIPS
  if (stride >= 4) {
    for (int b = 0; b < columns; b += TILE_32) {
#pragma GCC unroll 8
      for (int strip = 0; strip < stride; strip += 4) {
        const int a = strip + 4 > stride ? stride - 4 : strip;
        tile_row_32 v[4];
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++) v[k] = *(const tile_row_32 *)(from + (a + k) * pitch + b);
        EXCHANGE_STRIPS(v);
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++) {
          tile_item_32 *const rows = to + a + (b + k) * stride;
          STORE_STRIPS(rows, stride, v[k]);
        }
      }
    }
    return;
  }
#endif
  for (int b = 0; b < columns; b++)
    for (int a = 0; a < stride; a++) to[a + b * stride] = from[a * pitch + b];
}
#endif

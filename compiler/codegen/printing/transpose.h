#ifndef HLOGYM_TRANSPOSE
#define HLOGYM_TRANSPOSE
/* Transposition of tiles in registers: log2(n) rounds exchange elements between pairs of n vectors of n elements. In round
   `step`, vectors k and k + step exchange the blocks of `step` elements that are off the diagonal. */
#define TILE_ROOM(n, size) ((n) < (size) ? (int)(n) : (size))
/* The elements may be floats. */
typedef uint32_t tile_item_32 __attribute__((may_alias));
typedef uint64_t tile_item_64 __attribute__((may_alias));
typedef uint32_t tile_row_32 __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint64_t tile_row_64 __attribute__((vector_size(64), aligned(8), may_alias));
#define LOW_16(i, s) (((i) / (s)) % 2 ? 16 + (i) - (s) : (i))
#define HIGH_16(i, s) (((i) / (s)) % 2 ? 16 + (i) : (i) + (s))
#define LOW_8(i, s) (((i) / (s)) % 2 ? 8 + (i) - (s) : (i))
#define HIGH_8(i, s) (((i) / (s)) % 2 ? 8 + (i) : (i) + (s))
#define INDICES_8(f, s) f(0, s), f(1, s), f(2, s), f(3, s), f(4, s), f(5, s), f(6, s), f(7, s)
#define INDICES_16(f, s) \
  INDICES_8(f, s), f(8, s), f(9, s), f(10, s), f(11, s), f(12, s), f(13, s), f(14, s), f(15, s)
#define TRANSPOSE_ROUND(type, n, s) \
  for (int k = 0; k < n; k++) \
    if (k / (s) % 2 == 0) { \
      const type x = rows[k], y = rows[k + (s)]; \
      rows[k] = __builtin_shuffle(x, y, (type){INDICES_##n(LOW_##n, s)}); \
      rows[k + (s)] = __builtin_shuffle(x, y, (type){INDICES_##n(HIGH_##n, s)}); \
    }
static inline void transpose_block_32(tile_item_32 *to, int64_t pitch, const tile_item_32 *from, int64_t stride) {
  tile_row_32 rows[16];
#pragma GCC unroll 16
  for (int k = 0; k < 16; k++) rows[k] = *(const tile_row_32 *)(from + k * stride);
#pragma GCC unroll 16
  TRANSPOSE_ROUND(tile_row_32, 16, 1)
#pragma GCC unroll 16
  TRANSPOSE_ROUND(tile_row_32, 16, 2)
#pragma GCC unroll 16
  TRANSPOSE_ROUND(tile_row_32, 16, 4)
#pragma GCC unroll 16
  TRANSPOSE_ROUND(tile_row_32, 16, 8)
#pragma GCC unroll 16
  for (int k = 0; k < 16; k++) *(tile_row_32 *)(to + k * pitch) = rows[k];
}
static inline void transpose_block_64(tile_item_64 *to, int64_t pitch, const tile_item_64 *from, int64_t stride) {
  tile_row_64 rows[8];
#pragma GCC unroll 8
  for (int k = 0; k < 8; k++) rows[k] = *(const tile_row_64 *)(from + k * stride);
#pragma GCC unroll 8
  TRANSPOSE_ROUND(tile_row_64, 8, 1)
#pragma GCC unroll 8
  TRANSPOSE_ROUND(tile_row_64, 8, 2)
#pragma GCC unroll 8
  TRANSPOSE_ROUND(tile_row_64, 8, 4)
#pragma GCC unroll 8
  for (int k = 0; k < 8; k++) *(tile_row_64 *)(to + k * pitch) = rows[k];
}
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
TRANSPOSE_TILE(32, 16, tile_item_32, tile_item_32, AS_IT_IS)
TRANSPOSE_TILE(64, 8, tile_item_64, tile_item_64, AS_IT_IS)
#endif

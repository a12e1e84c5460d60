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

/* Tiles of narrower elements, which have 32 bits while they are in registers: integers also in the result, and floats as
   floats. */
typedef uint8_t tile_item_8 __attribute__((may_alias));
typedef uint16_t tile_item_16 __attribute__((may_alias));
/* gcc 12 widens and narrows bytes one by one, unless the instruction is named. */
#if defined(__AVX512F__) && !defined(__clang__)
typedef char tile_bytes __attribute__((vector_size(16), aligned(1), may_alias));
typedef short tile_shorts __attribute__((vector_size(32), aligned(2), may_alias));
typedef int tile_ints __attribute__((vector_size(64)));
INLINE tile_row_32 widened_8(const tile_item_8 *from) {
  return (tile_row_32)__builtin_ia32_pmovzxbd512_mask(*(const tile_bytes *)from, (tile_ints){0}, -1);
}
INLINE tile_row_32 widened_16(const tile_item_16 *from) {
  return (tile_row_32)__builtin_ia32_pmovzxwd512_mask(*(const tile_shorts *)from, (tile_ints){0}, -1);
}
INLINE void put_row_8(tile_item_8 *to, tile_row_32 row) {
  *(tile_bytes *)to = __builtin_ia32_pmovdb512_mask((tile_ints)row, (tile_bytes){0}, -1);
}
INLINE void put_row_16(tile_item_16 *to, tile_row_32 row) {
  *(tile_shorts *)to = __builtin_ia32_pmovdw512_mask((tile_ints)row, (tile_shorts){0}, -1);
}
#else
typedef uint8_t tile_row_8 __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint16_t tile_row_16 __attribute__((vector_size(32), aligned(2), may_alias));
INLINE tile_row_32 widened_8(const tile_item_8 *from) {
  return __builtin_convertvector(*(const tile_row_8 *)from, tile_row_32);
}
INLINE tile_row_32 widened_16(const tile_item_16 *from) {
  return __builtin_convertvector(*(const tile_row_16 *)from, tile_row_32);
}
INLINE void put_row_8(tile_item_8 *to, tile_row_32 row) { *(tile_row_8 *)to = __builtin_convertvector(row, tile_row_8); }
INLINE void put_row_16(tile_item_16 *to, tile_row_32 row) {
  *(tile_row_16 *)to = __builtin_convertvector(row, tile_row_16);
}
#endif
INLINE tile_row_32 widened_BF16(const tile_item_16 *from) { return widened_16(from) << 16; }
INLINE tile_row_32 widened_F16(const tile_item_16 *from) {
  float row[16] __attribute__((aligned(64)));
  widen_halves(row, (const half_t *)from);
  return *(const tile_row_32 *)row;
}
INLINE void put_row_32(float *to, tile_row_32 row) { *(tile_row_32 *)to = row; }
#define TRANSPOSE_NARROW_BLOCK(name, result, item, bits) \
  static inline void transpose_block_##name(result *to, int64_t pitch, const item *from, int64_t stride) { \
    tile_row_32 rows[16]; \
    _Pragma("GCC unroll 16") for (int k = 0; k < 16; k++) rows[k] = widened_##name(from + k * stride); \
    _Pragma("GCC unroll 16") TRANSPOSE_ROUND(tile_row_32, 16, 1) \
    _Pragma("GCC unroll 16") TRANSPOSE_ROUND(tile_row_32, 16, 2) \
    _Pragma("GCC unroll 16") TRANSPOSE_ROUND(tile_row_32, 16, 4) \
    _Pragma("GCC unroll 16") TRANSPOSE_ROUND(tile_row_32, 16, 8) \
    _Pragma("GCC unroll 16") for (int k = 0; k < 16; k++) put_row_##bits(to + k * pitch, rows[k]); \
  }
TRANSPOSE_NARROW_BLOCK(8, tile_item_8, tile_item_8, 8)
TRANSPOSE_NARROW_BLOCK(16, tile_item_16, tile_item_16, 16)
TRANSPOSE_NARROW_BLOCK(BF16, float, tile_item_16, 32)
TRANSPOSE_NARROW_BLOCK(F16, float, tile_item_16, 32)
TRANSPOSE_TILE(8, 16, tile_item_8, tile_item_8, AS_IT_IS)
TRANSPOSE_TILE(16, 16, tile_item_16, tile_item_16, AS_IT_IS)
TRANSPOSE_TILE(BF16, 16, float, tile_item_16, BITS_TO_BF16)
TRANSPOSE_TILE(F16, 16, float, tile_item_16, BITS_TO_F16)
#endif

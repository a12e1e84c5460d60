#ifndef HLOGYM_TRANSPOSE_NARROW
#define HLOGYM_TRANSPOSE_NARROW
/* Tiles of narrower elements: floats become f32, integers stay what they are. */
typedef uint8_t tile_item_8 __attribute__((may_alias));
typedef uint16_t tile_item_16 __attribute__((may_alias));
#if defined(__AVX512F__) && !defined(__clang__)
/* The elements have 32 bits while they are in registers. gcc 12 widens and narrows bytes one by one, unless the instruction
   is named. */
#define TILE_8 16
#define TILE_16 16
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
INLINE tile_row_32 widened_BF16(const tile_item_16 *from) { return widened_16(from) << 16; }
INLINE tile_row_32 widened_F16(const tile_item_16 *from) {
  float row[16] __attribute__((aligned(64)));
  widen_halves(row, (const half_t *)from);
  return *(const tile_row_32 *)row;
}
INLINE void put_row_BF16(float *to, tile_row_32 row) { *(tile_row_32 *)to = row; }
#define put_row_F16 put_row_BF16
#define TRANSPOSE_NARROW_BLOCK(name, result, item, n) \
  static inline void transpose_block_##name(result *to, int64_t pitch, const item *from, int64_t stride) { \
    tile_row_32 rows[n]; \
    _Pragma("GCC unroll 16") for (int k = 0; k < n; k++) rows[k] = widened_##name(from + k * stride); \
    TRANSPOSE_ROWS_##n(tile_row_32) \
    _Pragma("GCC unroll 16") for (int k = 0; k < n; k++) put_row_##name(to + k * pitch, rows[k]); \
  }
#else
/* Vectors have 16 bytes, as wide as instructions that interleave the elements of two of them. log2(n) times, the first n / 2
   of n rows are interleaved with the others. */
#define TILE_8 16
#define TILE_16 8
typedef uint8_t tile_row_8 __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint16_t tile_row_16 __attribute__((vector_size(16), aligned(2), may_alias));
typedef tile_row_16 tile_row_BF16, tile_row_F16;
#define INTERLEAVED_LOW(n, i, s) ((i) / 2 + (i) % 2 * (n))
#define INTERLEAVED_HIGH(n, i, s) ((i) / 2 + (i) % 2 * (n) + (n) / 2)
INLINE void put_row_8(tile_item_8 *to, tile_row_8 row) { *(tile_row_8 *)to = row; }
INLINE void put_row_16(tile_item_16 *to, tile_row_16 row) { *(tile_row_16 *)to = row; }
INLINE void put_row_BF16(float *to, tile_row_16 row) {
  const tile_row_16 zeros = {0};
  *(tile_row_16 *)to = __builtin_shuffle(zeros, row, (tile_row_16){INDICES_8(INTERLEAVED_LOW, 8, 0, 1)});
  *(tile_row_16 *)(to + 4) = __builtin_shuffle(zeros, row, (tile_row_16){INDICES_8(INTERLEAVED_HIGH, 8, 0, 1)});
}
INLINE void put_row_F16(float *to, tile_row_16 row) { widen_8_halves(to, (const half_t *)&row); }
#define TRANSPOSE_NARROW_BLOCK(name, result, item, n) \
  static inline void transpose_block_##name(result *to, int64_t pitch, const item *from, int64_t stride) { \
    typedef tile_row_##name row_t; \
    row_t rows[n], next[n]; \
    _Pragma("GCC unroll 16") for (int k = 0; k < n; k++) rows[k] = *(const row_t *)(from + k * stride); \
    _Pragma("GCC unroll 4") for (int step = 1; step < n; step *= 2) { \
      _Pragma("GCC unroll 16") for (int k = 0; k < n / 2; k++) { \
        next[2 * k] = __builtin_shuffle(rows[k], rows[k + n / 2], (row_t){INDICES_##n(INTERLEAVED_LOW, n, 0, 1)}); \
        next[2 * k + 1] = __builtin_shuffle(rows[k], rows[k + n / 2], (row_t){INDICES_##n(INTERLEAVED_HIGH, n, 0, 1)}); \
      } \
      _Pragma("GCC unroll 16") for (int k = 0; k < n; k++) rows[k] = next[k]; \
    } \
    _Pragma("GCC unroll 16") for (int k = 0; k < n; k++) put_row_##name(to + k * pitch, rows[k]); \
  }
#endif
#if defined(__AVX512F__) && !defined(__clang__)
TRANSPOSE_NARROW_BLOCK(8, tile_item_8, tile_item_8, 16)
TRANSPOSE_NARROW_BLOCK(16, tile_item_16, tile_item_16, 16)
TRANSPOSE_NARROW_BLOCK(BF16, float, tile_item_16, 16)
TRANSPOSE_NARROW_BLOCK(F16, float, tile_item_16, 16)
#else
TRANSPOSE_NARROW_BLOCK(8, tile_item_8, tile_item_8, 16)
TRANSPOSE_NARROW_BLOCK(16, tile_item_16, tile_item_16, 8)
TRANSPOSE_NARROW_BLOCK(BF16, float, tile_item_16, 8)
TRANSPOSE_NARROW_BLOCK(F16, float, tile_item_16, 8)
#endif
TRANSPOSE_TILE(8, TILE_8, tile_item_8, tile_item_8, AS_IT_IS)
TRANSPOSE_TILE(16, TILE_16, tile_item_16, tile_item_16, AS_IT_IS)
TRANSPOSE_TILE(BF16, TILE_16, float, tile_item_16, BITS_TO_BF16)
TRANSPOSE_TILE(F16, TILE_16, float, tile_item_16, BITS_TO_F16)
#endif

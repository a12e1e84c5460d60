#ifndef HLOGYM_TRANSPOSE_NARROW
#define HLOGYM_TRANSPOSE_NARROW
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

#ifndef HLOGYM_REPEAT
#define HLOGYM_REPEAT
/* Each element of an array several times. The elements of one vector of results are a permutation of one vector. */
typedef uint8_t repeat_item_8 __attribute__((may_alias));
typedef uint32_t repeat_item_32 __attribute__((may_alias));
typedef uint8_t repeat_row_8 __attribute__((vector_size(64), aligned(1), may_alias));
typedef uint32_t repeat_row_32 __attribute__((vector_size(64), aligned(4), may_alias));
#define REPEAT_4(i, n) (i) / (n), ((i) + 1) / (n), ((i) + 2) / (n), ((i) + 3) / (n)
#define REPEAT_16(i, n) REPEAT_4(i, n), REPEAT_4((i) + 4, n), REPEAT_4((i) + 8, n), REPEAT_4((i) + 12, n)
#define REPEAT_64(i, n) REPEAT_16(i, n), REPEAT_16((i) + 16, n), REPEAT_16((i) + 32, n), REPEAT_16((i) + 48, n)
/* Parts of such a vector, as long as those that a permutation of an older processor takes. What they begin with is at most as
   far in `from` that all they load belongs to it. */
typedef uint8_t repeat_part_8 __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint32_t repeat_part_32 __attribute__((vector_size(32), aligned(4), may_alias));
#define REPEAT_START(i, n, most) ((i) / (n) < (most) ? (i) / (n) : (most))
#define REPEAT_PART_32(to, from, n, i) \
  (*(repeat_part_32 *)((to) + (i)) = __builtin_shuffle( \
       *(const repeat_part_32 *)((from) + REPEAT_START(i, n, 8)), \
       (repeat_part_32){REPEAT_4(i, n), REPEAT_4((i) + 4, n)} - REPEAT_START(i, n, 8)))
#define REPEAT_PART_8(to, from, n, i) \
  (*(repeat_part_8 *)((to) + (i)) = __builtin_shuffle( \
       *(const repeat_part_8 *)((from) + REPEAT_START(i, n, 48)), \
       (repeat_part_8){REPEAT_16(i, n)} - (uint8_t)REPEAT_START(i, n, 48)))
/* to[lanes * k + l] = from[(lanes * k + l) / n] for the lanes l of one vector; n and k are literals. */
#ifdef __AVX512F__
#define REPEAT_VECTOR_32(to, from, n, k) \
  (*(repeat_row_32 *)((to) + 16 * (k)) = \
       __builtin_shuffle(*(const repeat_row_32 *)(from), (repeat_row_32){REPEAT_16(16 * (k), n)}))
#else
#define REPEAT_VECTOR_32(to, from, n, k) REPEAT_PART_32(to, from, n, 16 * (k)), REPEAT_PART_32(to, from, n, 16 * (k) + 8)
#endif
#ifdef __AVX512VBMI__
#define REPEAT_VECTOR_8(to, from, n, k) \
  (*(repeat_row_8 *)((to) + 64 * (k)) = \
       __builtin_shuffle(*(const repeat_row_8 *)(from), (repeat_row_8){REPEAT_64(64 * (k), n)}))
#else
#define REPEAT_VECTOR_8(to, from, n, k) \
  REPEAT_PART_8(to, from, n, 64 * (k)), REPEAT_PART_8(to, from, n, 64 * (k) + 16), \
      REPEAT_PART_8(to, from, n, 64 * (k) + 32), REPEAT_PART_8(to, from, n, 64 * (k) + 48)
#endif
#endif

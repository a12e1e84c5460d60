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
/* to[lanes * k + l] = from[(lanes * k + l) / n] for the lanes l of one vector; n and k are literals. */
#ifdef __AVX512F__
#define REPEAT_VECTOR_32(to, from, n, k) \
  (*(repeat_row_32 *)((to) + 16 * (k)) = \
       __builtin_shuffle(*(const repeat_row_32 *)(from), (repeat_row_32){REPEAT_16(16 * (k), n)}))
#else
#define REPEAT_VECTOR_32(to, from, n, k) \
  for (int l = 0; l < 16; l++) (to)[16 * (k) + l] = (from)[(16 * (k) + l) / (n)]
#endif
#ifdef __AVX512VBMI__
#define REPEAT_VECTOR_8(to, from, n, k) \
  (*(repeat_row_8 *)((to) + 64 * (k)) = \
       __builtin_shuffle(*(const repeat_row_8 *)(from), (repeat_row_8){REPEAT_64(64 * (k), n)}))
#else
#define REPEAT_VECTOR_8(to, from, n, k) \
  for (int l = 0; l < 64; l++) (to)[64 * (k) + l] = (from)[(64 * (k) + l) / (n)]
#endif
#endif

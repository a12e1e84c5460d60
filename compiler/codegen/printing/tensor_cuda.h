
// Warp-wide instructions of tensor cores and asynchronous copies (PTX ISA 8, "Warp-level matrix instructions" and
// "cp.async"). An emulator defines these functions itself. Shared memory is given as an array of words and a position.
template <class T> __device__ inline uint32_t half_bits_of(float x);
template <> __device__ inline uint32_t half_bits_of<bfloat16_t>(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }
template <> __device__ inline uint32_t half_bits_of<half_t>(float x) { return __half_as_ushort(__float2half_rn(x)); }
template <class T> __device__ inline uint32_t two_halves(float low, float high) {
  return half_bits_of<T>(low) | half_bits_of<T>(high) << 16;
}
template <class T> __device__ inline float half_value_of(uint32_t bits);
template <> __device__ inline float half_value_of<bfloat16_t>(uint32_t bits) { return BITS_TO_BF16((uint16_t)bits); }
template <> __device__ inline float half_value_of<half_t>(uint32_t bits) { return BITS_TO_F16((uint16_t)bits); }
#ifdef __CUDACC__
// Copies BYTES to shared memory, or zeros if not `inside`; the copy is complete after `wait_for_copies` and a barrier.
template <int BYTES, int N> __device__ inline void copy_async(uint32_t (&shared)[N], int at, const void *from, bool inside) {
  const uint32_t to = (uint32_t)__cvta_generic_to_shared(&shared[at]);
  const int bytes = inside ? BYTES : 0;
  if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(to), "l"(from), "r"(bytes), "n"(BYTES) : "memory");
}
// Ends a group of copies.
__device__ inline void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most PENDING groups of copies of this thread are not complete.
template <int PENDING> __device__ inline void wait_for_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }
// Loads four matrices of 8 x 8 elements: lane 8 m + r gives the position of row r of matrix m. Word m of lane l has the
// elements (l / 4, l % 4 * 2) and (l / 4, l % 4 * 2 + 1) of matrix m, or of its transpose.
template <bool TRANSPOSED, int N> __device__ inline void load_matrices(uint32_t (&to)[4], uint32_t (&shared)[N], int at) {
  const uint32_t from = (uint32_t)__cvta_generic_to_shared(&shared[at]);
  if constexpr (TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from) : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from) : "memory");
}
// sums += a b for a of 16 x 16 and b of 16 x 8 elements. With g = lane / 4 and t = lane % 4 * 2, a lane holds
// sums (g, t), (g, t + 1), (g + 8, t), (g + 8, t + 1), the pairs of a at (g, t), (g + 8, t), (g, t + 8), (g + 8, t + 8),
// and the pairs of b at (t, g), (t + 8, g), which are along the depth.
template <class T> __device__ inline void multiply_matrices(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <> __device__ inline void multiply_matrices<bfloat16_t>(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <> __device__ inline void multiply_matrices<half_t>(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif

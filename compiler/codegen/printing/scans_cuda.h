/* Prefixes over the threads of a warp and over the warps of a block, in an order that depends on nothing but their
   numbers. All threads of the warp or block must take part. */

// The combination of the values of this thread and of those before it in the warp.
template <class T, class F> __device__ T warp_scan(T value, F combine) {
  const int lane = threadIdx.x & 31;
  for (int step = 1; step < 32; step <<= 1) {
    const T other = __shfl_up_sync(0xffffffffu, value, step);
    if (lane >= step) value = combine(other, value);
  }
  return value;
}

// The value of the last thread of the warp.
template <class T> __device__ T warp_last(T value) { return __shfl_sync(0xffffffffu, value, 31); }

// The combination of the totals of the warps before this one; `whole` becomes that of all warps.
template <class T, class F> __device__ T warps_before(T total, F combine, T identity, T &whole) {
  __shared__ T partial[32];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  __syncthreads();
  if (lane == 0) partial[warp] = total;
  __syncthreads();
  const T through = warp_scan<T>(lane < warps ? (T)partial[lane] : identity, combine);
  const T before = __shfl_sync(0xffffffffu, through, warp > 0 ? warp - 1 : 0);
  whole = __shfl_sync(0xffffffffu, through, warps - 1);
  return warp > 0 ? before : identity;
}

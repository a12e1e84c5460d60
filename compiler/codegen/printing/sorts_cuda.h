/* Sorts of entries by the threads of a block. An entry has the key of an element in its high bits and the element's
   number in its low bits, so that no two are equal and any sort is stable. Thread t holds the entries V * t ... of a
   bitonic network: near ones are compared in its registers, those of the same warp by shuffles, the others through
   words in shared memory. */

// The entry of a key of 64 bits.
struct wide_entry { uint64_t key, number; };
__device__ inline bool operator<(wide_entry a, wide_entry b) {
  return a.key < b.key || (a.key == b.key && a.number < b.number);
}
__device__ inline uint32_t entry_number(uint32_t e) { return e & 0xffffu; }
__device__ inline uint32_t entry_number(uint64_t e) { return (uint32_t)e; }
__device__ inline uint32_t entry_number(wide_entry e) { return (uint32_t)e.number; }
template <class E> __device__ E make_entry(uint64_t key, uint32_t number) { return (E)(key << 4 * sizeof(E)) | number; }
template <> __device__ inline wide_entry make_entry<wide_entry>(uint64_t key, uint32_t number) { return {key, number}; }
template <class E> __device__ E last_entry() { return ~(E)0; }
template <> __device__ inline wide_entry last_entry<wide_entry>() { return {~0ull, ~0ull}; }

template <class E> __device__ E lane_entry(E e, int distance) { return __shfl_xor_sync(0xffffffffu, e, distance); }
template <> __device__ inline wide_entry lane_entry<wide_entry>(wide_entry e, int distance) {
  return {__shfl_xor_sync(0xffffffffu, e.key, distance), __shfl_xor_sync(0xffffffffu, e.number, distance)};
}

// Words 0 to 3 of an entry; the numbers of wide entries have one word.
template <class E> struct entry_words { static const int count = sizeof(E) / 4; };
template <> struct entry_words<wide_entry> { static const int count = 3; };
__device__ inline uint32_t get_word(uint32_t e, int) { return e; }
__device__ inline uint32_t get_word(uint64_t e, int w) { return (uint32_t)(e >> 32 * w); }
__device__ inline uint32_t get_word(wide_entry e, int w) { return w ? (uint32_t)(e.key >> 32 * (w - 1)) : (uint32_t)e.number; }
__device__ inline void put_word(uint32_t &e, uint32_t word, int) { e = word; }
__device__ inline void put_word(uint64_t &e, uint32_t word, int w) { e = w ? e | (uint64_t)word << 32 : word; }
__device__ inline void put_word(wide_entry &e, uint32_t word, int w) {
  if (w == 0) e.number = word == 0xffffffffu ? ~0ull : word;
  else if (w == 1) e.key = word;
  else e.key |= (uint64_t)word << 32;
}

// Exchange two entries of a thread unless they are in order.
template <class E> __device__ inline void order_entries(E &a, E &b) {
  const bool is_exchanged = b < a;
  const E low = is_exchanged ? b : a, high = is_exchanged ? a : b;
  a = low, b = high;
}

template <int V, int T, class E> __device__ void sort_entries(E (&e)[V], int32_t *words) {
  const int first = threadIdx.x * V;
  for (int size = 2; size <= V * T; size <<= 1) {
    int step = size >> 1;
    for (; step >= V; step >>= 1) {
      const int distance = step / V;
      const bool smaller = ((threadIdx.x & distance) == 0) == ((first & size) == 0);
      E theirs[V];
      if (distance < 32) {
#pragma unroll
        for (int v = 0; v < V; v++) theirs[v] = lane_entry(e[v], distance);
      } else {
#pragma unroll
        for (int w = 0; w < entry_words<E>::count; w++) {
#pragma unroll
          for (int v = 0; v < V; v++) words[v * T + threadIdx.x] = (int32_t)get_word(e[v], w);
          __syncthreads();
#pragma unroll
          for (int v = 0; v < V; v++) put_word(theirs[v], (uint32_t)words[v * T + (threadIdx.x ^ distance)], w);
          __syncthreads();
        }
      }
#pragma unroll
      for (int v = 0; v < V; v++)
        if ((theirs[v] < e[v]) == smaller) e[v] = theirs[v];
    }
#pragma unroll
    for (int near = V / 2; near > 0; near >>= 1) {
      if (near > step) continue;
#pragma unroll
      for (int v = 0; v < V; v++) {
        if (v & near) continue;
        const bool ascending = ((first + v) & size) == 0;
        const E a = e[v], b = e[v | near];
        if ((b < a) == ascending) e[v] = b, e[v | near] = a;
      }
    }
  }
}

// Store the element numbers of sorted entries in order.
template <int V, class E> __device__ void store_numbers(E (&e)[V], int32_t *numbers) {
#pragma unroll
  for (int v = 0; v < V; v++) numbers[threadIdx.x * V + v] = (int32_t)entry_number(e[v]);
  __syncthreads();
}

// Sort the `count` entries of a list, of which word w of entry n is at w * V * T + n, and keep the first k; if there are
// so many, `limit` becomes the last of them.
template <int V, int T, class E> __device__ int keep_first(int32_t *list, int count, int k, E &limit) {
  E e[V];
#pragma unroll
  for (int v = 0; v < V; v++) {
    const int n = v * T + threadIdx.x;
    e[v] = last_entry<E>();
    if (n < count)
#pragma unroll
      for (int w = 0; w < entry_words<E>::count; w++) put_word(e[v], (uint32_t)list[w * V * T + n], w);
  }
  __syncthreads();
  sort_entries<V, T>(e, list);
#pragma unroll
  for (int v = 0; v < V; v++) {
    const int n = threadIdx.x * V + v;
    if (n < k && n < count)
#pragma unroll
      for (int w = 0; w < entry_words<E>::count; w++) list[w * V * T + n] = (int32_t)get_word(e[v], w);
  }
  __syncthreads();
  if (count < k) return count;
#pragma unroll
  for (int w = 0; w < entry_words<E>::count; w++) put_word(limit, (uint32_t)list[w * V * T + k - 1], w);
  __syncthreads();
  return k;
}

// Append those of H entries per thread to a list that come before `limit`; return the length of the list.
template <int V, int T, int H, class E>
__device__ int append_entries(E (&found)[H], int32_t *list, int count, int k, E &limit, bool &is_limited) {
  int mine = 0, whole;
#pragma unroll
  for (int h = 0; h < H; h++) mine += found[h] < limit;
  const int in_warp = warp_scan(mine, combine_add());
  const int before = warps_before(warp_last(in_warp), combine_add(), 0, whole);
  int n = count + before + in_warp - mine;
#pragma unroll
  for (int h = 0; h < H; h++)
    if (found[h] < limit) {
#pragma unroll
      for (int w = 0; w < entry_words<E>::count; w++) list[w * V * T + n] = (int32_t)get_word(found[h], w);
      n++;
    }
  __syncthreads();
  count += whole;
  if (count + H * T > V * T || (!is_limited && count >= k)) {
    is_limited = count >= k;
    count = keep_first<V, T>(list, count, k, limit);
  }
  return count;
}


// Chained products: result(i, f) = sum over columns j of weight(i, j) values(j, f), where the weights are computed from
// products of rows and columns that stay in registers, as in the gradient of attention. A block takes BM rows, and BN
// columns at a time, which are in shared memory twice: one tile is used while the next one is copied.
//
// `weigh(i, j, a, b, r, c, w, v)` computes the weights w and v of the outer products from the inner products a and b, and
// from the values r of the row and c of the column, which `row_values(i, r)` and `column_values(j, c)` compute once.
// `needed(t)` says whether a tile of columns has weights other than 0, provided that reach(i, j) is at least LIMIT for all
// its rows, if it is BY_ROW, otherwise for all its columns. With LIMIT = -infinity nothing has to be reached.

// A product of a left operand (row, depth) and a right one (column, depth), of a depth of LENGTH, rounded up to DEPTH.
template <int DEPTH, int64_t LENGTH, class L, class R> struct InnerProduct {
  L left;
  R right;
  static constexpr int depth = DEPTH;
};
template <int DEPTH, int64_t LENGTH, class L, class R>
__device__ inline InnerProduct<DEPTH, LENGTH, L, R> inner_product(L left, R right) { return {left, right}; }

// A product of weights and values (feature, column). SOURCE is the inner product whose right operand has the same elements
// as the values, or -1. With EXACT weights are multiplied as sums of two halves.
template <int FEATURES, int64_t LENGTH, bool EXACT, int SOURCE, int GROUPED, class V, class E> struct OuterProduct {
  V values;
  E store;
  static constexpr int features = FEATURES, source = SOURCE;
};
template <int FEATURES, int64_t LENGTH, bool EXACT, int SOURCE, int GROUPED, class V, class E>
__device__ inline OuterProduct<FEATURES, LENGTH, EXACT, SOURCE, GROUPED, V, E> outer_product(V values, E store) { return {values, store}; }

// In the place of a second product.
struct NoProduct {
  static constexpr int depth = 0, features = 0, source = -1;
};

template <class T, int BM, int BN, int THREADS, int64_t M, int64_t N, class P> struct InnerTiles {
  static constexpr int LEFT = 0, RIGHT = 0;
  template <class S, class I> static __device__ inline void bring_left(const P &, S &, int, I) {}
  template <class S, class I> static __device__ inline void bring_right(const P &, S &, int, I) {}
  template <class S> static __device__ inline void hold(uint32_t (&)[1][4], S &, int, int) {}
  template <bool HELD, class S>
  static __device__ inline void multiply(float (&)[BN / 8][4], uint32_t (&)[1][4], S &, int, int, int) {}
};
template <class T, int BM, int BN, int THREADS, int64_t M, int64_t N, int DEPTH, int64_t LENGTH, class L, class R>
struct InnerTiles<T, BM, BN, THREADS, M, N, InnerProduct<DEPTH, LENGTH, L, R>> {
  using P = InnerProduct<DEPTH, LENGTH, L, R>;
  using Left = HalfTile<T, BM, DEPTH, THREADS, L>;
  using Right = HalfTile<T, BN, DEPTH, THREADS, R>;
  static constexpr int LEFT = Left::WORDS, RIGHT = Right::WORDS;
  template <class S, class I> static __device__ inline void bring_left(const P &p, S &shared, int start, I first) {
    Left tile;
    tile.template fetch<M, LENGTH>(p.left, shared, start, first, (I)0);
    tile.put(shared, start);
  }
  template <class S, class I> static __device__ inline void bring_right(const P &p, S &shared, int start, I first) {
    Right tile;
    tile.template fetch<N, LENGTH>(p.right, shared, start, first, (I)0);
    tile.put(shared, start);
  }
  template <int STEPS, class S>
  static __device__ inline void hold(uint32_t (&x)[STEPS][4], S &shared, int start, int row) {
#pragma unroll
    for (int d = 0; d < STEPS; d++) Left::template fragments<true>(x[d], shared, start, row, d * 16);
  }
  // The products of 16 rows of a warp with all columns; x holds the rows if they are HELD.
  template <bool HELD, int STEPS, class S>
  static __device__ inline void multiply(float (&sums)[BN / 8][4], uint32_t (&x)[STEPS][4], S &shared, int left, int right, int row) {
#pragma unroll
    for (int n = 0; n < BN / 8; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) sums[n][e] = 0;
#pragma unroll(HELD ? DEPTH / 16 : 2)
    for (int d = 0; d < DEPTH / 16; d++) {
      if constexpr (!HELD) Left::template fragments<true>(x[0], shared, left, row, d * 16);
#pragma unroll
      for (int n = 0; n < BN / 16; n++) {
        uint32_t y[4];
        Right::template fragments<false>(y, shared, right, n * 16, d * 16);
        multiply_matrices<T>(sums[2 * n], x[HELD ? d : 0], y[0], y[1]);
        multiply_matrices<T>(sums[2 * n + 1], x[HELD ? d : 0], y[2], y[3]);
      }
    }
  }
};

template <class T, int BM, int BN, int THREADS, int64_t M, int64_t N, class P> struct OuterTiles {
  static constexpr int WORDS = 0;
  template <class S, class I> static __device__ inline void bring(const P &, S &, int, I) {}
  template <class S> static __device__ inline void add(float (&)[1][4], const float (&)[BN / 8][4], S &, int) {}
  template <class S, class I> static __device__ inline void finish(const P &, const float (&)[1][4], S &, I) {}
};
template <class T, int BM, int BN, int THREADS, int64_t M, int64_t N, int FEATURES, int64_t LENGTH, bool EXACT, int SOURCE,
          int GROUPED, class V, class E>
struct OuterTiles<T, BM, BN, THREADS, M, N, OuterProduct<FEATURES, LENGTH, EXACT, SOURCE, GROUPED, V, E>> {
  using P = OuterProduct<FEATURES, LENGTH, EXACT, SOURCE, GROUPED, V, E>;
  using Values = HalfTile<T, FEATURES, BN, THREADS, V>;
  static constexpr int WORDS = SOURCE < 0 ? Values::WORDS : 0;
  template <class S, class I> static __device__ inline void bring(const P &p, S &shared, int start, I first) {
    if constexpr (SOURCE < 0) {
      Values tile;
      tile.template fetch<LENGTH, N>(p.values, shared, start, (I)0, first);
      tile.put(shared, start);
    }
  }
  template <class S>
  static __device__ inline void add(float (&sums)[FEATURES / 8][4], const float (&weights)[BN / 8][4], S &shared, int start) {
#pragma unroll
    for (int k = 0; k < BN / 16; k++) {
      uint32_t w[4], rest[4];
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const float low = weights[2 * k + (e >> 1)][e % 2 * 2], high = weights[2 * k + (e >> 1)][e % 2 * 2 + 1];
        w[e] = two_halves<T>(low, high);
        if constexpr (EXACT) rest[e] = two_halves<T>(low - half_value_of<T>(w[e]), high - half_value_of<T>(w[e] >> 16));
      }
#pragma unroll
      for (int f = 0; f < FEATURES / 16; f++) {
        uint32_t y[4];
        Values::template fragments<false>(y, shared, start, f * 16, k * 16);
#pragma unroll
        for (int n = 0; n < 2; n++) {
          if constexpr (EXACT) multiply_matrices<T>(sums[2 * f + n], rest, y[2 * n], y[2 * n + 1]);
          multiply_matrices<T>(sums[2 * f + n], w, y[2 * n], y[2 * n + 1]);
        }
      }
    }
  }
  template <class S, class I>
  static __device__ inline void finish(const P &p, const float (&sums)[FEATURES / 8][4], S &shared, I first_row) {
    constexpr int PITCH = FEATURES + 8;
#pragma unroll
    for (int f = 0; f < FEATURES / 8; f++) put_matrix(shared, (threadIdx.x >> 5) * 16 * PITCH + f * 8, PITCH, sums[f]);
    __syncthreads();
    finish_rows<BM, FEATURES, PITCH, THREADS, true, GROUPED, M, LENGTH, float>(shared, p.store, [](int r) { return r; }, first_row, (I)0);
    __syncthreads();
  }
};

template <class T, int BM, int BN, bool MASKED, bool DYNAMIC, bool BY_ROW, bool HELD, int ROW_VALUES, int COLUMN_VALUES, int64_t M, int64_t N,
          class S, class P, class Q, class V, class W, class Rows, class Columns, class Weigh, class Needed, class Reach, class I>
__device__ inline void tensor_chain(S &shared, const P &first, const Q &second, const V &result, const W &other, const Rows &row_values,
                                    const Columns &column_values, const Weigh &weigh, const Needed &needed, const Reach &reach, const float limit, I first_row) {
  constexpr int THREADS = 2 * BM;
  using FirstTiles = InnerTiles<T, BM, BN, THREADS, M, N, P>;
  using SecondTiles = InnerTiles<T, BM, BN, THREADS, M, N, Q>;
  using ResultTiles = OuterTiles<T, BM, BN, THREADS, M, N, V>;
  using OtherTiles = OuterTiles<T, BM, BN, THREADS, M, N, W>;
  constexpr int LEFT = FirstTiles::LEFT + SecondTiles::LEFT, START = HELD ? 0 : LEFT;
  constexpr int SECOND = FirstTiles::RIGHT, RESULT = SECOND + SecondTiles::RIGHT, OTHER = RESULT + ResultTiles::WORDS;
  constexpr int COLUMN = OTHER + OtherTiles::WORDS, STAGE = COLUMN + COLUMN_VALUES * BN;
  constexpr int RESULT_START = V::source < 0 ? RESULT : V::source == 0 ? 0 : SECOND;
  constexpr int OTHER_START = W::source < 0 ? OTHER : W::source == 0 ? 0 : SECOND;
  const int warp_row = (threadIdx.x >> 5) * 16, lane = threadIdx.x & 31;
  const I tiles = (N + BN - 1) / BN;
  FirstTiles::bring_left(first, shared, 0, first_row);
  SecondTiles::bring_left(second, shared, FirstTiles::LEFT, first_row);
  end_copies();
  wait_for_copies<0>();
  __syncthreads();
  uint32_t x[HELD && P::depth ? P::depth / 16 : 1][4], z[HELD && Q::depth ? Q::depth / 16 : 1][4];
  if constexpr (HELD) {
    FirstTiles::hold(x, shared, 0, warp_row);
    SecondTiles::hold(z, shared, FirstTiles::LEFT, warp_row);
    __syncthreads();
  }
  bool rows_reach = true;
  if constexpr (MASKED && DYNAMIC && BY_ROW) {
    const I i = first_row + threadIdx.x;
    rows_reach = __syncthreads_and((int)threadIdx.x >= BM || i >= M || reach(i, (I)0) >= limit);
  }
  const auto next = [&](I t) {
    if constexpr (MASKED) {
      while (t < tiles && rows_reach && !needed(t)) {
        if constexpr (DYNAMIC && !BY_ROW) {
          const I j = t * BN + threadIdx.x;
          if (!__syncthreads_and((int)threadIdx.x >= BN || j >= N || reach((I)0, j) >= limit)) break;
        }
        t++;
      }
    }
    return t;
  };
  const auto bring = [&](I t, int stage) {
    const int start = START + stage * STAGE;
    FirstTiles::bring_right(first, shared, start, (I)(t * BN));
    SecondTiles::bring_right(second, shared, start + SECOND, (I)(t * BN));
    ResultTiles::bring(result, shared, start + RESULT, (I)(t * BN));
    OtherTiles::bring(other, shared, start + OTHER, (I)(t * BN));
    if constexpr (COLUMN_VALUES > 0) {
      const I j = t * BN + threadIdx.x;
      if (threadIdx.x < BN && (N % BN == 0 || j < N)) {
        float values[COLUMN_VALUES];
        column_values(j, values);
#pragma unroll
        for (int n = 0; n < COLUMN_VALUES; n++) shared[start + COLUMN + n * BN + threadIdx.x] = F32_TO_BITS(values[n]);
      }
    }
  };
  float of_row[2][ROW_VALUES ? ROW_VALUES : 1];
  if constexpr (ROW_VALUES > 0) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const I i = first_row + warp_row + h * 8 + (lane >> 2);
      if (M % BM == 0 || i < M) row_values(i, of_row[h]);
    }
  }
  float sums[V::features / 8][4], more[W::features ? W::features / 8 : 1][4];
#pragma unroll
  for (int f = 0; f < V::features / 8; f++)
#pragma unroll
    for (int e = 0; e < 4; e++) sums[f][e] = 0;
#pragma unroll
  for (int f = 0; f < (W::features ? W::features / 8 : 1); f++)
#pragma unroll
    for (int e = 0; e < 4; e++) more[f][e] = 0;
  I tile = next((I)0);
  if (tile < tiles) bring(tile, 0);
  end_copies();
  int stage = 0;
#pragma unroll 1
  while (tile < tiles) {
    const I following = next((I)(tile + 1));
    if (following < tiles) bring(following, stage ^ 1);
    end_copies();
    wait_for_copies<1>();
    __syncthreads();
    const int start = START + stage * STAGE;
    float a[BN / 8][4], b[BN / 8][4];
    FirstTiles::template multiply<HELD>(a, x, shared, 0, start, warp_row);
    SecondTiles::template multiply<HELD>(b, z, shared, FirstTiles::LEFT, start + SECOND, warp_row);
#pragma unroll
    for (int n = 0; n < BN / 8; n++) {
      const int c = n * 8 + (lane & 3) * 2;
      float of_column[2][COLUMN_VALUES ? COLUMN_VALUES : 1];
#pragma unroll
      for (int value = 0; value < COLUMN_VALUES; value++) {
        if (N % BN != 0 && tile * BN + c + 1 >= N) {  // one of them may never have been computed
          if (tile * BN + c < N) of_column[0][value] = BITS_TO_F32(shared[start + COLUMN + value * BN + c]);
          continue;
        }
        Pack<uint32_t, 2> pair;
        pair.read(&shared[start + COLUMN + value * BN + c]);
#pragma unroll
        for (int e = 0; e < 2; e++) of_column[e][value] = BITS_TO_F32(pair.value[e]);
      }
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const I i = first_row + warp_row + (e >> 1) * 8 + (lane >> 2), j = tile * BN + c + (e & 1);
        float w = 0, v = 0;
        if ((M % BM == 0 || i < M) && (N % BN == 0 || j < N))
          weigh(i, j, a[n][e], b[n][e], of_row[e >> 1], of_column[e & 1], w, v);
        a[n][e] = w, b[n][e] = v;
      }
    }
    ResultTiles::add(sums, a, shared, start + RESULT_START);
    OtherTiles::add(more, b, shared, start + OTHER_START);
    __syncthreads();
    tile = following, stage ^= 1;
  }
  wait_for_copies<0>();
  __syncthreads();
  ResultTiles::finish(result, sums, shared, first_row);
  OtherTiles::finish(other, more, shared, first_row);
}


// Attention: the threads of a block compute softmax(scores) values for a tile of queries. Tiles of keys come one after the
// other; when one raises the maximum of a row, what has been summed so far decays by exp(old maximum - new maximum).
// Scores and weights stay in registers, or in shared memory where no tensor cores multiply.
//
// `score(i, k, x)` is the score of query i and key k with the product x. `needed(b)` says whether a tile of keys has a score
// other than the masked value LIMIT - 150; a tile without is skipped if the maximum of each row is at least LIMIT, since the
// weights of its scores are 0 then. LIMIT is -infinity if the masked value is.
//
// A block takes at most TILES tiles of keys from `first` on. If the keys are PARTIAL, results are sums that are not
// divided. If they are PARTIAL or rows are KEPT, `keep(i, most, total)` takes the maximum of the scores of row i and the
// sum of its weights.

// The next tile of keys that is needed from number b on; `settled` says that the maximum of each row is at least LIMIT.
template <class Needed, class I> __device__ inline I next_tile(const Needed &needed, I b, I tiles, bool settled) {
  while (b < tiles && settled && !needed(b)) b++;
  return b;
}

// The end of the tiles from number `first` on that a block takes, of ALL.
template <int64_t TILES, int64_t ALL, class I> __device__ inline I last_tile(I first) {
  return TILES == ALL || first + TILES > ALL ? (I)ALL : (I)(first + TILES);
}

template <class T, class O, class Tile, int64_t ROWS, int64_t DEPTH, class S, class I>
__device__ inline void bring_tile(const O &operand, S &shared, int start, I first, I step) {
  Tile tile;
  tile.template fetch<ROWS, DEPTH>(operand, shared, start, first, step);
  tile.put(shared, start);
  end_copies();
}

template <class T, int BQ, int BK, int DK, int DV, int WARPS, bool EXACT, bool MASKED, bool DYNAMIC, bool ZERO, bool PARTIAL, bool KEPT,
          int64_t TILES, int64_t QUERIES, int64_t KEYS, int64_t DEPTH, int64_t FEATURES, class S, class Q, class K, class V,
          class Score, class Needed, class Keep, class Store, class I>
__device__ inline void tensor_attention(S &shared, const Q &queries, const K &keys, const V &values, const Score &score,
                                        const Needed &needed, const float limit, const Keep &keep, const Store &store,
                                        I first_query, I first) {
  constexpr int THREADS = 32 * WARPS, TILES_M = BQ / (16 * WARPS), TILES_K = BK / 8, TILES_F = DV / 8;
  using QueryTile = HalfTile<T, BQ, DK, THREADS, Q>;
  using KeyTile = HalfTile<T, BK, DK, THREADS, K>;
  using ValueTile = HalfTile<T, DV, BK, THREADS, V>;
  const int warp_row = (threadIdx.x >> 5) * TILES_M * 16, lane = threadIdx.x & 31;
  const I tiles = last_tile<TILES, (KEYS + BK - 1) / BK>(first);
  bring_tile<T, Q, QueryTile, QUERIES, DEPTH>(queries, shared, 0, first_query, (I)0);
  wait_for_copies<0>();
  __syncthreads();
  // The queries of a small head stay in registers, and keys replace them in shared memory.
  constexpr bool HELD = DK <= 128;
  constexpr int KEY_START = HELD ? 0 : QueryTile::WORDS, VALUE_START = KEY_START + KeyTile::WORDS;
  uint32_t x[TILES_M][HELD ? DK / 16 : 1][4];
  if constexpr (HELD) {
#pragma unroll
    for (int m = 0; m < TILES_M; m++)
#pragma unroll
      for (int d = 0; d < DK / 16; d++) QueryTile::template fragments<true>(x[m][d], shared, 0, warp_row + m * 16, d * 16);
    __syncthreads();
  }
  float sums[TILES_M][TILES_F][4], most[TILES_M][2], total[TILES_M][2];
#pragma unroll
  for (int m = 0; m < TILES_M; m++) {
#pragma unroll
    for (int h = 0; h < 2; h++) most[m][h] = -INFINITY, total[m][h] = 0;
#pragma unroll
    for (int f = 0; f < TILES_F; f++)
#pragma unroll
      for (int e = 0; e < 4; e++) sums[m][f][e] = 0;
  }
  I tile = next_tile(needed, first, tiles, MASKED && !DYNAMIC);
  if (tile < tiles) bring_tile<T, K, KeyTile, KEYS, DEPTH>(keys, shared, KEY_START, (I)(tile * BK), (I)0);
#pragma unroll 1
  while (tile < tiles) {
    const I first_key = tile * BK;
    wait_for_copies<0>();
    __syncthreads();
    bring_tile<T, V, ValueTile, FEATURES, KEYS>(values, shared, VALUE_START, (I)0, first_key);
    float scores[TILES_M][TILES_K][4];
#pragma unroll
    for (int m = 0; m < TILES_M; m++)
#pragma unroll
      for (int n = 0; n < TILES_K; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) scores[m][n][e] = 0;
#pragma unroll(HELD ? DK / 16 : 2)
    for (int d = 0; d < DK / 16; d++) {
      if constexpr (!HELD) {
#pragma unroll
        for (int m = 0; m < TILES_M; m++) QueryTile::template fragments<true>(x[m][0], shared, 0, warp_row + m * 16, d * 16);
      }
#pragma unroll
      for (int n = 0; n < TILES_K / 2; n++) {
        uint32_t y[4];
        KeyTile::template fragments<false>(y, shared, KEY_START, n * 16, d * 16);
#pragma unroll
        for (int m = 0; m < TILES_M; m++) {
          multiply_matrices<T>(scores[m][2 * n], x[m][HELD ? d : 0], y[0], y[1]);
          multiply_matrices<T>(scores[m][2 * n + 1], x[m][HELD ? d : 0], y[2], y[3]);
        }
      }
    }
    bool settled = MASKED;
#pragma unroll
    for (int m = 0; m < TILES_M; m++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const I i = first_query + warp_row + m * 16 + h * 8 + (lane >> 2);
        float high = most[m][h];
#pragma unroll
        for (int n = 0; n < TILES_K; n++)
#pragma unroll
          for (int e = 2 * h; e < 2 * h + 2; e++) {
            const I k = first_key + n * 8 + (lane & 3) * 2 + (e & 1);
            scores[m][n][e] = i < QUERIES && k < KEYS ? score(i, k, scores[m][n][e]) : -INFINITY;
            high = maximum_f32(high, scores[m][n][e]);
          }
        high = maximum_f32(high, __shfl_xor_sync(0xffffffffu, high, 1));
        high = maximum_f32(high, __shfl_xor_sync(0xffffffffu, high, 2));
        // While all scores are -inf, 0 stands for their maximum, so that their weights are 0 and not NaN.
        const float shift = high == -INFINITY ? 0.0f : high, decay = expf(most[m][h] - shift);
        most[m][h] = high;
        total[m][h] *= decay;
#pragma unroll
        for (int f = 0; f < TILES_F; f++) sums[m][f][2 * h] *= decay, sums[m][f][2 * h + 1] *= decay;
#pragma unroll
        for (int n = 0; n < TILES_K; n++)
#pragma unroll
          for (int e = 2 * h; e < 2 * h + 2; e++) {
            scores[m][n][e] = expf(scores[m][n][e] - shift);
            total[m][h] += scores[m][n][e];
          }
        if (i < QUERIES && !(high >= limit)) settled = !DYNAMIC;
      }
    if constexpr (MASKED && DYNAMIC) settled = __syncthreads_and(settled);
    else __syncthreads();
    tile = next_tile(needed, (I)(tile + 1), tiles, MASKED && settled);
    if (tile < tiles) bring_tile<T, K, KeyTile, KEYS, DEPTH>(keys, shared, KEY_START, (I)(tile * BK), (I)0);
    else end_copies();
    wait_for_copies<1>();
    __syncthreads();
#pragma unroll
    for (int k = 0; k < BK / 16; k++) {
      uint32_t w[TILES_M][4], rest[TILES_M][4];
#pragma unroll
      for (int m = 0; m < TILES_M; m++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const float low = scores[m][2 * k + (e >> 1)][e % 2 * 2], high = scores[m][2 * k + (e >> 1)][e % 2 * 2 + 1];
          w[m][e] = two_halves<T>(low, high);
          if constexpr (EXACT) rest[m][e] = two_halves<T>(low - half_value_of<T>(w[m][e]), high - half_value_of<T>(w[m][e] >> 16));
        }
#pragma unroll
      for (int f = 0; f < TILES_F / 2; f++) {
        uint32_t y[4];
        ValueTile::template fragments<false>(y, shared, VALUE_START, f * 16, k * 16);
#pragma unroll
        for (int m = 0; m < TILES_M; m++)
#pragma unroll
          for (int n = 0; n < 2; n++) {
            if constexpr (EXACT) multiply_matrices<T>(sums[m][2 * f + n], rest[m], y[2 * n], y[2 * n + 1]);
            multiply_matrices<T>(sums[m][2 * f + n], w[m], y[2 * n], y[2 * n + 1]);
          }
      }
    }
  }
  wait_for_copies<0>();
  __syncthreads();
#pragma unroll
  for (int m = 0; m < TILES_M; m++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      total[m][h] += __shfl_xor_sync(0xffffffffu, total[m][h], 1);
      total[m][h] += __shfl_xor_sync(0xffffffffu, total[m][h], 2);
      if constexpr (PARTIAL || KEPT) {
        const I i = first_query + warp_row + m * 16 + h * 8 + (lane >> 2);
        if ((lane & 3) == 0 && i < QUERIES) keep(i, most[m][h], total[m][h]);
      }
      if constexpr (PARTIAL) continue;
      const float inverse = ZERO && most[m][h] == -INFINITY ? 0.0f : 1.0f / total[m][h];
#pragma unroll
      for (int f = 0; f < TILES_F; f++) sums[m][f][2 * h] *= inverse, sums[m][f][2 * h + 1] *= inverse;
    }
  // Shared memory has room for the rows of one matrix per warp, and for half of the features if they are many.
  constexpr int PART = DV > 128 ? DV / 2 : DV, PITCH = PART + 8, ROOM = KeyTile::WORDS + ValueTile::WORDS;
  constexpr int SLICE = fitting(TILES_M, ROOM / (WARPS * 16 * PITCH)), SLICES = TILES_M / SLICE;
#pragma unroll
  for (int part = 0; part < SLICES * (DV / PART); part++) {
    const int start = part % SLICES * SLICE, first_feature = part / SLICES * PART;
#pragma unroll
    for (int m = 0; m < SLICE; m++)
#pragma unroll
      for (int f = 0; f < PART / 8; f++)
        put_matrix(shared, ((threadIdx.x >> 5) * SLICE + m) * 16 * PITCH + f * 8, PITCH, sums[start + m][first_feature / 8 + f]);
    __syncthreads();
    const auto row_of = [&](int r) { return r / (SLICE * 16) * (TILES_M * 16) + start * 16 + r % (SLICE * 16); };
    finish_rows<WARPS * SLICE * 16, PART, PITCH, THREADS, true, 0, QUERIES, FEATURES, float>(shared, store, row_of, first_query,
                                                                                  (I)first_feature);
    __syncthreads();
  }
}

// sums += x y for SLAB steps, of which x has rows and y columns.
template <int SLAB, class Rows, class Columns, class S>
__device__ inline void add_products(float (&sums)[Rows::EACH][Columns::EACH], S &shared, int x_start, int x_pitch, int y_start,
                                    int y_pitch, int row_part, int column_part) {
#pragma unroll
  for (int k = 0; k < SLAB; k++) {
    float x[Rows::EACH], y[Columns::EACH];
    Rows::read(x, &shared[x_start + k * x_pitch], row_part);
    Columns::read(y, &shared[y_start + k * y_pitch], column_part);
#pragma unroll
    for (int i = 0; i < Rows::EACH; i++)
#pragma unroll
      for (int j = 0; j < Columns::EACH; j++) sums[i][j] += x[i] * y[j];
  }
}

template <int BQ, int BK, int DV, int PM, int PN, int SLAB, bool MASKED, bool DYNAMIC, bool ZERO, bool PARTIAL, bool KEPT, int64_t TILES,
          int64_t QUERIES, int64_t KEYS, int64_t DEPTH, int64_t FEATURES, class S, class Q, class K, class V, class Score,
          class Needed, class Keep, class Store, class I>
__device__ inline void scalar_attention(S &shared, const Q &queries, const K &keys, const V &values, const Score &score,
                                        const Needed &needed, const float limit, const Keep &keep, const Store &store,
                                        I first_query, I first) {
  constexpr int THREADS = PM * PN, PITCH_Q = BQ + 4, PITCH_K = BK + 4, PITCH_V = DV + 4, WEIGHTS = BK * PITCH_Q;
  using Rows = Runs<float, BQ, PM>;
  using Columns = Runs<float, BK, PN>;
  using Features = Runs<float, DV, PN>;
  const int row_part = threadIdx.x / PN, column_part = threadIdx.x % PN;
  const I tiles = last_tile<TILES, (KEYS + BK - 1) / BK>(first);
  float sums[Rows::EACH][Features::EACH], most[Rows::EACH], total[Rows::EACH];
#pragma unroll
  for (int i = 0; i < Rows::EACH; i++) {
    most[i] = -INFINITY, total[i] = 0;
#pragma unroll
    for (int f = 0; f < Features::EACH; f++) sums[i][f] = 0;
  }
#pragma unroll 1
  for (I tile = next_tile(needed, first, tiles, MASKED && !DYNAMIC); tile < tiles;) {
    const I first_key = tile * BK;
    float scores[Rows::EACH][Columns::EACH];
#pragma unroll
    for (int i = 0; i < Rows::EACH; i++)
#pragma unroll
      for (int j = 0; j < Columns::EACH; j++) scores[i][j] = 0;
    {
      ScalarTile<float, BQ, SLAB, PITCH_Q, THREADS, Q> a;
      ScalarTile<float, BK, SLAB, PITCH_K, THREADS, K> b;
      a.template load<QUERIES, DEPTH>(queries, first_query, (I)0);
      b.template load<KEYS, DEPTH>(keys, first_key, (I)0);
#pragma unroll 1
      for (I step = 0; step < DEPTH; step += SLAB) {
        __syncthreads();
        a.put(shared, WEIGHTS);
        b.put(shared, WEIGHTS + SLAB * PITCH_Q);
        __syncthreads();
        if (step + SLAB < DEPTH) {
          a.template load<QUERIES, DEPTH>(queries, first_query, (I)(step + SLAB));
          b.template load<KEYS, DEPTH>(keys, first_key, (I)(step + SLAB));
        }
        add_products<SLAB, Rows, Columns>(scores, shared, WEIGHTS, PITCH_Q, WEIGHTS + SLAB * PITCH_Q, PITCH_K, row_part, column_part);
      }
    }
    bool settled = MASKED;
#pragma unroll
    for (int r = 0; r < Rows::EACH; r++) {
      const int row = Rows::position(row_part, r);
      const I i = first_query + row;
      float high = most[r];
#pragma unroll
      for (int c = 0; c < Columns::EACH; c++) {
        const I k = first_key + Columns::position(column_part, c);
        scores[r][c] = i < QUERIES && k < KEYS ? score(i, k, scores[r][c]) : -INFINITY;
        high = maximum_f32(high, scores[r][c]);
      }
#pragma unroll
      for (int other = 1; other < PN; other *= 2) high = maximum_f32(high, __shfl_xor_sync(0xffffffffu, high, other));
      const float shift = high == -INFINITY ? 0.0f : high, decay = expf(most[r] - shift);
      most[r] = high;
      total[r] *= decay;
#pragma unroll
      for (int f = 0; f < Features::EACH; f++) sums[r][f] *= decay;
#pragma unroll
      for (int c = 0; c < Columns::EACH; c++) {
        const float weight = expf(scores[r][c] - shift);
        total[r] += weight;
        shared[Columns::position(column_part, c) * PITCH_Q + row] = weight;
      }
      if (i < QUERIES && !(high >= limit)) settled = !DYNAMIC;
    }
    ScalarTile<float, DV, SLAB, PITCH_V, THREADS, V> v;
    v.template load<FEATURES, KEYS>(values, (I)0, first_key);
#pragma unroll 1
    for (int step = 0; step < BK; step += SLAB) {
      __syncthreads();
      v.put(shared, WEIGHTS);
      __syncthreads();
      if (step + SLAB < BK) v.template load<FEATURES, KEYS>(values, (I)0, (I)(first_key + step + SLAB));
      add_products<SLAB, Rows, Features>(sums, shared, step * PITCH_Q, PITCH_Q, WEIGHTS, PITCH_V, row_part, column_part);
    }
    if constexpr (MASKED && DYNAMIC) settled = __syncthreads_and(settled);
    else __syncthreads();
    tile = next_tile(needed, (I)(tile + 1), tiles, MASKED && settled);
  }
#pragma unroll
  for (int r = 0; r < Rows::EACH; r++) {
#pragma unroll
    for (int other = 1; other < PN; other *= 2) total[r] += __shfl_xor_sync(0xffffffffu, total[r], other);
    if constexpr (PARTIAL || KEPT) {
      const I i = first_query + Rows::position(row_part, r);
      if (column_part == 0 && i < QUERIES) keep(i, most[r], total[r]);
    }
    if constexpr (PARTIAL) continue;
    const float inverse = ZERO && most[r] == -INFINITY ? 0.0f : 1.0f / total[r];
#pragma unroll
    for (int f = 0; f < Features::EACH; f++) sums[r][f] *= inverse;
  }
  constexpr int SLICE = fitting(Rows::EACH, (WEIGHTS + SLAB * (PITCH_Q + PITCH_K)) / (PM * PITCH_V));
#pragma unroll
  for (int start = 0; start < Rows::EACH; start += SLICE) {
#pragma unroll
    for (int n = 0; n < SLICE; n++) Features::write(sums[start + n], &shared[(n * PM + row_part) * PITCH_V], column_part);
    __syncthreads();
    const auto row_of = [&](int r) { return Rows::position(r % PM, start + r / PM); };
    finish_rows<SLICE * PM, DV, PITCH_V, THREADS, false, 0, QUERIES, FEATURES, float>(shared, store, row_of, first_query, (I)0);
    __syncthreads();
  }
}

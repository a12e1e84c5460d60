
// Matrix products: the threads of a block compute a tile of the result from tiles of the operands in shared memory.
//
// An operand is a function of a free index and a position along the depth. With VECTOR = 0 it returns the element, 0 of
// which stands for those beyond the end; otherwise it returns the address of VECTOR elements that are copied at once, and
// sets its third argument to false where they are 0.
// A function with a third argument puts GROUP elements that follow each other into an array.
// ALONG says that elements that follow each other along the depth are adjacent in memory, and so in shared memory.
template <bool ALONG, int VECTOR, class F> struct Operand {
  F at;
  static constexpr bool along = ALONG;
  static constexpr int vector = VECTOR, group = 0;
};
template <bool ALONG, int VECTOR, class F> __device__ inline Operand<ALONG, VECTOR, F> operand(F at) { return {at}; }
template <bool ALONG, int GROUP, class F> struct GroupOperand {
  F fill;
  static constexpr bool along = ALONG;
  static constexpr int vector = 0, group = GROUP;
};
template <bool ALONG, int GROUP, class F> __device__ inline GroupOperand<ALONG, GROUP, F> group_operand(F fill) { return {fill}; }

template <int BYTES> struct Raw;
template <> struct Raw<4> { typedef uint32_t type; };
template <> struct Raw<8> { typedef uint2 type; };
template <> struct Raw<16> { typedef uint4 type; };
// N elements that are read at once.
template <class T, int N> struct Pack {
  T value[N];
  __device__ inline void read(const void *from) {
    const typename Raw<sizeof(T) * N>::type raw = *(const typename Raw<sizeof(T) * N>::type *)from;
    memcpy(value, &raw, sizeof raw);
  }
  __device__ inline void write(void *to) const {
    typename Raw<sizeof(T) * N>::type raw;
    memcpy(&raw, value, sizeof raw);
    *(typename Raw<sizeof(T) * N>::type *)to = raw;
  }
};

// The largest divisor of a number of rows that fits.
__device__ constexpr int divisor(int each, int fit, int d) { return d <= 1 || (d <= fit && each % d == 0) ? d : divisor(each, fit, d - 1); }
__device__ constexpr int fitting(int each, int fit) { return divisor(each, fit, each); }

// The result is computed from sums in shared memory, so that adjacent threads read and write adjacent elements.
// `row_of(r)` is the row of the tile that is in row r; with BITS, shared memory holds floats as integers. With GROUP > 0
// `store` takes so many adjacent columns at a time, none of which is beyond the end if the first one is not.
template <int ROWS, int COLUMNS, int PITCH, int THREADS, bool BITS, int GROUP, int64_t M, int64_t N, class T, class S, class E, class R, class I>
__device__ inline void finish_rows(S &shared, const E &store, const R &row_of, I first_row, I first_column) {
  constexpr int WIDTH = GROUP ? GROUP : 1, MOST = 16 / sizeof(T), RUN = WIDTH < MOST ? WIDTH : MOST;
#pragma unroll 2
  for (int e = threadIdx.x; e < ROWS * COLUMNS / WIDTH; e += THREADS) {
    const int r = e / (COLUMNS / WIDTH), c = e % (COLUMNS / WIDTH) * WIDTH;
    const I i = first_row + row_of(r), j = first_column + c;
    if (i < M && j < N) {
      if constexpr (GROUP == 0) {
        if constexpr (BITS) store(i, j, BITS_TO_F32(shared[r * PITCH + c]));
        else store(i, j, shared[r * PITCH + c]);
      } else {
        T values[WIDTH];
#pragma unroll
        for (int n = 0; n < WIDTH; n += RUN) {
          Pack<T, RUN> run;
          run.read(&shared[r * PITCH + c + n]);
#pragma unroll
          for (int v = 0; v < RUN; v++) values[n + v] = run.value[v];
        }
        store(i, j, values);
      }
    }
  }
}

// ---- products in ordinary arithmetic

// What one thread moves of a tile of ROWS x DEPTH elements, which is in shared memory as DEPTH rows of PITCH elements.
template <class T, int ROWS, int DEPTH, int PITCH, int THREADS, class O> struct ScalarTile {
  static constexpr int WIDTH = O::vector ? O::vector : 1, UNITS = ROWS * DEPTH / WIDTH;
  static constexpr int EACH = (UNITS + THREADS - 1) / THREADS;
  Pack<T, WIDTH> held[EACH];
  static __device__ inline int row_of(int unit) { return O::along ? unit / (DEPTH / WIDTH) : unit % (ROWS / WIDTH) * WIDTH; }
  static __device__ inline int step_of(int unit) { return O::along ? unit % (DEPTH / WIDTH) * WIDTH : unit / (ROWS / WIDTH); }
  template <int64_t LENGTH, int64_t K, class I> __device__ inline void load(const O &operand, I first, I step, int thread = threadIdx.x) {
#pragma unroll
    for (int n = 0; n < EACH; n++) {
      const int unit = thread + n * THREADS;
      const I i = first + row_of(unit), k = step + step_of(unit);
      bool inside = (UNITS % THREADS == 0 || unit < UNITS) && i < LENGTH && k < K;
      if constexpr (O::vector != 0) {
        const void *from = operand.at(i, k, inside);
        if (inside) {
          held[n].read(from);
        } else {
#pragma unroll
          for (int v = 0; v < WIDTH; v++) held[n].value[v] = 0;
        }
      } else {
        held[n].value[0] = inside ? (T)operand.at(i, k) : (T)0;
      }
    }
  }
  template <class S> __device__ inline void put(S &shared, int start, int thread = threadIdx.x) const {
#pragma unroll
    for (int n = 0; n < EACH; n++) {
      const int unit = thread + n * THREADS;
      if (UNITS % THREADS != 0 && unit >= UNITS) break;
      const int at = start + step_of(unit) * PITCH + row_of(unit);
      if constexpr (!O::along && O::vector != 0) {
        held[n].write(&shared[at]);
      } else {
#pragma unroll
        for (int v = 0; v < WIDTH; v++) shared[at + v * PITCH] = held[n].value[v];
      }
    }
  }
};

// A dimension divided into PARTS: each part has runs of adjacent elements, of which one access reads as many as possible.
template <class T, int SIZE, int PARTS> struct Runs {
  static constexpr int EACH = SIZE / PARTS, MOST = 16 / sizeof(T), RUN = EACH < MOST ? EACH : MOST;
  static __device__ inline int position(int part, int n) { return n / RUN * (RUN * PARTS) + part * RUN + n % RUN; }
  static __device__ inline void read(T (&to)[EACH], const T *shared, int part) {
#pragma unroll
    for (int n = 0; n < EACH; n += RUN) {
      Pack<T, RUN> run;
      run.read(shared + position(part, n));
#pragma unroll
      for (int v = 0; v < RUN; v++) to[n + v] = run.value[v];
    }
  }
  static __device__ inline void write(const T (&from)[EACH], T *shared, int part) {
#pragma unroll
    for (int n = 0; n < EACH; n += RUN) {
      Pack<T, RUN> run;
#pragma unroll
      for (int v = 0; v < RUN; v++) run.value[v] = from[n + v];
      run.write(shared + position(part, n));
    }
  }
};

// What is added up, if it is not a product: a function of the elements of a row and of a column.
struct Multiply {
  static constexpr bool keeps_zeros = true;
  template <class T> __device__ inline T operator()(T x, T y) const { return x * y; }
};
template <class F> struct Term {
  F of;
  static constexpr bool keeps_zeros = false;  // elements beyond the depth, which are zeros, may have another term
  template <class T> __device__ inline T operator()(T x, T y) const { return of(x, y); }
};
template <class F> __device__ inline Term<F> term(F of) { return {of}; }

// With PK > 1 so many groups of threads take steps of the depth in turns, each with stages of its own.
template <class T, int BM, int BN, int BK, int PM, int PN, int PK, int64_t M, int64_t N, int64_t K, int GROUPED, class S, class L, class R, class E, class I,
          class P = Multiply>
__device__ inline void scalar_product(S &shared, const L &left, const R &right, const E &store, I first_row, I first_column,
                                      const P &term_of = P()) {
  constexpr int THREADS = PM * PN, PITCH_A = BM + 4, PITCH_B = BN + 4, STAGE = BK * (PITCH_A + PITCH_B);
  constexpr int GROUP = 2 * STAGE > PM * PITCH_B ? 2 * STAGE : PM * PITCH_B;
  using Rows = Runs<T, BM, PM>;
  using Columns = Runs<T, BN, PN>;
  const int group = PK == 1 ? 0 : threadIdx.x / THREADS, thread = PK == 1 ? threadIdx.x : threadIdx.x % THREADS;
  const int row_part = thread / PN, column_part = thread % PN, own = group * GROUP;
  ScalarTile<T, BM, BK, PITCH_A, THREADS, L> a;
  ScalarTile<T, BN, BK, PITCH_B, THREADS, R> b;
  T sums[Rows::EACH][Columns::EACH];
#pragma unroll
  for (int i = 0; i < Rows::EACH; i++)
#pragma unroll
    for (int j = 0; j < Columns::EACH; j++) sums[i][j] = 0;
  a.template load<M, K>(left, first_row, (I)(group * BK), thread);
  b.template load<N, K>(right, first_column, (I)(group * BK), thread);
  a.put(shared, own, thread);
  b.put(shared, own + BK * PITCH_A, thread);
  __syncthreads();
  int stage = 0;
#pragma unroll 1
  for (I step = 0; step < K; step += PK * BK) {
    const bool more = step + PK * BK < K;
    if (more) {
      a.template load<M, K>(left, first_row, (I)(step + (PK + group) * BK), thread);
      b.template load<N, K>(right, first_column, (I)(step + (PK + group) * BK), thread);
    }
    const int from = own + stage * STAGE;
#pragma unroll
    for (int k = 0; k < BK; k++) {
      T x[Rows::EACH], y[Columns::EACH];
      Rows::read(x, &shared[from + k * PITCH_A], row_part);
      Columns::read(y, &shared[from + BK * PITCH_A + k * PITCH_B], column_part);
      if (!P::keeps_zeros && K % (PK * BK) != 0 && step + group * BK + k >= K) break;
#pragma unroll
      for (int i = 0; i < Rows::EACH; i++)
#pragma unroll
        for (int j = 0; j < Columns::EACH; j++) sums[i][j] += term_of(x[i], y[j]);
    }
    stage ^= 1;
    if (more) {
      a.put(shared, own + stage * STAGE, thread);
      b.put(shared, own + stage * STAGE + BK * PITCH_A, thread);
    }
    __syncthreads();
  }
  // As many rows of the result are put into shared memory at a time as fit where the operands were.
  constexpr int SLICE = fitting(Rows::EACH, GROUP / (PM * PITCH_B));
#pragma unroll
  for (int start = 0; start < Rows::EACH; start += SLICE) {
#pragma unroll
    for (int n = 0; n < SLICE; n++) Columns::write(sums[start + n], &shared[own + (n * PM + row_part) * PITCH_B], column_part);
    __syncthreads();
    if constexpr (PK > 1) {  // always in the same order
      for (int e = threadIdx.x; e < SLICE * PM * BN; e += PK * THREADS) {
        const int at = e / BN * PITCH_B + e % BN;
        T sum = shared[at];
#pragma unroll
        for (int g = 1; g < PK; g++) sum += shared[g * GROUP + at];
        shared[at] = sum;
      }
      __syncthreads();
    }
    const auto row_of = [&](int r) { return Rows::position(r % PM, start + r / PM); };
    finish_rows<SLICE * PM, BN, PITCH_B, PK * THREADS, false, GROUPED, M, N, T>(shared, store, row_of, first_row, first_column);
    __syncthreads();
  }
}

// ---- products by tensor cores, of bf16 or f16, with sums in f32

// Shared memory holds two elements per word, adjacent in the direction in which they are adjacent in memory.
// A tile of ROWS x DEPTH is ROWS lines of DEPTH elements if that is along the depth, otherwise DEPTH lines of ROWS.
// Four words between lines keep the eight lines of a matrix that is loaded on different banks.
template <class T, int ROWS, int DEPTH, int THREADS, class O> struct HalfTile {
  static constexpr int LINES = O::along ? ROWS : DEPTH, LENGTH = O::along ? DEPTH : ROWS, PITCH = LENGTH / 2 + 4;
  static constexpr int WORDS = LINES * PITCH;
  static constexpr int WIDTH = O::vector ? O::vector : O::group ? O::group : 2, UNITS = LINES * LENGTH / WIDTH;
  static constexpr int EACH = (UNITS + THREADS - 1) / THREADS, HALVES = WIDTH / 2;
  uint32_t held[O::vector ? 1 : EACH * HALVES];
  // Starts to copy the elements, or computes them.
  template <int64_t M, int64_t K, class S, class I>
  __device__ inline void fetch(const O &operand, S &shared, int start, I first, I step) {
#pragma unroll
    for (int n = 0; n < EACH; n++) {
      const int unit = threadIdx.x + n * THREADS;
      if (UNITS % THREADS != 0 && unit >= UNITS) break;
      const int line = unit / (LENGTH / WIDTH), along = unit % (LENGTH / WIDTH) * WIDTH;
      const I i = first + (O::along ? line : along), k = step + (O::along ? along : line);
      if constexpr (O::vector != 0) {
        bool inside = i < M && k < K;
        const void *from = operand.at(i, k, inside);
        copy_async<WIDTH * 2>(shared, start + line * PITCH + along / 2, from, inside);
      } else if constexpr (O::group != 0) {
        float values[WIDTH];
        if (i < M && k < K) {
          operand.fill(i, k, values);
        } else {
#pragma unroll
          for (int v = 0; v < WIDTH; v++) values[v] = 0.0f;
        }
#pragma unroll
        for (int v = 0; v < HALVES; v++) held[n * HALVES + v] = two_halves<T>(values[2 * v], values[2 * v + 1]);
      } else {
        const I next_i = i + !O::along, next_k = k + O::along;
        const float low = i < M && k < K ? (float)operand.at(i, k) : 0.0f;
        const float high = next_i < M && next_k < K ? (float)operand.at(next_i, next_k) : 0.0f;
        held[n] = two_halves<T>(low, high);
      }
    }
  }
  // Puts what was computed into shared memory.
  template <class S> __device__ inline void put(S &shared, int start) const {
    if constexpr (O::vector == 0) {
#pragma unroll
      for (int n = 0; n < EACH; n++) {
        const int unit = threadIdx.x + n * THREADS;
        if (UNITS % THREADS != 0 && unit >= UNITS) break;
#pragma unroll
        for (int v = 0; v < HALVES; v++)
          shared[start + unit / (LENGTH / WIDTH) * PITCH + unit % (LENGTH / WIDTH) * HALVES + v] = held[n * HALVES + v];
      }
    }
  }
  // Loads the matrices of 8 x 8 elements at (row, k), (row + 8, k), (row, k + 8), (row + 8, k + 8), in this order if
  // ROWS_FIRST, otherwise with the second and the third exchanged.
  template <bool ROWS_FIRST, class S>
  static __device__ inline void fragments(uint32_t (&to)[4], S &shared, int start, int row, int k) {
    const int lane = threadIdx.x & 31, matrix = lane >> 3;
    row += (ROWS_FIRST ? matrix & 1 : matrix >> 1) * 8;
    k += (ROWS_FIRST ? matrix >> 1 : matrix & 1) * 8;
    if constexpr (O::along) load_matrices<false>(to, shared, start + (row + (lane & 7)) * PITCH + k / 2);
    else load_matrices<true>(to, shared, start + (k + (lane & 7)) * PITCH + row / 2);
  }
};

// Puts sums of 16 x 8 elements, as they are after `multiply_matrices`, into rows of shared memory.
template <class S> __device__ inline void put_matrix(S &shared, int start, int pitch, const float (&sums)[4]) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const Pack<uint32_t, 2> pair = {{F32_TO_BITS(sums[2 * h]), F32_TO_BITS(sums[2 * h + 1])}};
    pair.write(&shared[start + (h * 8 + (lane >> 2)) * pitch + (lane & 3) * 2]);
  }
}

template <class T, int BM, int BN, int BK, int WM, int WN, int STAGES, int64_t M, int64_t N, int64_t K, int GROUPED, class S,
          class L, class R, class E, class I>
__device__ inline void tensor_product(S &shared, const L &left, const R &right, const E &store, I first_row, I first_column) {
  constexpr int THREADS = 32 * WM * WN, TILES_M = BM / WM / 16, TILES_N = BN / WN / 8;
  using A = HalfTile<T, BM, BK, THREADS, L>;
  using B = HalfTile<T, BN, BK, THREADS, R>;
  constexpr int STAGE = A::WORDS + B::WORDS;
  // Computed elements wait in registers for the next stage; copies are under way for all stages but one.
  constexpr bool COPIES = L::vector != 0 || R::vector != 0;
  const int warp = threadIdx.x >> 5;
  const int warp_row = warp / WN * (BM / WM), warp_column = warp % WN * (BN / WN);
  A a;
  B b;
  float sums[TILES_M][TILES_N][4];
#pragma unroll
  for (int m = 0; m < TILES_M; m++)
#pragma unroll
    for (int n = 0; n < TILES_N; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) sums[m][n][e] = 0;
#pragma unroll
  for (int stage = 0; stage < STAGES - 1; stage++) {
    if (L::vector != 0 || stage == 0) a.template fetch<M, K>(left, shared, stage * STAGE, first_row, (I)(stage * BK));
    if (R::vector != 0 || stage == 0) b.template fetch<N, K>(right, shared, stage * STAGE + A::WORDS, first_column, (I)(stage * BK));
    if constexpr (COPIES) end_copies();
  }
  a.put(shared, 0);
  b.put(shared, A::WORDS);
  int stage = 0;
#pragma unroll 1
  for (I step = 0; step < K; step += BK) {
    if constexpr (COPIES) wait_for_copies<STAGES - 2>();
    __syncthreads();
    const int from = stage * STAGE, copied = (stage + STAGES - 1) % STAGES * STAGE, computed = (stage + 1) % STAGES * STAGE;
    const I ahead = step + (STAGES - 1) * BK;
    const bool more = step + BK < K;
    if (L::vector != 0 ? ahead < K : more)
      a.template fetch<M, K>(left, shared, copied, first_row, (I)(L::vector != 0 ? ahead : step + BK));
    if (R::vector != 0 ? ahead < K : more)
      b.template fetch<N, K>(right, shared, copied + A::WORDS, first_column, (I)(R::vector != 0 ? ahead : step + BK));
    if constexpr (COPIES) end_copies();
#pragma unroll
    for (int k = 0; k < BK; k += 16) {
      uint32_t x[TILES_M][4], y[TILES_N / 2][4];
#pragma unroll
      for (int m = 0; m < TILES_M; m++) A::template fragments<true>(x[m], shared, from, warp_row + m * 16, k);
#pragma unroll
      for (int n = 0; n < TILES_N / 2; n++)
        B::template fragments<false>(y[n], shared, from + A::WORDS, warp_column + n * 16, k);
#pragma unroll
      for (int m = 0; m < TILES_M; m++)
#pragma unroll
        for (int n = 0; n < TILES_N; n++)
          multiply_matrices<T>(sums[m][n], x[m], y[n / 2][n % 2 * 2], y[n / 2][n % 2 * 2 + 1]);
    }
    if (more) {
      a.put(shared, computed);
      b.put(shared, computed + A::WORDS);
    }
    stage = (stage + 1) % STAGES;
  }
  if constexpr (COPIES) wait_for_copies<0>();
  __syncthreads();
  constexpr int PITCH = BN + 8, SLICE = fitting(TILES_M, STAGES * STAGE / (WM * 16 * PITCH));
#pragma unroll
  for (int start = 0; start < TILES_M; start += SLICE) {
#pragma unroll
    for (int m = 0; m < SLICE; m++)
#pragma unroll
      for (int n = 0; n < TILES_N; n++)
        put_matrix(shared, (warp / WN * SLICE + m) * 16 * PITCH + warp_column + n * 8, PITCH, sums[start + m][n]);
    __syncthreads();
    const auto row_of = [&](int r) { return r / (SLICE * 16) * (BM / WM) + start * 16 + r % (SLICE * 16); };
    finish_rows<WM * SLICE * 16, BN, PITCH, THREADS, true, GROUPED, M, N, float>(shared, store, row_of, first_row, first_column);
    __syncthreads();
  }
}

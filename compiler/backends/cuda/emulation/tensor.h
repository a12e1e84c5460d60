// Tensor cores and asynchronous copies: the functions of printing/tensor_cuda.h, with the semantics of the PTX ISA.

// ---- asynchronous copies: a thread's copies are made when it waits for them, the latest moment that PTX allows

struct emulation_copy {
  void *to;
  const void *from;
  int bytes;
  bool inside;
};
struct emulation_copies {
  enum { MOST = 512, GROUPS = 8 };
  emulation_copy all[MOST];
  int count, groups, ends[GROUPS];
};
static emulation_copies emulation_pending[1024];
EMULATION inline emulation_copies &emulation_my_copies() { return emulation_pending[emulation_runtime->thread.x]; }

template <int BYTES, int N>
EMULATION inline void copy_async(unsigned (&shared)[N], int at, const void *from, bool inside) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async copies 4, 8 or 16 bytes");
  emulation_copies &mine = emulation_my_copies();
  void *to = &shared[at];
  if (((unsigned long)to | (unsigned long)from) % BYTES || mine.count == emulation_copies::MOST) __builtin_trap();
  mine.all[mine.count++] = {to, from, BYTES, inside};
}
EMULATION inline void end_copies() {
  emulation_copies &mine = emulation_my_copies();
  if (mine.groups == emulation_copies::GROUPS) __builtin_trap();
  mine.ends[mine.groups++] = mine.count;
}
template <int PENDING> EMULATION inline void wait_for_copies() {
  emulation_copies &mine = emulation_my_copies();
  if (mine.groups <= PENDING) return;
  const int complete = mine.groups - PENDING, end = mine.ends[complete - 1];
  for (int n = 0; n < end; n++) {
    const emulation_copy &c = mine.all[n];
    if (c.inside) emulation_runtime->access(c.from, c.bytes, emulation::READ, HERE);
    emulation_runtime->access(c.to, c.bytes, emulation::WRITE, HERE);
    if (c.inside) memcpy(c.to, c.from, c.bytes);
    else memset(c.to, 0, c.bytes);
  }
  for (int n = end; n < mine.count; n++) mine.all[n - end] = mine.all[n];
  for (int n = complete; n < mine.groups; n++) mine.ends[n - complete] = mine.ends[n] - end;
  mine.count -= end;
  mine.groups -= complete;
}

// ---- matrices

template <bool TRANSPOSED, int N> EMULATION inline void load_matrices(unsigned (&to)[4], unsigned (&shared)[N], int at) {
  const unsigned *row = &shared[at];
  if ((unsigned long)row % 16) __builtin_trap();
  emulation_runtime->access(row, 16, emulation::READ, HERE);
  unsigned short elements[8];
  memcpy(elements, row, sizeof elements);
  const emulation::Exchange *all =
      emulation_runtime->exchange(emulation::LOAD_MATRIX, 0xffffffffu, elements, sizeof elements, HERE);
  const unsigned major = emulation_runtime->lane / 4, minor = emulation_runtime->lane % 4 * 2;
  for (int m = 0; m < 4; m++) {
    unsigned short pair[2];
    for (unsigned e = 0; e < 2; e++) {
      const unsigned r = TRANSPOSED ? minor + e : major, c = TRANSPOSED ? major : minor + e;
      memcpy(&pair[e], all->values[8 * m + r] + 2 * c, 2);
    }
    memcpy(&to[m], pair, 4);
  }
}

template <class T> inline float emulation_element(unsigned short bits);
template <> inline float emulation_element<__nv_bfloat16>(unsigned short bits) { return __uint_as_float((unsigned)bits << 16); }
template <> inline float emulation_element<__half>(unsigned short bits) { return half_value(bits); }

template <class T>
EMULATION inline void multiply_matrices(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  const unsigned mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  const emulation::Exchange *all = emulation_runtime->exchange(emulation::TENSOR, 0xffffffffu, mine, sizeof mine, HERE);
  const unsigned major = emulation_runtime->lane / 4, minor = emulation_runtime->lane % 4 * 2;
  for (unsigned e = 0; e < 4; e++) {
    const unsigned row = major + e / 2 * 8, column = minor + e % 2;
    for (unsigned k = 0; k < 16; k++) {
      unsigned short x, y;  // of the lanes that hold a (row, k) and b (k, column)
      const unsigned pair = k % 8 / 2;
      memcpy(&x, all->values[row % 8 * 4 + pair] + 4 * (row / 8 + k / 8 * 2) + k % 2 * 2, 2);
      memcpy(&y, all->values[column * 4 + pair] + 4 * (4 + k / 8) + k % 2 * 2, 2);
      sums[e] += emulation_element<T>(x) * emulation_element<T>(y);
    }
  }
}

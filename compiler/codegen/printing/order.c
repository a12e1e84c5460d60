/* Functions that sort or select the elements of rows by key; print_order.py fills in the names that begin with a dollar
   sign and takes the sections that a sort needs. */

/* section head: the keys of a part of a row, and what happens with the sorted row. */
${attributes}static void ${f}_keys(void *const *arguments, int64_t row, int64_t first, int64_t count, $key *keys) {
  (void)row;
${read}
}

${attributes}static void ${f}_write(void *const *arguments, int64_t row, const $entry *order) {
  (void)row;
${write}
}

/* section sort: a sort of entries, which returns where they are: in `a` or in `b`. */
/* Sort at most $run entries by counting, for each of them, the smaller ones. */
${attributes}static void ${f}_rank(const $entry *from, $entry *to, int64_t count) {
  $entry entries[$run] __attribute__((aligned(64))), ranks[$run] __attribute__((aligned(64)));
  for (int64_t i = 0; i < $run; i++) {
    entries[i] = i < count ? from[i] : ~($entry)0;
    ranks[i] = 0;
  }
  for (int64_t j = 0; j < count; j++) {
    const $entry other = entries[j];
#pragma omp simd
    for (int64_t i = 0; i < $run; i++) ranks[i] += other < entries[i];
  }
  for (int64_t i = 0; i < count; i++) to[ranks[i]] = entries[i];
}

${attributes}static $entry *${f}_merge_sort($entry *a, $entry *b, int64_t count) {
  for (int64_t first = 0; first < count; first += $run) {
    ${f}_rank(a + first, b + first, count - first < $run ? count - first : $run);
  }
  for (int64_t width = $run; width < count; width *= 2) {
    for (int64_t first = 0; first < count; first += 2 * width) {
      const int64_t middle = first + width < count ? first + width : count;
      const int64_t last = first + 2 * width < count ? first + 2 * width : count;
      int64_t i = first, j = middle, k = first;
      while (i < middle && j < last) {
        const $entry left = b[i], right = b[j];
        const int take = right < left;
        a[k++] = take ? right : left;
        j += take;
        i += !take;
      }
      while (i < middle) a[k++] = b[i++];
      while (j < last) a[k++] = b[j++];
    }
    $entry *const other = a;
    a = b;
    b = other;
  }
  return b;
}

/* Sort by the digits of the key, the lowest first; entries with equal keys must be in order already. */
${attributes}static $entry *${f}_radix_sort($entry *a, $entry *b, int64_t count) {
  uint32_t counts[$digits][$radix];
  __builtin_memset(counts, 0, sizeof(counts));
#pragma GCC unroll 4
  for (int64_t i = 0; i < count; i++) {
    const $key key = ($key)(a[i] >> $index_bits);
    for (int d = 0; d < $digits; d++) counts[d][(key >> (d * $digit)) & ($radix - 1)]++;
  }
  for (int d = 0; d < $digits; d++) {
    const int shift = $index_bits + d * $digit;
    if (counts[d][(uint32_t)(a[0] >> shift) & ($radix - 1)] == (uint32_t)count) continue; /* one digit for all */
    uint32_t sum = 0;
    for (int r = 0; r < $radix; r++) {
      const uint32_t here = counts[d][r];
      counts[d][r] = sum;
      sum += here;
    }
#pragma GCC unroll 4
    for (int64_t i = 0; i < count; i++) b[counts[d][(uint32_t)(a[i] >> shift) & ($radix - 1)]++] = a[i];
    $entry *const other = a;
    a = b;
    b = other;
  }
  return a;
}

${attributes}static $entry *${f}_sort($entry *a, $entry *b, int64_t count) {
  return count <= $merge ? ${f}_merge_sort(a, b, count) : ${f}_radix_sort(a, b, count);
}

static $entry *${f}_entries(void *const *arguments, int64_t row, int64_t first, int64_t count, $entry *entries) {
  $key keys[$block] __attribute__((aligned(64)));
  for (int64_t at = 0; at < count; at += $block) {
    const int64_t some = count - at < $block ? count - at : $block;
    ${f}_keys(arguments, row, first + at, some, keys);
    for (int64_t i = 0; i < some; i++) entries[at + i] = ($entry)keys[i] << $index_bits | ($entry)(first + at + i);
  }
  return entries;
}

/* section whole: all elements of a row are sorted. */
static void ${f}_row(void *const *arguments, int64_t row, $entry *a, $entry *b) {
  ${f}_write(arguments, row, ${f}_sort(${f}_entries(arguments, row, 0, $n, a), b, $n));
}

/* section insertion: the best entries so far are kept in order, and an element is compared with the last of them. */
${attributes}static void ${f}_insert($entry *best, int64_t count, $entry entry) {
  int64_t at = count;
  for (; at > 0 && entry < best[at - 1]; at--) best[at] = best[at - 1];
  best[at] = entry;
}

/* Insert an entry and drop the last one; each entry is the smaller of itself and of what moves up, without branches. */
${attributes}static void ${f}_replace($entry *best, $entry entry) {
  $entry moved[$k];
  moved[0] = best[0] < entry ? best[0] : entry;
#pragma omp simd
  for (int64_t i = 1; i < $k; i++) {
    const $entry up = best[i - 1] > entry ? best[i - 1] : entry;
    moved[i] = best[i] < up ? best[i] : up;
  }
  __builtin_memcpy(best, moved, sizeof(moved));
}

${attributes}static void ${f}_row(void *const *arguments, int64_t row, $entry *best, $entry *unused) {
  $key keys[$block] __attribute__((aligned(64)));
  $entry found[$block];
  (void)found;
  (void)unused;
  ${f}_keys(arguments, row, 0, $k, keys);
  for (int64_t i = 0; i < $k; i++) ${f}_insert(best, i, ($entry)keys[i] << $index_bits | ($entry)i);
  for (int64_t first = $k; first < $n; first += $block) {
    const int64_t some = $n - first < $block ? $n - first : $block;
    ${f}_keys(arguments, row, first, some, keys);
    $key limit = ($key)(best[$k - 1] >> $index_bits), least = limit;
#pragma omp simd reduction(min : least)
    for (int64_t i = 0; i < some; i++) least = keys[i] < least ? keys[i] : least;
    if (least == limit) continue;
#if $key_bits == 32 && defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__)
    /* Compare 16 keys at once; the bits of the mask are the keys below the limit. */
    typedef int vector_t __attribute__((vector_size(64)));
    for (int64_t i = some; i % 16 != 0; i++) keys[i] = ~($key)0;
    for (int64_t at = 0; at < some; at += 16) {
      vector_t here;
      __builtin_memcpy(&here, keys + at, sizeof(here));
      uint32_t mask = (uint16_t)__builtin_ia32_ucmpd512_mask(here, (vector_t){} + (int)limit, 1, (short)-1);
      for (; mask != 0; mask &= mask - 1) {
        const int64_t i = at + __builtin_ctz(mask);
        const $entry entry = ($entry)keys[i] << $index_bits | ($entry)(first + i);
        if (entry < best[$k - 1]) ${f}_replace(best, entry);
      }
      limit = ($key)(best[$k - 1] >> $index_bits);
    }
#else
    int64_t count = 0;
    for (int64_t i = 0; i < some; i++) {
      found[count] = ($entry)keys[i] << $index_bits | ($entry)(first + i);
      count += keys[i] < limit;
    }
    for (int64_t i = 0; i < count; i++) {
      if (found[i] < best[$k - 1]) ${f}_replace(best, found[i]);
    }
#endif
  }
  ${f}_write(arguments, row, best);
}

/* section compaction: elements better than the last of the best are collected, and sorted when there is no room left. */
${attributes}static void ${f}_row(void *const *arguments, int64_t row, $entry *a, $entry *b) {
  $key keys[$block] __attribute__((aligned(64)));
  int64_t count = 0, first = 0;
  $key limit = 0;
  for (;;) {
    /* At first all elements are collected, and then those below the limit. */
    for (; first < $n && count <= $room; first += $block) {
      const int64_t some = $n - first < $block ? $n - first : $block;
      ${f}_keys(arguments, row, first, some, keys);
      if (limit == 0) {
        for (int64_t i = 0; i < some; i++) a[count++] = ($entry)keys[i] << $index_bits | ($entry)(first + i);
        continue;
      }
      $key least = limit;
#pragma omp simd reduction(min : least)
      for (int64_t i = 0; i < some; i++) least = keys[i] < least ? keys[i] : least;
      if (least == limit) continue;
      for (int64_t i = 0; i < some; i++) {
        a[count] = ($entry)keys[i] << $index_bits | ($entry)(first + i);
        count += keys[i] < limit;
      }
    }
    $entry *const sorted = ${f}_sort(a, b, count);
    if (sorted == b) {
      b = a;
      a = sorted;
    }
    limit = ($key)(a[$k - 1] >> $index_bits);
    count = $k;
    if (first >= $n || limit == 0) break; /* nothing is below 0 */
  }
  ${f}_write(arguments, row, a);
}

/* section rows: the rows of one task. */
static void ${f}_rows(void *context, int64_t first, int64_t last) {
  void *const *arguments = (void *const *)context;
  $entry *const memory = ($entry *)__builtin_malloc(2 * sizeof($entry) * $capacity);
  if (memory == 0) __builtin_abort();
  for (int64_t row = first; row < last; row++) ${f}_row(arguments, row, memory, memory + $capacity);
  __builtin_free(memory);
}

#ifndef HLOGYM_STREAM
#define HLOGYM_STREAM
/* Copy bytes past the caches; both addresses are multiples of 4. */
static inline void hlogym_stream(void *to, const void *from, int64_t bytes) {
  char *out = (char *)to;
  const char *in = (const char *)from;
  if (bytes <= 0) return;
#if defined(__SSE2__) && defined(__GNUC__) && !defined(__clang__)
#if defined(__AVX512F__)
  typedef float stream_line __attribute__((vector_size(64), may_alias));
#define STREAM_LINE __builtin_ia32_movntps512
#elif defined(__AVX__)
  typedef float stream_line __attribute__((vector_size(32), may_alias));
#define STREAM_LINE __builtin_ia32_movntps256
#else
  typedef float stream_line __attribute__((vector_size(16), may_alias));
#define STREAM_LINE __builtin_ia32_movntps
#endif
  for (; bytes >= 4 && (uint64_t)out % sizeof(stream_line) != 0; bytes -= 4, out += 4, in += 4) {
    __builtin_memcpy(out, in, 4);
  }
  for (; bytes >= (int64_t)sizeof(stream_line); bytes -= (int64_t)sizeof(stream_line)) {
    stream_line line;
    __builtin_memcpy(&line, in, sizeof(line));
    STREAM_LINE((float *)out, line);
    out += sizeof(line);
    in += sizeof(line);
  }
  __builtin_ia32_sfence(); /* such stores are not ordered with those that publish the results to other threads */
#endif
  __builtin_memcpy(out, in, (uint64_t)bytes);
}
#endif

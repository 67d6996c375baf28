/* Panels of bf16 whose high bytes are numbers in a codebook of 16: `coded_bf16` of functions.py, alone and as the right
 * operand of a dot. Both compute the words that the plain panel would hold, and sum them in the order of dot_bf16.h. */
#pragma once
#include "dot_bf16.h"

/* k pairs of N columns: rows [pairs][3N], of low bytes and codes; escapes [pairs][N]; codebook [16]; escaped [pairs]. */
typedef struct { const uint8_t *rows, *escapes, *codebook, *escaped; } cp_coded;

/* Rows that escape are few, and the rest of each lies elsewhere: fetched before its turn, it is there in time. */
CP_INLINE void cp_fetch_escapes(const cp_coded *w, int pairs, int N) {
  for (int k = 0; k < pairs; k += 8) {
    const int eight = pairs - k < 8 ? pairs - k : 8;
    uint64_t some = 0;
    memcpy(&some, w->escaped + k, eight);
    if (__builtin_expect(some == 0, 1)) continue;
    for (int j = k; j < k + eight; j++)
      if (w->escaped[j])
        for (int byte = 0; byte < N; byte += 64) __builtin_prefetch(w->escapes + (int64_t)N * j + byte, 0, 3);
  }
}

/* high[2N]: what the codes of one row say */
CP_INLINE void cp_look_up(int N, const uint8_t *codes, const uint8_t *codebook, uint8_t *high) {
#if defined(__AVX2__)
  const __m128i book = _mm_loadu_si128((const __m128i *)codebook), four = _mm_set1_epi8(15);
  for (int j = 0; j < N; j += 16) {
    const __m128i c = _mm_loadu_si128((const __m128i *)(codes + j));
    _mm_storeu_si128((__m128i *)(high + j), _mm_shuffle_epi8(book, _mm_and_si128(c, four)));
    _mm_storeu_si128((__m128i *)(high + N + j), _mm_shuffle_epi8(book, _mm_and_si128(_mm_srli_epi16(c, 4), four)));
  }
#else
  for (int j = 0; j < N; j++) {
    high[j] = codebook[codes[j] & 15];
    high[N + j] = codebook[codes[j] >> 4];
  }
#endif
}

#if CP_LANES == 16 && defined(__AVX512BW__)
#define CP_CODED_IN_REGISTERS

/* 16 bit words of 32 low and 32 high bytes: those of the lower (0) or upper (1) halves of l and h */
#if defined(__AVX512VBMI__)
CP_INLINE __m512i cp_zip(__m512i l, __m512i h, int half) {
  const __m512i pairs = _mm512_set_epi8(
      95, 31, 94, 30, 93, 29, 92, 28, 91, 27, 90, 26, 89, 25, 88, 24, 87, 23, 86, 22, 85, 21, 84, 20, 83, 19, 82, 18, 81, 17, 80, 16,
      79, 15, 78, 14, 77, 13, 76, 12, 75, 11, 74, 10, 73, 9, 72, 8, 71, 7, 70, 6, 69, 5, 68, 4, 67, 3, 66, 2, 65, 1, 64, 0);
  return _mm512_permutex2var_epi8(l, _mm512_add_epi8(pairs, _mm512_set1_epi8(32 * half)), h);
}
#else
CP_INLINE __m512i cp_zip(__m512i l, __m512i h, int half) {
  __m256i low = half ? _mm512_extracti64x4_epi64(l, 1) : _mm512_castsi512_si256(l);
  __m256i high = half ? _mm512_extracti64x4_epi64(h, 1) : _mm512_castsi512_si256(h);
  return _mm512_or_si512(_mm512_cvtepu8_epi16(low), _mm512_slli_epi16(_mm512_cvtepu8_epi16(high), 8));
}
#endif
CP_INLINE __m512i cp_both(__m256i lower, __m256i upper) { return _mm512_inserti64x4(_mm512_castsi256_si512(lower), upper, 1); }
CP_INLINE __m256i cp_both_halves(__m128i lower, __m128i upper) { return _mm256_inserti128_si256(_mm256_castsi128_si256(lower), upper, 1); }

/* Row k as V = N / 16 vectors of words. book: the codebook in each 128 bits. */
CP_INLINE void cp_coded_words(const cp_coded *w, int64_t k, int V, __m512i book, __m512i *words) {
  const int N = 16 * V;
  const uint8_t *low = w->rows + 3 * N * k, *codes = low + 2 * N, *rest = w->escapes + N * k;
  const __m512i four = _mm512_set1_epi8(15);
  const bool plain = __builtin_expect(w->escaped[k] != 0, 0);
  if (V >= 4) {
    for (int q = 0; q < V / 4; q++) {
      __m512i c = _mm512_loadu_si512(codes + 64 * q), first, second;
      if (plain) { first = c; second = _mm512_loadu_si512(rest + 64 * q); }
      else {
        first = _mm512_shuffle_epi8(book, _mm512_and_si512(c, four));
        second = _mm512_shuffle_epi8(book, _mm512_and_si512(_mm512_srli_epi16(c, 4), four));
      }
      __m512i l = _mm512_loadu_si512(low + 64 * q), m = _mm512_loadu_si512(low + N + 64 * q);
      words[2 * q] = cp_zip(l, first, 0);
      words[2 * q + 1] = cp_zip(l, first, 1);
      words[V / 2 + 2 * q] = cp_zip(m, second, 0);
      words[V / 2 + 2 * q + 1] = cp_zip(m, second, 1);
    }
  } else if (V == 2) {
    __m256i c = _mm256_loadu_si256((const __m256i *)codes);
    __m512i high = plain ? cp_both(c, _mm256_loadu_si256((const __m256i *)rest))
                         : _mm512_shuffle_epi8(book, _mm512_and_si512(cp_both(c, _mm256_srli_epi16(c, 4)), four));
    __m512i l = _mm512_loadu_si512(low);
    words[0] = cp_zip(l, high, 0);
    words[1] = cp_zip(l, high, 1);
  } else {
    __m128i c = _mm_loadu_si128((const __m128i *)codes);
    __m256i high = plain ? cp_both_halves(c, _mm_loadu_si128((const __m128i *)rest))
                         : _mm256_shuffle_epi8(_mm512_castsi512_si256(book), _mm256_and_si256(cp_both_halves(c, _mm_srli_epi16(c, 4)), _mm256_set1_epi8(15)));
    words[0] = cp_zip(_mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)low)), _mm512_castsi256_si512(high), 0);
  }
}
CP_INLINE __m512i cp_book(const cp_coded *w) { return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)w->codebook)); }

/* One register tile, as cp_panel_RxV: the words go from the codes to the products without a store. */
#define CP_CODED_TILE(R, V) \
  CP_INLINE void cp_coded_##R##x##V(int pairs, const uint16_t *A, int lda, const cp_coded *w, float *C, int ldc, \
                                    enum cp_start start, const float *scale) { \
    const __m512i book = cp_book(w); \
    cp_fetch_escapes(w, pairs, 16 * V); \
    cp_vec c[R][V]; \
    for (int r = 0; r < R; r++) \
      for (int v = 0; v < V; v++) { \
        float *at = C + r * ldc + v * CP_LANES; \
        c[r][v] = start == CP_FROM_ZERO ? cp_zeros() : start == CP_FROM_SCALED ? cp_scaled(at, scale[r]) : cp_load(at); \
      } \
    for (int k = 0; k < pairs; k++) { \
      __m512i b[V]; \
      cp_prefetch(w->rows + 3 * 16 * V * k, 3 * 16 * V, CP_CODED_AHEAD); \
      cp_coded_words(w, k, V, book, b); \
      for (int r = 0; r < R; r++) { \
        uint32_t a = cp_pair(A + r * lda + 2 * k); \
        for (int v = 0; v < V; v++) c[r][v] = cp_pair_step(c[r][v], a, b[v]); \
      } \
    } \
    for (int r = 0; r < R; r++) \
      for (int v = 0; v < V; v++) cp_store(C + r * ldc + v * CP_LANES, c[r][v]); \
  }
#define CP_CODED_ROWS(V) CP_CODED_TILE(1, V) CP_CODED_TILE(2, V) CP_CODED_TILE(4, V)
CP_CODED_ROWS(1)
CP_CODED_ROWS(2)
CP_CODED_ROWS(4)
CP_CODED_TILE(1, 8)
CP_CODED_TILE(2, 8)

/* As cp_dot_coded, where M rows of accumulators fit the registers; false, and nothing done, where they do not. */
#define CP_CODED_CASE(R, V) case 16 * R + V: cp_coded_##R##x##V(pairs, A, lda, w, C, ldc, start, scale); return true;
CP_INLINE bool cp_dot_coded_few(int M, int N, int pairs, const uint16_t *A, int lda, const cp_coded *w, float *C, int ldc,
                                enum cp_start start, const float *scale) {
  switch (M * 16 + N / 16) {
    CP_CODED_CASE(1, 1) CP_CODED_CASE(2, 1) CP_CODED_CASE(4, 1) CP_CODED_CASE(1, 2) CP_CODED_CASE(2, 2) CP_CODED_CASE(4, 2)
    CP_CODED_CASE(1, 4) CP_CODED_CASE(2, 4) CP_CODED_CASE(4, 4) CP_CODED_CASE(1, 8) CP_CODED_CASE(2, 8)
  }
  return false;
}
#endif

/* out[pairs][N][2]: the words. N: 16, 32, 64 or 128. */
CP_INLINE void cp_decode(int pairs, int N, const cp_coded *w, uint16_t *out) {
  cp_fetch_escapes(w, pairs, N);
#if defined(CP_CODED_IN_REGISTERS)
  const __m512i book = cp_book(w);
  for (int64_t k = 0; k < pairs; k++) {
    __m512i words[8];
    cp_prefetch(w->rows + 3 * N * k, 3 * N, CP_CODED_AHEAD);
    cp_coded_words(w, k, N / 16, book, words);
    for (int v = 0; v < N / 16; v++) _mm512_storeu_si512(out + 2 * N * k + 32 * v, words[v]);
  }
#else
  for (int64_t k = 0; k < pairs; k++) {
    const uint8_t *low = w->rows + 3 * N * k, *codes = low + 2 * N, *rest = w->escapes + N * k;
    uint8_t high[256];
    cp_prefetch(w->rows + 3 * N * k, 3 * N, CP_CODED_AHEAD);
    if (__builtin_expect(w->escaped[k] != 0, 0)) {
      memcpy(high, codes, N);
      memcpy(high + N, rest, N);
    } else
      cp_look_up(N, codes, w->codebook, high);
    for (int e = 0; e < 2 * N; e++) out[2 * N * k + e] = (uint16_t)(low[e] | high[e] << 8);
  }
#endif
}

/* As cp_dot_panel of the panel that w holds. N: 16, 32, 64 or 128. */
#define CP_CODED_CHUNK 8192 /* words that are decoded before they are used, in the nearest cache */
CP_INLINE void cp_dot_coded(int M, int N, int pairs, const uint16_t *A, int lda, const cp_coded w, float *C, int ldc,
                            enum cp_start start, const float *scale) {
#if defined(CP_CODED_IN_REGISTERS)
#ifndef CP_SCALES_IN_REGISTERS
  if (start != CP_FROM_SCALED)
#endif
  {
    CP_BEGIN_FLUSH
    const bool done = cp_dot_coded_few(M, N, pairs, A, lda, &w, C, ldc, start, scale);
    CP_END_FLUSH
    if (done) return;
  }
#endif
  uint16_t words[CP_CODED_CHUNK] __attribute__((aligned(64)));
  const int most = CP_CODED_CHUNK / (2 * N);
  for (int k = 0; k < pairs; k += most) {
    const int some = pairs - k < most ? pairs - k : most;
    const cp_coded part = {w.rows + (int64_t)3 * N * k, w.escapes + (int64_t)N * k, w.codebook, w.escaped + k};
    cp_decode(some, N, &part, words);
    cp_dot_panel(M, N, some, A + 2 * k, lda, words, 2 * N, C, ldc, k ? CP_FROM_C : start, scale, 0);
  }
}

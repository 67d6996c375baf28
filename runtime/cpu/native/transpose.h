/* Transposing 4-byte words: f32 matrices, k pairs of bf16, k quads of int8. */
#pragma once
#include "scalar.h"
#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define CP_WORDS 16
/* 16 rows of 16 words, `from` bytes apart, to columns `to` words apart */
CP_INLINE void cp_transpose_block(const char *source, int64_t from, uint32_t *target, int64_t to) {
  __m512i r[16], t[16];
  for (int i = 0; i < 16; i++) r[i] = _mm512_loadu_si512(source + i * from);
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int j = 0; j < 2; j++) {
      r[i + 2 * j] = _mm512_unpacklo_epi64(t[i + j], t[i + j + 2]);
      r[i + 2 * j + 1] = _mm512_unpackhi_epi64(t[i + j], t[i + j + 2]);
    }
  /* r[4g + c]: rows 4g .. 4g + 3 of columns c, c + 4, c + 8, c + 12 */
  for (int c = 0; c < 4; c++) {
    __m512i low01 = _mm512_shuffle_i32x4(r[c], r[c + 4], 0x88), high01 = _mm512_shuffle_i32x4(r[c], r[c + 4], 0xdd);
    __m512i low23 = _mm512_shuffle_i32x4(r[c + 8], r[c + 12], 0x88), high23 = _mm512_shuffle_i32x4(r[c + 8], r[c + 12], 0xdd);
    _mm512_storeu_si512(target + c * to, _mm512_shuffle_i32x4(low01, low23, 0x88));
    _mm512_storeu_si512(target + (c + 8) * to, _mm512_shuffle_i32x4(low01, low23, 0xdd));
    _mm512_storeu_si512(target + (c + 4) * to, _mm512_shuffle_i32x4(high01, high23, 0x88));
    _mm512_storeu_si512(target + (c + 12) * to, _mm512_shuffle_i32x4(high01, high23, 0xdd));
  }
}
#elif defined(__AVX2__)
#define CP_WORDS 8
CP_INLINE void cp_transpose_block(const char *source, int64_t from, uint32_t *target, int64_t to) {
  __m256i r[8], t[8];
  for (int i = 0; i < 8; i++) r[i] = _mm256_loadu_si256((const __m256i *)(source + i * from));
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; j++) {
      r[i + 2 * j] = _mm256_unpacklo_epi64(t[i + j], t[i + j + 2]);
      r[i + 2 * j + 1] = _mm256_unpackhi_epi64(t[i + j], t[i + j + 2]);
    }
  for (int c = 0; c < 4; c++) {
    _mm256_storeu_si256((__m256i *)(target + c * to), _mm256_permute2x128_si256(r[c], r[c + 4], 0x20));
    _mm256_storeu_si256((__m256i *)(target + (c + 4) * to), _mm256_permute2x128_si256(r[c], r[c + 4], 0x31));
  }
}
#endif

/* target[c * to + r] = word c of row r; rows lie `from` bytes apart and need no alignment. */
static __attribute__((unused, noinline)) void cp_transpose_words(int rows, int columns, const void *source, int64_t from,
                                                                 void *target, int64_t to) {
  const char *s = source;
  uint32_t *t = target;
  int r = 0;
#ifdef CP_WORDS
  for (; r + CP_WORDS <= rows; r += CP_WORDS) {
    int c = 0;
    for (; c + CP_WORDS <= columns; c += CP_WORDS) cp_transpose_block(s + r * from + 4 * c, from, t + c * to + r, to);
    for (; c < columns; c++)
      for (int i = r; i < r + CP_WORDS; i++) memcpy(t + c * to + i, s + i * from + 4 * c, 4);
  }
#endif
  for (; r < rows; r++)
    for (int c = 0; c < columns; c++) memcpy(t + c * to + r, s + r * from + 4 * c, 4);
}

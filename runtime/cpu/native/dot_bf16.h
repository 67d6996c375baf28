/* bf16 x bf16 -> f32 on k-pair panels, C[M,N] = start + A[M,K] B[K,N].
 *
 * A: bf16 row-major, row stride lda (elements). P: panel, memory [K/2][N][2]: element (k, n) at P[(k/2)*ldp + 2n + k%2],
 * ldp = 2N when packed tightly. C: f32 row-major, row stride ldc.
 *
 * One accumulation order for every shape and path: per output element, k pairs ascending; per pair
 *     c = FMA(a[odd], b[odd], c);  c = FMA(a[even], b[even], c)
 * with denormal inputs read as zero and denormal results flushed to zero, both keeping their sign. That is what
 * vdpbf16ps computes. An odd K is padded with a zero. So an output row never depends on how many rows there are. */
#pragma once
#include "prefetch.h"
#include "start.h"
#include "transpose.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* ---- packing: B given as [K,N] (row stride ldb) or transposed as [N,K] */
CP_INLINE void cp_pack_panel(int K, int N, int NP, const uint16_t *B, uint16_t *P) {
  uint32_t *p = (uint32_t *)P;
  for (int k = 0; k < (K + 1) / 2; k++) {
#pragma GCC ivdep
    for (int n = 0; n < N; n++)
      p[k * NP + n] = (uint32_t)B[2 * k * N + n] | (2 * k + 1 < K ? (uint32_t)B[(2 * k + 1) * N + n] << 16 : 0);
    for (int n = N; n < NP; n++) p[k * NP + n] = 0;
  }
}
CP_INLINE void cp_pack_panel_transposed(int K, int N, int NP, const uint16_t *Bt, uint16_t *P) {
  uint32_t *p = (uint32_t *)P;
  cp_transpose_words(N, K / 2, Bt, 2 * (int64_t)K, p, NP);
  if (K % 2)
    for (int n = 0; n < N; n++) p[K / 2 * NP + n] = Bt[n * K + K - 1];
  for (int k = 0; k < (K + 1) / 2; k++)
    for (int n = N; n < NP; n++) p[k * NP + n] = 0;
}

CP_INLINE uint32_t cp_pair(const uint16_t *a) { uint32_t u; memcpy(&u, a, 4); return u; }

#if defined(__AVX512BF16__)
#define CP_DOT_BF16_PATH "avx512_bf16"
typedef __m512 cp_vec;
#define CP_LANES 16
#define CP_BEGIN_FLUSH
#define CP_END_FLUSH
#define cp_load(p) _mm512_loadu_ps(p)
#define cp_store(p, v) _mm512_storeu_ps(p, v)
#define cp_zeros() _mm512_setzero_ps()
#define CP_SCALES_IN_REGISTERS /* outside of FTZ and DAZ */
#define cp_scaled(p, by) _mm512_mul_ps(_mm512_loadu_ps(p), _mm512_set1_ps(by))
#define cp_pair_step(acc, a, b) _mm512_dpbf16_ps(acc, (__m512bh)(b), (__m512bh)_mm512_set1_epi32((int32_t)(a)))
#define CP_PAIR_T __m512i
#define cp_pair_load(p) _mm512_loadu_si512(p)

#elif defined(__FMA__) && (defined(__AVX512F__) || defined(__AVX2__))
/* FTZ and DAZ of MXCSR give FMA the flushing of vdpbf16ps */
#define CP_BEGIN_FLUSH __asm__ volatile("" ::: "memory"); const unsigned cp_csr = _mm_getcsr(); _mm_setcsr(cp_csr | 0x8040u); __asm__ volatile("" ::: "memory");
#define CP_END_FLUSH __asm__ volatile("" ::: "memory"); _mm_setcsr(cp_csr);
#if defined(__AVX512F__)
#define CP_DOT_BF16_PATH "avx512_fma"
typedef __m512 cp_vec;
#define CP_LANES 16
#define CP_PAIR_T __m512i
#define cp_load(p) _mm512_loadu_ps(p)
#define cp_store(p, v) _mm512_storeu_ps(p, v)
#define cp_zeros() _mm512_setzero_ps()
#define cp_pair_load(p) _mm512_loadu_si512(p)
CP_INLINE cp_vec cp_pair_step(cp_vec acc, uint32_t a, CP_PAIR_T b) {
  acc = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(b, _mm512_set1_epi32(0xffff0000))),
                        _mm512_set1_ps(cp_bits_f32(a & 0xffff0000u)), acc);
  return _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(b, 16)), _mm512_set1_ps(cp_bits_f32(a << 16)), acc);
}
#else
#define CP_DOT_BF16_PATH "avx2_fma"
typedef __m256 cp_vec;
#define CP_LANES 8
#define CP_PAIR_T __m256i
#define cp_load(p) _mm256_loadu_ps(p)
#define cp_store(p, v) _mm256_storeu_ps(p, v)
#define cp_zeros() _mm256_setzero_ps()
#define cp_pair_load(p) _mm256_loadu_si256((const __m256i *)(p))
CP_INLINE cp_vec cp_pair_step(cp_vec acc, uint32_t a, CP_PAIR_T b) {
  acc = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_and_si256(b, _mm256_set1_epi32(0xffff0000))),
                        _mm256_set1_ps(cp_bits_f32(a & 0xffff0000u)), acc);
  return _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_slli_epi32(b, 16)), _mm256_set1_ps(cp_bits_f32(a << 16)), acc);
}
#endif

#else
#define CP_DOT_BF16_PATH "portable"
#define CP_LANES 4
#define CP_BEGIN_FLUSH
#define CP_END_FLUSH
typedef struct { float x[CP_LANES]; } cp_vec;
typedef struct { uint32_t x[CP_LANES]; } CP_PAIR_T;
CP_INLINE float cp_flush(float x) { uint32_t u = cp_f32_bits(x); return u & 0x7f800000u ? x : cp_bits_f32(u & 0x80000000u); }
CP_INLINE float cp_flushed_fma(float a, float b, float c) { return cp_flush(fmaf(cp_flush(a), cp_flush(b), cp_flush(c))); }
CP_INLINE cp_vec cp_load(const float *p) { cp_vec v; memcpy(&v, p, sizeof v); return v; }
CP_INLINE void cp_store(float *p, cp_vec v) { memcpy(p, &v, sizeof v); }
CP_INLINE cp_vec cp_zeros(void) { return (cp_vec){{0}}; }
CP_INLINE CP_PAIR_T cp_pair_load(const uint16_t *p) { CP_PAIR_T v; memcpy(&v, p, sizeof v); return v; }
CP_INLINE cp_vec cp_pair_step(cp_vec acc, uint32_t a, CP_PAIR_T b) {
  for (int i = 0; i < CP_LANES; i++) {
    float odd = cp_flushed_fma(cp_bits_f32(a & 0xffff0000u), cp_bits_f32(b.x[i] & 0xffff0000u), acc.x[i]);
    acc.x[i] = cp_flushed_fma(cp_bits_f32(a << 16), cp_bits_f32(b.x[i] << 16), odd);
  }
  return acc;
}
#endif

#ifndef CP_SCALES_IN_REGISTERS
#define cp_scaled(p, by) cp_load(p) /* cp_dot_panel has scaled C */
#endif

/* One register tile: R rows, V vectors of columns, all k pairs; accumulators live in registers. */
#define CP_PANEL_TILE(R, V) \
  CP_INLINE void cp_panel_##R##x##V(int pairs, const uint16_t *A, int lda, const uint16_t *P, int64_t ldp, float *C, \
                                    int ldc, enum cp_start start, const float *scale, int64_t ahead) { \
    cp_vec c[R][V]; \
    for (int r = 0; r < R; r++) \
      for (int v = 0; v < V; v++) { \
        float *at = C + r * ldc + v * CP_LANES; \
        c[r][v] = start == CP_FROM_ZERO ? cp_zeros() : start == CP_FROM_SCALED ? cp_scaled(at, scale[r]) : cp_load(at); \
      } \
    for (int k = 0; k < pairs; k++, P += ldp) { \
      CP_PAIR_T b[V]; \
      for (int v = 0; v < V; v++) b[v] = cp_pair_load(P + v * 2 * CP_LANES); \
      if (ahead) cp_prefetch(P, V * 4 * CP_LANES, ahead); \
      for (int r = 0; r < R; r++) { \
        uint32_t a = cp_pair(A + r * lda + 2 * k); \
        for (int v = 0; v < V; v++) c[r][v] = cp_pair_step(c[r][v], a, b[v]); \
      } \
    } \
    for (int r = 0; r < R; r++) \
      for (int v = 0; v < V; v++) cp_store(C + r * ldc + v * CP_LANES, c[r][v]); \
  }
/* Row tiles of one width; the first one streams the panel in, later ones find it in cache. A big tile that would leave two
 * rows is not taken: those would cost as much as four. */
#define CP_PANEL_COLUMNS(V, BIG) \
  CP_PANEL_TILE(BIG, V) CP_PANEL_TILE(4, V) CP_PANEL_TILE(2, V) CP_PANEL_TILE(1, V) \
  CP_INLINE void cp_panel_columns_##V(int M, int pairs, const uint16_t *A, int lda, const uint16_t *P, int64_t ldp, \
                                      float *C, int ldc, enum cp_start start, const float *scale, int64_t ahead) { \
    int m = 0; \
    for (; m + BIG <= M && M - m != BIG + 2; m += BIG) cp_panel_##BIG##x##V(pairs, A + m * lda, lda, P, ldp, C + m * ldc, ldc, start, scale + m, m ? 0 : ahead); \
    for (; m + 4 <= M; m += 4) cp_panel_4x##V(pairs, A + m * lda, lda, P, ldp, C + m * ldc, ldc, start, scale + m, m ? 0 : ahead); \
    for (; m + 2 <= M; m += 2) cp_panel_2x##V(pairs, A + m * lda, lda, P, ldp, C + m * ldc, ldc, start, scale + m, m ? 0 : ahead); \
    for (; m < M; m++) cp_panel_1x##V(pairs, A + m * lda, lda, P, ldp, C + m * ldc, ldc, start, scale + m, m ? 0 : ahead); \
  }
#if CP_LANES == 16
CP_PANEL_COLUMNS(4, 6)
CP_PANEL_COLUMNS(2, 8)
CP_PANEL_COLUMNS(1, 8)
#else
CP_PANEL_COLUMNS(2, 6)
CP_PANEL_COLUMNS(1, 8)
#endif

/* N must be a multiple of 16. pairs = (K + 1) / 2; A rows must be readable for 2 * pairs elements. scale: M numbers that
 * only CP_FROM_SCALED reads. ahead: how far the first rows fetch P ahead, in bytes; 0: not at all. */
CP_INLINE void cp_dot_panel(int M, int N, int pairs, const uint16_t *A, int lda, const uint16_t *P, int64_t ldp, float *C,
                            int ldc, enum cp_start start, const float *scale, int64_t ahead) {
#ifndef CP_SCALES_IN_REGISTERS
  if (start == CP_FROM_SCALED)
    for (int m = 0; m < M; m++)
      for (int n = 0; n < N; n++) C[m * ldc + n] *= scale[m];
#endif
  CP_BEGIN_FLUSH
  int n = 0;
#if CP_LANES == 16
  for (; n + 64 <= N; n += 64) cp_panel_columns_4(M, pairs, A, lda, P + 2 * n, ldp, C + n, ldc, start, scale, ahead);
#endif
  for (; n + 2 * CP_LANES <= N; n += 2 * CP_LANES) cp_panel_columns_2(M, pairs, A, lda, P + 2 * n, ldp, C + n, ldc, start, scale, ahead);
  for (; n + CP_LANES <= N; n += CP_LANES) cp_panel_columns_1(M, pairs, A, lda, P + 2 * n, ldp, C + n, ldc, start, scale, ahead);
  CP_END_FLUSH
}

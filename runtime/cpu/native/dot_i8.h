/* int8 x int8 -> int32 on k-quad panels, C[M,N] += A[M,K] B[K,N], wrapping.
 *
 * A: int8 row-major, row stride lda. P: panel, memory [K/4][N][4]: element (k, n) at P[(k/4)*ldp + 4n + k%4], ldp = 4N
 * when packed tightly. C: int32 row-major, row stride ldc. A depth that is no multiple of four is padded with zeros.
 * Sums of integers are exact modulo 2^32 in any order, so every path gives the same numbers.
 *
 * vpdpbusd multiplies unsigned by signed bytes. The panel's bytes get their sign bit flipped, which makes them unsigned
 * and 128 more than they are; 128 times the sum of A's row is subtracted at the end. Fields of bytes (cp_fields) are
 * unsigned as they are, and what is subtracted is their bias. */
#pragma once
#include "prefetch.h"
#include "start.h"
#include "transpose.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* ---- packing: B given as [K,N] or transposed as [N,K] */
CP_INLINE void cp_pack_quads(int K, int N, int NP, const int8_t *B, int8_t *P) {
  memset(P, 0, (size_t)((K + 3) / 4) * NP * 4);
  for (int k = 0; k < K; k++)
    for (int n = 0; n < N; n++) P[k / 4 * 4 * NP + 4 * n + k % 4] = B[k * N + n];
}
CP_INLINE void cp_pack_quads_transposed(int K, int N, int NP, const int8_t *Bt, int8_t *P) {
  memset(P, 0, (size_t)((K + 3) / 4) * NP * 4);
  cp_transpose_words(N, K / 4, Bt, K, P, NP);
  for (int k = K / 4 * 4; k < K; k++)
    for (int n = 0; n < N; n++) P[k / 4 * 4 * NP + 4 * n + k % 4] = Bt[n * K + k];
}

CP_INLINE int32_t cp_quad(const int8_t *a) { int32_t u; memcpy(&u, a, 4); return u; }

/* What the bytes of a panel stand for: int8 (a mask of 0), or ((byte >> shift) & mask) - bias, which fits int8.
 * mask <= 255 >> shift, bias 0 .. 128. */
typedef struct { int shift, mask, bias; } cp_fields;
#define CP_WHOLE_BYTES (cp_fields){0, 0, 0}

#if defined(__AVX512VNNI__)
#define CP_DOT_I8_PATH "avx512_vnni"
#define CP_I8_LANES 16
#define CP_I8_FLIPPED 1
typedef __m512i cp_i32v;
typedef int32_t cp_quad_t;
#define cp_i32v_load(p) _mm512_loadu_si512(p)
#define cp_i32v_store(p, v) _mm512_storeu_si512(p, v)
#define cp_quad_spread(a) (a)
#define cp_i32v_zero() _mm512_setzero_si512()
CP_INLINE __m512i cp_quads_load(const void *p, cp_fields f) {
  __m512i v = _mm512_loadu_si512(p);
  if (!f.mask) return _mm512_xor_si512(v, _mm512_set1_epi8(-128));
  return _mm512_and_si512(f.shift ? _mm512_srli_epi16(v, f.shift) : v, _mm512_set1_epi8(f.mask));
}
#define cp_quad_step(acc, a, b) _mm512_dpbusd_epi32(acc, b, _mm512_set1_epi32(a))
#define cp_i32v_less(v, x) _mm512_sub_epi32(v, _mm512_set1_epi32(x))

#elif defined(__AVXVNNI__)
#define CP_DOT_I8_PATH "avx_vnni"
#define CP_I8_LANES 8
#define CP_I8_FLIPPED 1
typedef __m256i cp_i32v;
typedef int32_t cp_quad_t;
#define cp_i32v_load(p) _mm256_loadu_si256((const __m256i *)(p))
#define cp_i32v_store(p, v) _mm256_storeu_si256((__m256i *)(p), v)
#define cp_quad_spread(a) (a)
#define cp_i32v_zero() _mm256_setzero_si256()
CP_INLINE __m256i cp_quads_load(const void *p, cp_fields f) {
  __m256i v = cp_i32v_load(p);
  if (!f.mask) return _mm256_xor_si256(v, _mm256_set1_epi8(-128));
  return _mm256_and_si256(_mm256_srli_epi16(v, f.shift), _mm256_set1_epi8(f.mask));
}
#define cp_quad_step(acc, a, b) _mm256_dpbusd_avx_epi32(acc, b, _mm256_set1_epi32(a))
#define cp_i32v_less(v, x) _mm256_sub_epi32(v, _mm256_set1_epi32(x))

#elif defined(__AVX2__)
/* Bytes 0 and 2 of each quad, and bytes 1 and 3, as 16-bit numbers: products of pairs are added exactly. */
#define CP_DOT_I8_PATH "avx2"
#define CP_I8_LANES 8
#define CP_I8_FLIPPED 0
typedef __m256i cp_i32v;
typedef struct { __m256i even, odd; } cp_quad_t;
#define cp_i32v_load(p) _mm256_loadu_si256((const __m256i *)(p))
#define cp_i32v_store(p, v) _mm256_storeu_si256((__m256i *)(p), v)
#define cp_i32v_zero() _mm256_setzero_si256()
CP_INLINE __m256i cp_quads_load(const void *p, cp_fields f) {
  __m256i v = cp_i32v_load(p);
  if (!f.mask) return v;
  return _mm256_sub_epi8(_mm256_and_si256(_mm256_srli_epi16(v, f.shift), _mm256_set1_epi8(f.mask)), _mm256_set1_epi8(f.bias));
}
#define cp_i32v_less(v, x) (v)
CP_INLINE cp_quad_t cp_halves(__m256i quads) {
  return (cp_quad_t){_mm256_srai_epi16(_mm256_slli_epi16(quads, 8), 8), _mm256_srai_epi16(quads, 8)};
}
CP_INLINE cp_quad_t cp_quad_spread(int32_t a) { return cp_halves(_mm256_set1_epi32(a)); }
CP_INLINE cp_i32v cp_quad_step(cp_i32v acc, cp_quad_t a, __m256i b) {
  cp_quad_t parts = cp_halves(b);
  return _mm256_add_epi32(_mm256_add_epi32(acc, _mm256_madd_epi16(parts.even, a.even)), _mm256_madd_epi16(parts.odd, a.odd));
}

#else
#define CP_DOT_I8_PATH "portable"
#define CP_I8_LANES 4
#define CP_I8_FLIPPED 0
typedef struct { int32_t x[CP_I8_LANES]; } cp_i32v;
typedef int32_t cp_quad_t;
CP_INLINE cp_i32v cp_i32v_load(const void *p) { cp_i32v v; memcpy(&v, p, sizeof v); return v; }
CP_INLINE void cp_i32v_store(int32_t *p, cp_i32v v) { memcpy(p, &v, sizeof v); }
CP_INLINE cp_i32v cp_i32v_zero(void) { return (cp_i32v){{0}}; }
CP_INLINE cp_i32v cp_quads_load(const void *p, cp_fields f) {
  int8_t bytes[4 * CP_I8_LANES];
  memcpy(bytes, p, sizeof bytes);
  if (f.mask)
    for (int i = 0; i < 4 * CP_I8_LANES; i++) bytes[i] = (int8_t)(((uint8_t)bytes[i] >> f.shift & f.mask) - f.bias);
  return cp_i32v_load(bytes);
}
#define cp_quad_spread(a) (a)
#define cp_i32v_less(v, x) (v)
CP_INLINE cp_i32v cp_quad_step(cp_i32v acc, int32_t a, cp_i32v b) {
  for (int i = 0; i < CP_I8_LANES; i++) {
    int32_t sum = 0;
    for (int byte = 0; byte < 32; byte += 8) sum += (int8_t)(a >> byte) * (int8_t)(b.x[i] >> byte);
    acc.x[i] = (int32_t)((uint32_t)acc.x[i] + (uint32_t)sum);
  }
  return acc;
}
#endif

/* What a row of C has too much where the panel's bytes were taken for more than they stand for. */
CP_INLINE int32_t cp_row_excess(int quads, const int8_t *a, cp_fields f) {
  const int more = f.mask ? f.bias : 128;
  int32_t sum = 0;
  if (!CP_I8_FLIPPED || !more) return 0;
#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
  __m512i sums = _mm512_setzero_si512();
  for (int k = 0; k < 4 * quads; k += 64) {
    const __mmask64 some = 4 * quads - k < 64 ? ((__mmask64)1 << (4 * quads - k)) - 1 : ~(__mmask64)0;
    sums = _mm512_dpbusd_epi32(sums, _mm512_set1_epi8(1), _mm512_maskz_loadu_epi8(some, a + k));
  }
  sum = _mm512_reduce_add_epi32(sums);
#else
  for (int k = 0; k < 4 * quads; k++) sum += a[k];
#endif
  return (int32_t)((uint32_t)sum * (uint32_t)more);
}

/* One register tile: R rows, V vectors of columns, all quads; accumulators live in registers. */
#define CP_QUAD_TILE(R, V) \
  CP_INLINE void cp_quad_##R##x##V(int quads, const int8_t *A, int lda, const int8_t *P, int64_t ldp, int32_t *C, int ldc, \
                                   enum cp_start start, cp_fields f, int64_t ahead) { \
    cp_i32v c[R][V]; \
    for (int r = 0; r < R; r++) \
      for (int v = 0; v < V; v++) c[r][v] = start == CP_FROM_ZERO ? cp_i32v_zero() : cp_i32v_load(C + r * ldc + v * CP_I8_LANES); \
    for (int k = 0; k < quads; k++, P += ldp) { \
      cp_i32v b[V]; \
      for (int v = 0; v < V; v++) b[v] = cp_quads_load(P + v * 4 * CP_I8_LANES, f); \
      if (ahead) cp_prefetch(P, V * 4 * CP_I8_LANES, ahead); \
      for (int r = 0; r < R; r++) { \
        cp_quad_t a = cp_quad_spread(cp_quad(A + r * lda + 4 * k)); \
        for (int v = 0; v < V; v++) c[r][v] = cp_quad_step(c[r][v], a, b[v]); \
      } \
    } \
    for (int r = 0; r < R; r++) { \
      int32_t excess = cp_row_excess(quads, A + r * lda, f); \
      for (int v = 0; v < V; v++) cp_i32v_store(C + r * ldc + v * CP_I8_LANES, cp_i32v_less(c[r][v], excess)); \
    } \
  }
/* Row tiles of one width; the first one streams the panel in, later ones find it in cache. */
#define CP_QUAD_COLUMNS(V, BIG) \
  CP_QUAD_TILE(BIG, V) CP_QUAD_TILE(4, V) CP_QUAD_TILE(2, V) CP_QUAD_TILE(1, V) \
  CP_INLINE void cp_quad_columns_##V(int M, int quads, const int8_t *A, int lda, const int8_t *P, int64_t ldp, int32_t *C, \
                                     int ldc, enum cp_start start, cp_fields f, int64_t ahead) { \
    int m = 0; \
    for (; m + BIG <= M && M - m != BIG + 2; m += BIG) cp_quad_##BIG##x##V(quads, A + m * lda, lda, P, ldp, C + m * ldc, ldc, start, f, m ? 0 : ahead); \
    for (; m + 4 <= M; m += 4) cp_quad_4x##V(quads, A + m * lda, lda, P, ldp, C + m * ldc, ldc, start, f, m ? 0 : ahead); \
    for (; m + 2 <= M; m += 2) cp_quad_2x##V(quads, A + m * lda, lda, P, ldp, C + m * ldc, ldc, start, f, m ? 0 : ahead); \
    for (; m < M; m++) cp_quad_1x##V(quads, A + m * lda, lda, P, ldp, C + m * ldc, ldc, start, f, m ? 0 : ahead); \
  }
#if CP_I8_LANES == 16
CP_QUAD_COLUMNS(4, 6)
CP_QUAD_COLUMNS(2, 8)
CP_QUAD_COLUMNS(1, 8)
#else
CP_QUAD_COLUMNS(2, 6)
CP_QUAD_COLUMNS(1, 8)
#endif

/* N must be a multiple of 16. quads = (K + 3) / 4; A rows must be readable for 4 * quads elements. start: not
 * CP_FROM_SCALED. ahead: how far the first rows fetch P ahead, in bytes; 0: not at all. */
CP_INLINE void cp_dot_fields(int M, int N, int quads, const int8_t *A, int lda, const int8_t *P, int64_t ldp, int32_t *C,
                             int ldc, enum cp_start start, cp_fields f, int64_t ahead) {
  int n = 0;
#if CP_I8_LANES == 16
  for (; n + 64 <= N; n += 64) cp_quad_columns_4(M, quads, A, lda, P + 4 * n, ldp, C + n, ldc, start, f, ahead);
#endif
  for (; n + 2 * CP_I8_LANES <= N; n += 2 * CP_I8_LANES) cp_quad_columns_2(M, quads, A, lda, P + 4 * n, ldp, C + n, ldc, start, f, ahead);
  for (; n + CP_I8_LANES <= N; n += CP_I8_LANES) cp_quad_columns_1(M, quads, A, lda, P + 4 * n, ldp, C + n, ldc, start, f, ahead);
}
CP_INLINE void cp_dot_quads(int M, int N, int quads, const int8_t *A, int lda, const int8_t *P, int64_t ldp, int32_t *C,
                            int ldc, enum cp_start start, int64_t ahead) {
  cp_dot_fields(M, N, quads, A, lda, P, ldp, C, ldc, start, CP_WHOLE_BYTES, ahead);
}

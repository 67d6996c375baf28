/* Matrix products without panels: C[M,N] += A[M,K] B[K,N], row-major, k ascending, one FMA (float) or one wrapping
 * multiply-add (integer) per step. */
#pragma once
#include "scalar.h"
#include "transpose.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
typedef __m512 cp_f32v;
#define CP_F32_LANES 16
#define cp_f32v_load _mm512_loadu_ps
#define cp_f32v_store _mm512_storeu_ps
#define cp_f32v_set _mm512_set1_ps
#define cp_f32v_fma _mm512_fmadd_ps
#elif defined(__AVX2__) && defined(__FMA__)
typedef __m256 cp_f32v;
#define CP_F32_LANES 8
#define cp_f32v_load _mm256_loadu_ps
#define cp_f32v_store _mm256_storeu_ps
#define cp_f32v_set _mm256_set1_ps
#define cp_f32v_fma _mm256_fmadd_ps
#endif

#ifdef CP_F32_LANES
#define CP_F32_TILE(R, V) \
  static __attribute__((unused, noinline)) void cp_f32_##R##x##V(int K, const float *A, int lda, const float *B, int ldb, float *C, int ldc) { \
    cp_f32v c[R][V]; \
    for (int r = 0; r < R; r++) \
      for (int v = 0; v < V; v++) c[r][v] = cp_f32v_load(C + r * ldc + v * CP_F32_LANES); \
    for (int k = 0; k < K; k++) { \
      cp_f32v b[V]; \
      for (int v = 0; v < V; v++) b[v] = cp_f32v_load(B + k * ldb + v * CP_F32_LANES); \
      for (int r = 0; r < R; r++) { \
        cp_f32v a = cp_f32v_set(A[r * lda + k]); \
        for (int v = 0; v < V; v++) c[r][v] = cp_f32v_fma(a, b[v], c[r][v]); \
      } \
    } \
    for (int r = 0; r < R; r++) \
      for (int v = 0; v < V; v++) cp_f32v_store(C + r * ldc + v * CP_F32_LANES, c[r][v]); \
  }
#define CP_F32_COLUMNS(V) \
  CP_F32_TILE(8, V) CP_F32_TILE(2, V) CP_F32_TILE(1, V) \
  CP_INLINE void cp_f32_columns_##V(int M, int K, const float *A, int lda, const float *B, int ldb, float *C, int ldc) { \
    int m = 0; \
    for (; m + 8 <= M; m += 8) cp_f32_8x##V(K, A + m * lda, lda, B, ldb, C + m * ldc, ldc); \
    for (; m + 2 <= M; m += 2) cp_f32_2x##V(K, A + m * lda, lda, B, ldb, C + m * ldc, ldc); \
    for (; m < M; m++) cp_f32_1x##V(K, A + m * lda, lda, B, ldb, C + m * ldc, ldc); \
  }
CP_F32_COLUMNS(2)
CP_F32_COLUMNS(1)
#endif

CP_INLINE void cp_dot_f32(int M, int N, int K, const float *A, const float *B, float *C) {
  int n = 0;
#ifdef CP_F32_LANES
  for (; n + 2 * CP_F32_LANES <= N; n += 2 * CP_F32_LANES) cp_f32_columns_2(M, K, A, K, B + n, N, C + n, N);
  for (; n + CP_F32_LANES <= N; n += CP_F32_LANES) cp_f32_columns_1(M, K, A, K, B + n, N, C + n, N);
#endif
  for (int m = 0; m < M && n < N; m++)
    for (int k = 0; k < K; k++)
      for (int j = n; j < N; j++) C[m * N + j] = __builtin_fmaf(A[m * K + k], B[k * N + j], C[m * N + j]);
}
CP_INLINE void cp_dot_f64(int M, int N, int K, const double *A, const double *B, double *C) {
  for (int m = 0; m < M; m++)
    for (int k = 0; k < K; k++)
      for (int j = 0; j < N; j++) C[m * N + j] = __builtin_fma(A[m * K + k], B[k * N + j], C[m * N + j]);
}
CP_INLINE void cp_dot_i32(int M, int N, int K, const int32_t *A, const int32_t *B, int32_t *C) {
  for (int m = 0; m < M; m++)
    for (int k = 0; k < K; k++)
      for (int j = 0; j < N; j++)
        C[m * N + j] = (int32_t)((uint32_t)C[m * N + j] + (uint32_t)A[m * K + k] * (uint32_t)B[k * N + j]);
}

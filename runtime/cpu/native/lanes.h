/* Lanes of a reduction, a power of two from 16 to 64 of them, combined pairwise: lane j with j + lanes / 2, ..., j + 2, j + 1. */
#pragma once
#include "scalar.h"
#if defined(__AVX512F__)
#include <immintrin.h>

/* vmaxps and vminps are a > b ? a : b and a < b ? a : b; where `odd` is NaN the other one stays. */
#define CP_EXTREME(NAME, PICK, ODD, OTHER) \
  CP_INLINE __m512 cp_##NAME##_f32x16(__m512 a, __m512 b) { \
    return _mm512_mask_mov_ps(PICK(a, b), _mm512_cmp_ps_mask(ODD, ODD, _CMP_UNORD_Q), OTHER); \
  }
CP_EXTREME(maxnum, _mm512_max_ps, b, a)
CP_EXTREME(minnum, _mm512_min_ps, b, a)
CP_EXTREME(maximum, _mm512_max_ps, a, a)
CP_EXTREME(minimum, _mm512_min_ps, a, a)

#define CP_HALVE_BY(COMBINE) \
  { \
    for (int step = lanes / 32; step; step /= 2) \
      for (int k = 0; k < step; k++) r[k] = COMBINE(r[k], r[k + step]); \
    __m512 v = r[0]; \
    v = COMBINE(v, _mm512_shuffle_f32x4(v, v, 0x4e)); \
    v = COMBINE(v, _mm512_shuffle_f32x4(v, v, 0xb1)); \
    v = COMBINE(v, _mm512_permute_ps(v, 0x4e)); \
    v = COMBINE(v, _mm512_permute_ps(v, 0xb1)); \
    return _mm512_cvtss_f32(v); \
  }
#define CP_HALVE_HEAD(NAME) \
  CP_INLINE float cp_halve_##NAME##_f32(const float *x, int lanes) { \
    __m512 r[4]; \
    for (int k = 0; k < lanes / 16; k++) r[k] = _mm512_loadu_ps(x + 16 * k);
#define CP_HALVE_SUM(NAME, SCALAR) CP_HALVE_HEAD(NAME) CP_HALVE_BY(_mm512_add_ps) }
/* PICK does the same where no lane is NaN, mostly, and waits half as long for each of its results. */
#define CP_HALVE_EXTREME(NAME, SCALAR, PICK) \
  CP_HALVE_HEAD(NAME) \
    __mmask16 odd = 0; \
    for (int k = 0; k < lanes / 16; k++) odd |= _mm512_cmp_ps_mask(r[k], r[k], _CMP_UNORD_Q); \
    if (__builtin_expect(!odd, 1)) CP_HALVE_BY(PICK) \
    CP_HALVE_BY(cp_##NAME##_f32x16) \
  }
#else
#define CP_HALVE_SUM(NAME, SCALAR) \
  CP_INLINE float cp_halve_##NAME##_f32(const float *x, int lanes) { \
    float v[64]; \
    memcpy(v, x, lanes * sizeof(float)); \
    for (int step = lanes / 2; step; step /= 2) \
      for (int j = 0; j < step; j++) v[j] = SCALAR(v[j], v[j + step]); \
    return v[0]; \
  }
#define CP_HALVE_EXTREME(NAME, SCALAR, PICK) CP_HALVE_SUM(NAME, SCALAR)
#endif

CP_INLINE float cp_add_f32(float a, float b) { return a + b; }
CP_HALVE_SUM(add, cp_add_f32)
CP_HALVE_EXTREME(maxnum, cp_maxnum_f32, _mm512_max_ps)
CP_HALVE_EXTREME(minnum, cp_minnum_f32, _mm512_min_ps)
CP_HALVE_EXTREME(maximum, cp_maximum_f32, _mm512_max_ps)
CP_HALVE_EXTREME(minimum, cp_minimum_f32, _mm512_min_ps)

/* Lanes of a reduction, a power of two from 16 to 64 of them, combined pairwise: lane j with j + lanes / 2, ..., j + 2, j + 1. */
#pragma once
#include "scalar.h"

CP_INLINE float cp_add_f32(float a, float b) { return a + b; }

#if defined(__AVX512F__)
#include <immintrin.h>

CP_INLINE __m512 cp_add_f32x16(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
/* vmaxps and vminps are a > b ? a : b and a < b ? a : b; where `odd` is NaN the other one stays. */
#define CP_EXTREME(NAME, PICK, ODD, OTHER) \
  CP_INLINE __m512 cp_##NAME##_f32x16(__m512 a, __m512 b) { \
    return _mm512_mask_mov_ps(PICK(a, b), _mm512_cmp_ps_mask(ODD, ODD, _CMP_UNORD_Q), OTHER); \
  }
CP_EXTREME(maxnum, _mm512_max_ps, b, a)
CP_EXTREME(minnum, _mm512_min_ps, b, a)
CP_EXTREME(maximum, _mm512_max_ps, a, a)
CP_EXTREME(minimum, _mm512_min_ps, a, a)

#define CP_FOLD(NAME, COMBINE) \
  CP_INLINE float NAME(const __m512 *x, int vectors) { \
    __m512 r[4]; \
    for (int k = 0; k < vectors; k++) r[k] = x[k]; \
    for (int step = vectors / 2; step; step /= 2) \
      for (int k = 0; k < step; k++) r[k] = COMBINE(r[k], r[k + step]); \
    __m512 v = r[0]; \
    v = COMBINE(v, _mm512_shuffle_f32x4(v, v, 0x4e)); \
    v = COMBINE(v, _mm512_shuffle_f32x4(v, v, 0xb1)); \
    v = COMBINE(v, _mm512_permute_ps(v, 0x4e)); \
    v = COMBINE(v, _mm512_permute_ps(v, 0xb1)); \
    return _mm512_cvtss_f32(v); \
  }
CP_INLINE bool cp_any_nan(const __m512 *x, int vectors) {
  __mmask16 found = _mm512_cmp_ps_mask(x[0], x[vectors - 1], _CMP_UNORD_Q);
  for (int k = 1; k + 1 < vectors; k += 2) found |= _mm512_cmp_ps_mask(x[k], x[k + 1], _CMP_UNORD_Q);
  return found;
}
/* Without a NaN all kinds of extremes are plain vmaxps or vminps: a third of the operations. */
#define CP_HALVE_EXTREME(NAME, PICK) \
  CP_FOLD(cp_fold_##NAME, cp_##NAME##_f32x16) \
  CP_FOLD(cp_fold_plain_##NAME, PICK) \
  CP_INLINE float cp_halve_##NAME##_f32(const float *x, int lanes) { \
    __m512 r[4]; \
    for (int k = 0; k < lanes / 16; k++) r[k] = _mm512_loadu_ps(x + 16 * k); \
    return __builtin_expect(cp_any_nan(r, lanes / 16), 0) ? cp_fold_##NAME(r, lanes / 16) : cp_fold_plain_##NAME(r, lanes / 16); \
  }
CP_FOLD(cp_fold_add, cp_add_f32x16)
CP_INLINE float cp_halve_add_f32(const float *x, int lanes) {
  __m512 r[4];
  for (int k = 0; k < lanes / 16; k++) r[k] = _mm512_loadu_ps(x + 16 * k);
  return cp_fold_add(r, lanes / 16);
}
CP_HALVE_EXTREME(maxnum, _mm512_max_ps)
CP_HALVE_EXTREME(minnum, _mm512_min_ps)
CP_HALVE_EXTREME(maximum, _mm512_max_ps)
CP_HALVE_EXTREME(minimum, _mm512_min_ps)
#else
#define CP_HALVE(NAME, SCALAR) \
  CP_INLINE float cp_halve_##NAME##_f32(const float *x, int lanes) { \
    float v[64]; \
    memcpy(v, x, lanes * sizeof(float)); \
    for (int step = lanes / 2; step; step /= 2) \
      for (int j = 0; j < step; j++) v[j] = SCALAR(v[j], v[j + step]); \
    return v[0]; \
  }
CP_HALVE(add, cp_add_f32)
CP_HALVE(maxnum, cp_maxnum_f32)
CP_HALVE(minnum, cp_minnum_f32)
CP_HALVE(maximum, cp_maximum_f32)
CP_HALVE(minimum, cp_minimum_f32)
#endif

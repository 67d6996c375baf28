/* exp and exp2 of whole arrays, with the bits of the scalar functions of transcendental.h.
 *
 * The vector code differs from what gcc makes of those in one operation: vscalefps multiplies by 2^n with one rounding, as
 * two multiplications do of which the first is exact. */
#pragma once
#include "transcendental.h"
#if defined(__AVX512F__)
#include <immintrin.h>

CP_INLINE __m512 cp_set(float x) { return _mm512_set1_ps(x); }
/* a < low ? low : a > high ? high : a; NaN stays */
CP_INLINE __m512 cp_between(__m512 a, float low, float high) { return _mm512_max_ps(cp_set(low), _mm512_min_ps(cp_set(high), a)); }

CP_INLINE __m512 cp_exp2_f32x16(__m512 x) {
  __m512 c = cp_between(x, -151.0f, 129.0f), magic = cp_set(12582912.0f);
  __m512 n = _mm512_sub_ps(_mm512_add_ps(c, magic), magic), f = _mm512_sub_ps(c, n);
  __m512 p = cp_set(1.53533617864e-4f);
  p = _mm512_fmadd_ps(p, f, cp_set(1.33988743782e-3f));
  p = _mm512_fmadd_ps(p, f, cp_set(9.61843735844e-3f));
  p = _mm512_fmadd_ps(p, f, cp_set(5.55033247126e-2f));
  p = _mm512_fmadd_ps(p, f, cp_set(2.40226479136e-1f));
  p = _mm512_fmadd_ps(p, f, cp_set(6.93147202855e-1f));
  p = _mm512_fmadd_ps(p, f, cp_set(1.0f));
  return _mm512_scalef_ps(p, n); /* a NaN has come through all of it */
}

CP_INLINE __m512 cp_exp_f32x16(__m512 x) {
  __m512 c = cp_between(x, -104.0f, 89.0f), magic = cp_set(12582912.0f);
  __m512 n = _mm512_sub_ps(_mm512_fmadd_ps(c, cp_set(1.44269504f), magic), magic);
  __m512 f = _mm512_fmadd_ps(n, cp_set(-6.93145752e-1f), c);
  f = _mm512_fmadd_ps(n, cp_set(-1.42860677e-6f), f);
  __m512 p = cp_set(1.9875691500e-4f);
  p = _mm512_fmadd_ps(p, f, cp_set(1.3981999507e-3f));
  p = _mm512_fmadd_ps(p, f, cp_set(8.3334519073e-3f));
  p = _mm512_fmadd_ps(p, f, cp_set(4.1665795894e-2f));
  p = _mm512_fmadd_ps(p, f, cp_set(1.6666665459e-1f));
  p = _mm512_fmadd_ps(p, f, cp_set(5.0000001201e-1f));
  p = _mm512_add_ps(_mm512_fmadd_ps(p, _mm512_mul_ps(f, f), f), cp_set(1.0f));
  return _mm512_scalef_ps(p, n); /* a NaN has come through all of it */
}

/* y[0 .. 63] = NAME(x[0 .. 63] - shift). Four vectors at a time: their chains of dependent operations overlap. */
#define CP_LANES(NAME) \
  CP_INLINE void NAME##_lanes(float *y, const float *x, float shift) { \
    __m512 r[4]; \
    for (int k = 0; k < 4; k++) r[k] = NAME##x16(_mm512_sub_ps(_mm512_loadu_ps(x + 16 * k), cp_set(shift))); \
    for (int k = 0; k < 4; k++) _mm512_storeu_ps(y + 16 * k, r[k]); \
  }
#else
#define CP_LANES(NAME) \
  CP_INLINE void NAME##_lanes(float *y, const float *x, float shift) { \
    float r[64]; \
    for (int k = 0; k < 64; k++) r[k] = NAME(x[k] - shift); \
    for (int k = 0; k < 64; k++) y[k] = r[k]; \
  }
#endif

/* y[i] = NAME(x[i] - shift); y may be x. x - 0.0f is x, a NaN and the sign of a zero included. */
#define CP_ARRAY(NAME) \
  CP_LANES(NAME) \
  static __attribute__((unused, noinline)) void NAME##_array(float *y, const float *x, float shift, int count) { \
    int i = 0; \
    for (; i + 64 <= count; i += 64) NAME##_lanes(y + i, x + i, shift); \
    for (; i < count; i++) y[i] = NAME(x[i] - shift); \
  }
CP_ARRAY(cp_exp_f32)
CP_ARRAY(cp_exp2_f32)

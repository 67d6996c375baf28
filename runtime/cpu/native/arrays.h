/* exp and exp2 of whole arrays, with the bits of the scalar functions of transcendental.h.
 *
 * The vector code differs from what gcc makes of those in two operations: vscalefps multiplies by 2^floor(n) with one
 * rounding, as two multiplications do of which the first is exact, and vpermilps takes one of four floats by the last two bits. */
#pragma once
#include "transcendental.h"
#if defined(__AVX512F__)
#include <immintrin.h>

CP_INLINE __m512 cp_set(float x) { return _mm512_set1_ps(x); }
CP_INLINE __m512 cp_quarter_f32x16(__m512 sum) {
  return _mm512_permutevar_ps(_mm512_broadcast_f32x4((__m128){CP_QUARTERS}), _mm512_castps_si512(sum));
}

/* Four vectors step by step: each waits for its last operation while the others have their next. Of four chains one after
 * another the processor overlaps less, because what waits fills its schedulers. */
#define CP_EACH for (int k = 0; k < 4; k++)
typedef struct { __m512 v[4]; } cp_f32x64;

/* a < low ? low : a > high ? high : a; NaN stays */
CP_INLINE cp_f32x64 cp_between_f32x64(cp_f32x64 a, float low, float high) {
  CP_EACH a.v[k] = _mm512_min_ps(cp_set(high), a.v[k]);
  CP_EACH a.v[k] = _mm512_max_ps(cp_set(low), a.v[k]);
  return a;
}
/* q * (1 + p) * 2^floor(n); a NaN has come through all of it */
CP_INLINE cp_f32x64 cp_assemble_f32x64(cp_f32x64 p, cp_f32x64 sum) {
  cp_f32x64 q;
  CP_EACH q.v[k] = cp_quarter_f32x16(sum.v[k]);
  CP_EACH sum.v[k] = _mm512_sub_ps(sum.v[k], cp_set(CP_ROUND));
  CP_EACH p.v[k] = _mm512_fmadd_ps(p.v[k], q.v[k], q.v[k]);
  CP_EACH p.v[k] = _mm512_scalef_ps(p.v[k], sum.v[k]);
  return p;
}

CP_INLINE cp_f32x64 cp_exp2_f32x64(cp_f32x64 x) {
  cp_f32x64 c = cp_between_f32x64(x, -151.0f, 129.0f), sum, p;
  CP_EACH sum.v[k] = _mm512_add_ps(c.v[k], cp_set(CP_ROUND));
  CP_EACH p.v[k] = _mm512_sub_ps(sum.v[k], cp_set(CP_ROUND));
  CP_EACH c.v[k] = _mm512_sub_ps(c.v[k], p.v[k]);
  CP_EACH p.v[k] = _mm512_fmadd_ps(cp_set(9.61618311703e-3f), c.v[k], cp_set(5.55299557745e-2f));
  CP_EACH p.v[k] = _mm512_fmadd_ps(p.v[k], c.v[k], cp_set(2.40226566792e-1f));
  CP_EACH p.v[k] = _mm512_fmadd_ps(p.v[k], c.v[k], cp_set(6.93147063255e-1f));
  CP_EACH p.v[k] = _mm512_mul_ps(p.v[k], c.v[k]);
  return cp_assemble_f32x64(p, sum);
}

CP_INLINE cp_f32x64 cp_exp_f32x64(cp_f32x64 x) {
  cp_f32x64 c = cp_between_f32x64(x, -104.0f, 89.0f), sum, n, p;
  CP_EACH sum.v[k] = _mm512_fmadd_ps(c.v[k], cp_set(1.44269504f), cp_set(CP_ROUND));
  CP_EACH n.v[k] = _mm512_sub_ps(sum.v[k], cp_set(CP_ROUND));
  CP_EACH c.v[k] = _mm512_fmadd_ps(n.v[k], cp_set(-6.93145752e-1f), c.v[k]);
  CP_EACH c.v[k] = _mm512_fmadd_ps(n.v[k], cp_set(-1.42860677e-6f), c.v[k]);
  CP_EACH p.v[k] = _mm512_fmadd_ps(cp_set(4.16417345405e-2f), c.v[k], cp_set(1.66721090674e-1f));
  CP_EACH p.v[k] = _mm512_fmadd_ps(p.v[k], c.v[k], cp_set(5.00000178814e-1f));
  CP_EACH p.v[k] = _mm512_fmadd_ps(p.v[k], _mm512_mul_ps(c.v[k], c.v[k]), c.v[k]);
  return cp_assemble_f32x64(p, sum);
}

/* y[0 .. 63] = NAME(x[0 .. 63] - shift) */
#define CP_LANES(NAME) \
  CP_INLINE void NAME##_lanes(float *y, const float *x, float shift) { \
    cp_f32x64 r; \
    CP_EACH r.v[k] = _mm512_sub_ps(_mm512_loadu_ps(x + 16 * k), cp_set(shift)); \
    r = NAME##x64(r); \
    CP_EACH _mm512_storeu_ps(y + 16 * k, r.v[k]); \
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

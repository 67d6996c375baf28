/* exp, exp2 and rounding to bf16 of whole arrays, with the bits of the scalar functions of transcendental.h and scalar.h.
 *
 * The vector code differs from what gcc makes of those in three things: vscalefps multiplies by 2^floor(n) with one rounding,
 * as two multiplications do of which the first is exact; vpermilps takes one of four floats by the last two bits; and every
 * step is taken by all vectors before the next one is. Each waits for its last operation while the others have their next: of
 * chains one after another the processor overlaps less, because what waits fills its schedulers. */
#pragma once
#include "transcendental.h"
#if defined(__AVX512F__)
#include <immintrin.h>

/* Eight vectors in steps take 3/4 of the time of four. */
#define CP_MOST_VECTORS 8
#define CP_EACH for (int k = 0; k < vectors; k++)

CP_INLINE __m512 cp_set(float x) { return _mm512_set1_ps(x); }
/* a < low ? low : a > high ? high : a; NaN stays */
CP_INLINE __m512 cp_between(__m512 a, float low, float high) { return _mm512_max_ps(cp_set(low), _mm512_min_ps(cp_set(high), a)); }
CP_INLINE __m512 cp_quarter(__m512 sum) {
  return _mm512_permutevar_ps(_mm512_broadcast_f32x4((__m128){CP_QUARTERS}), _mm512_castps_si512(sum));
}
/* x = q * (1 + p) * 2^floor(n); a NaN has come through all of it */
CP_INLINE void cp_assemble(__m512 *x, const __m512 *p, const __m512 *sum, int vectors) {
  __m512 q[CP_MOST_VECTORS], n[CP_MOST_VECTORS];
  CP_EACH q[k] = cp_quarter(sum[k]);
  CP_EACH n[k] = _mm512_sub_ps(sum[k], cp_set(CP_ROUND));
  CP_EACH q[k] = _mm512_fmadd_ps(p[k], q[k], q[k]);
  CP_EACH x[k] = _mm512_scalef_ps(q[k], n[k]);
}

CP_INLINE void cp_exp2_f32_vectors(__m512 *x, int vectors) {
  __m512 sum[CP_MOST_VECTORS], n[CP_MOST_VECTORS], f[CP_MOST_VECTORS], p[CP_MOST_VECTORS];
  CP_EACH f[k] = cp_between(x[k], -151.0f, 129.0f);
  CP_EACH sum[k] = _mm512_add_ps(f[k], cp_set(CP_ROUND));
  CP_EACH n[k] = _mm512_sub_ps(sum[k], cp_set(CP_ROUND));
  CP_EACH f[k] = _mm512_sub_ps(f[k], n[k]);
  CP_EACH p[k] = _mm512_fmadd_ps(cp_set(9.61618311703e-3f), f[k], cp_set(5.55299557745e-2f));
  CP_EACH p[k] = _mm512_fmadd_ps(p[k], f[k], cp_set(2.40226566792e-1f));
  CP_EACH p[k] = _mm512_fmadd_ps(p[k], f[k], cp_set(6.93147063255e-1f));
  CP_EACH p[k] = _mm512_mul_ps(p[k], f[k]);
  cp_assemble(x, p, sum, vectors);
}

CP_INLINE void cp_exp_f32_vectors(__m512 *x, int vectors) {
  __m512 sum[CP_MOST_VECTORS], n[CP_MOST_VECTORS], f[CP_MOST_VECTORS], p[CP_MOST_VECTORS];
  CP_EACH f[k] = cp_between(x[k], -104.0f, 89.0f);
  CP_EACH sum[k] = _mm512_fmadd_ps(f[k], cp_set(1.44269504f), cp_set(CP_ROUND));
  CP_EACH n[k] = _mm512_sub_ps(sum[k], cp_set(CP_ROUND));
  CP_EACH f[k] = _mm512_fmadd_ps(n[k], cp_set(-6.93145752e-1f), f[k]);
  CP_EACH f[k] = _mm512_fmadd_ps(n[k], cp_set(-1.42860677e-6f), f[k]);
  CP_EACH p[k] = _mm512_fmadd_ps(cp_set(4.16417345405e-2f), f[k], cp_set(1.66721090674e-1f));
  CP_EACH p[k] = _mm512_fmadd_ps(p[k], f[k], cp_set(5.00000178814e-1f));
  CP_EACH p[k] = _mm512_fmadd_ps(p[k], _mm512_mul_ps(f[k], f[k]), f[k]);
  cp_assemble(x, p, sum, vectors);
}

/* y[0 .. 16 vectors - 1] = NAME(x[..] scale - shift), the second half of them less another shift */
#define CP_LANES(NAME) \
  CP_INLINE void NAME##_scaled(float *y, const float *x, float scale, float shift, float second, int vectors) { \
    __m512 r[CP_MOST_VECTORS]; \
    CP_EACH r[k] = _mm512_sub_ps(_mm512_mul_ps(_mm512_loadu_ps(x + 16 * k), cp_set(scale)), cp_set(2 * k < vectors ? shift : second)); \
    NAME##_vectors(r, vectors); \
    CP_EACH _mm512_storeu_ps(y + 16 * k, r[k]); \
  }
#else
#define CP_LANES(NAME) \
  CP_INLINE void NAME##_scaled(float *y, const float *x, float scale, float shift, float second, int vectors) { \
    float r[128]; \
    for (int k = 0; k < 16 * vectors; k++) r[k] = NAME(x[k] * scale - (k < 8 * vectors ? shift : second)); \
    for (int k = 0; k < 16 * vectors; k++) y[k] = r[k]; \
  }
#endif

/* _lanes: y[0 .. 63] = NAME(x[0 .. 63] - shift).
 * _array: y[i] = NAME(x[i] - shift).
 * _rows: y[i, j] = NAME(x[i, j] scale - shift[i]); columns is a multiple of 64.
 * y may be x. x - 0.0f and x 1.0f are x, a NaN and the sign of a zero included. */
#define CP_ARRAY(NAME) \
  CP_LANES(NAME) \
  CP_INLINE void NAME##_lanes(float *y, const float *x, float shift) { NAME##_scaled(y, x, 1.0f, shift, shift, 4); } \
  static __attribute__((unused, noinline)) void NAME##_array(float *y, const float *x, float shift, int count) { \
    int i = 0; \
    for (; i + 128 <= count; i += 128) NAME##_scaled(y + i, x + i, 1.0f, shift, shift, 8); \
    for (; i + 64 <= count; i += 64) NAME##_lanes(y + i, x + i, shift); \
    for (; i < count; i++) y[i] = NAME(x[i] - shift); \
  } \
  static __attribute__((unused, noinline)) void NAME##_rows(float *y, const float *x, float scale, const float *shift, int rows, int columns) { \
    int i = 0, chunks = rows * columns / 64, of_row = columns / 64; \
    for (; i + 2 <= chunks; i += 2) NAME##_scaled(y + 64 * i, x + 64 * i, scale, shift[i / of_row], shift[(i + 1) / of_row], 8); \
    for (; i < chunks; i++) NAME##_scaled(y + 64 * i, x + 64 * i, scale, shift[i / of_row], shift[i / of_row], 4); \
  }
CP_ARRAY(cp_exp_f32)
CP_ARRAY(cp_exp2_f32)

/* y[i] = x[i] rounded to bf16 */
static __attribute__((unused, noinline)) void cp_f32_bf16_array(uint16_t *y, const float *x, int count) {
  int i = 0;
#if defined(__AVX512BF16__) && defined(__AVX512DQ__)
  /* vcvtne2ps2bf16 flushes denormals and keeps what a NaN carries: where there are any, the loop below */
  enum { odd = 0x01 | 0x20 | 0x80 }; /* clang takes no variable for it */
  for (; i + 64 <= count; i += 64) {
    __m512 r[4];
    __mmask16 found = 0;
    for (int k = 0; k < 4; k++) found |= _mm512_fpclass_ps_mask(r[k] = _mm512_loadu_ps(x + i + 16 * k), odd);
    if (__builtin_expect(found, 0)) {
      for (int j = i; j < i + 64; j++) y[j] = cp_f32_bf16(x[j]);
      continue;
    }
    for (int k = 0; k < 2; k++)
      _mm512_storeu_si512(y + i + 32 * k, (__m512i)_mm512_cvtne2ps_pbh(r[2 * k + 1], r[2 * k]));
  }
#endif
  for (; i < count; i++) y[i] = cp_f32_bf16(x[i]);
}

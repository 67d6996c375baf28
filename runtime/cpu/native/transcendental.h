/* Elementary functions in f32, branch-free, built from single operations and explicit fused multiply-adds only:
 * compiled with -ffp-contract=off they give the same bits in vector and in scalar code. Errors in ulp, measured over
 * the whole range by tests/cpu/backend/test_math.py: exp, exp2 < 1; log, log2 < 1.5; tanh < 2;
 * erf < 1. f64 variants come from libm; sin and cos are in trigonometric.h. */
#pragma once
#include "scalar.h"
#include "trigonometric.h"

#define cp_fma_f32 __builtin_fmaf
#define cp_fma_f64 __builtin_fma

/* 2^i for i in -252 .. 254, in two factors so that denormal results round once */
CP_INLINE float cp_scale_f32(float p, int32_t i) {
  int32_t low = i >> 1, high = i - low;
  return p * cp_bits_f32((uint32_t)(low + 127) << 23) * cp_bits_f32((uint32_t)(high + 127) << 23);
}

/* Two comparisons that gcc turns into vminps and vmaxps; NaN stays. */
CP_INLINE float cp_between_f32(float x, float low, float high) {
  float below = high < x ? high : x;
  return low > below ? low : below;
}

/* 2^(i / 4), i in 0 .. 3, by selects that vectorise */
#define CP_QUARTERS 1.0f, 1.18920707703f, 1.41421353817f, 1.68179285526f
CP_INLINE float cp_quarter_f32(uint32_t i) {
  const float q[4] = {CP_QUARTERS};
  float even = i & 2 ? q[2] : q[0], odd = i & 2 ? q[3] : q[1];
  return i & 1 ? odd : even;
}

/* exp and exp2 split x into n quarters of a doubling and a rest f: 2^floor(n / 4) * 2^(n % 4 / 4) * (1 + p(f)). Adding
 * CP_ROUND rounds to quarters: the last two bits of the sum are n % 4, those in front of them floor(n / 4). */
#define CP_ROUND 3145728.0f
CP_INLINE int32_t cp_doublings_f32(float sum) { return (int32_t)(cp_f32_bits(sum) - 0x4a400000u) >> 2; }

CP_INLINE float cp_exp2_f32(float x) {
  float c = cp_between_f32(x, -151.0f, 129.0f), sum = c + CP_ROUND;
  float f = c - (sum - CP_ROUND); /* exact, |f| <= 1/8 */
  float p = cp_fma_f32(9.61618311703e-3f, f, 5.55299557745e-2f);
  p = cp_fma_f32(p, f, 2.40226566792e-1f);
  p = cp_fma_f32(p, f, 6.93147063255e-1f) * f;
  float q = cp_quarter_f32(cp_f32_bits(sum));
  float r = cp_scale_f32(cp_fma_f32(p, q, q), cp_doublings_f32(sum));
  return x != x ? x : r;
}

CP_INLINE float cp_exp_f32(float x) {
  float c = cp_between_f32(x, -104.0f, 89.0f), sum = cp_fma_f32(c, 1.44269504f, CP_ROUND), n = sum - CP_ROUND;
  float f = cp_fma_f32(n, -6.93145752e-1f, c); /* ln 2 in two parts */
  f = cp_fma_f32(n, -1.42860677e-6f, f);
  float p = cp_fma_f32(4.16417345405e-2f, f, 1.66721090674e-1f);
  p = cp_fma_f32(p, f, 5.00000178814e-1f);
  p = cp_fma_f32(p, f * f, f);
  float q = cp_quarter_f32(cp_f32_bits(sum));
  float r = cp_scale_f32(cp_fma_f32(p, q, q), cp_doublings_f32(sum));
  return x != x ? x : r;
}

/* x = 2^e * (1 + f), f in [sqrt(1/2) - 1, sqrt(2) - 1]; returns log(1 + f) */
CP_INLINE float cp_log_reduce_f32(float x, float *exponent) {
  uint32_t u = cp_f32_bits(x);
  bool denormal = u < 0x00800000u;
  u = denormal ? cp_f32_bits(x * 8388608.0f) : u;
  int32_t e = (int32_t)(u - 0x3f3504f3u) >> 23;
  *exponent = (float)(e - (denormal ? 23 : 0));
  float f = cp_bits_f32(u - ((uint32_t)e << 23)) - 1.0f;
  float z = f * f;
  float p = 7.0376836292e-2f;
  p = cp_fma_f32(p, f, -1.1514610310e-1f);
  p = cp_fma_f32(p, f, 1.1676998740e-1f);
  p = cp_fma_f32(p, f, -1.2420140846e-1f);
  p = cp_fma_f32(p, f, 1.4249322787e-1f);
  p = cp_fma_f32(p, f, -1.6668057665e-1f);
  p = cp_fma_f32(p, f, 2.0000714765e-1f);
  p = cp_fma_f32(p, f, -2.4999993993e-1f);
  p = cp_fma_f32(p, f, 3.3333331174e-1f);
  return f + cp_fma_f32(f * z, p, -0.5f * z);
}
CP_INLINE float cp_log_special_f32(float x, float r) {
  r = x == INFINITY ? x : r;
  r = x == 0.0f ? -INFINITY : r;
  return x < 0.0f || x != x ? NAN : r;
}
CP_INLINE float cp_log_f32(float x) {
  float e, r = cp_log_reduce_f32(x, &e);
  r = cp_fma_f32(e, -2.12194440e-4f, r);
  return cp_log_special_f32(x, cp_fma_f32(e, 0.693359375f, r));
}
CP_INLINE float cp_log2_f32(float x) {
  float e, r = cp_log_reduce_f32(x, &e);
  float y = cp_fma_f32(r, 1.44269502f, r * 1.92596299e-8f);
  return cp_log_special_f32(x, e + y);
}

CP_INLINE float cp_tanh_f32(float x) {
  float a = fabsf(x), z = x * x;
  float p = -5.71704547795e-3f;
  p = cp_fma_f32(p, z, 2.06505876963e-2f);
  p = cp_fma_f32(p, z, -5.37434982112e-2f);
  p = cp_fma_f32(p, z, 1.33314912887e-1f);
  p = cp_fma_f32(p, z, -3.33332839253e-1f);
  float near_zero = cp_fma_f32(p * z, x, x);
  float e = cp_exp_f32(-2.0f * a);
  float far = copysignf((1.0f - e) / (1.0f + e), x);
  return a < 0.625f ? near_zero : (x != x ? x : far);
}

/* N. Juffa's approximation: a polynomial near zero, else 1 - exp(polynomial). Beyond 4 the result is 1. */
CP_INLINE float cp_erf_f32(float x) {
  float a = fabsf(x), t = a > 4.0f ? 4.0f : a, z = t * t;
  float far = cp_fma_f32(-1.72948930e-5f, t, 3.83208680e-4f);
  far = cp_fma_f32(far, z, cp_fma_f32(-3.88393435e-3f, t, 2.42545605e-2f));
  far = cp_fma_f32(far, t, -1.06777847e-1f);
  far = cp_fma_f32(far, t, -6.34846687e-1f);
  far = cp_fma_f32(far, t, -1.28717512e-1f);
  far = 1.0f - cp_exp_f32(cp_fma_f32(far, t, -t));
  float p = -5.96761703e-4f;
  p = cp_fma_f32(p, z, 4.99119423e-3f);
  p = cp_fma_f32(p, z, -2.67681349e-2f);
  p = cp_fma_f32(p, z, 1.12819925e-1f);
  p = cp_fma_f32(p, z, -3.76125336e-1f);
  p = cp_fma_f32(p, z, 1.28379166e-1f);
  float near_zero = cp_fma_f32(p, x, x);
  return t > 0.921875f ? copysignf(far, x) : near_zero; /* a NaN is not greater and stays */
}

#define cp_sqrt_f32 sqrtf
#define cp_abs_f32 fabsf
#define cp_floor_f32 floorf
#define cp_ceil_f32 ceilf
#define cp_fmod_f32 fmodf
#define cp_pow_f32 powf
#define cp_log1p_f32 log1pf
#define cp_expm1_f32 expm1f
#define cp_trunc_f32 truncf
#define cp_rint_f32 rintf
#define cp_round_f32 roundf
CP_INLINE float cp_rsqrt_f32(float x) { return 1.0f / sqrtf(x); }

#define cp_exp_f64 exp
#define cp_exp2_f64 exp2
#define cp_log_f64 log
#define cp_log2_f64 log2
#define cp_tanh_f64 tanh
#define cp_sqrt_f64 sqrt
#define cp_sin_f64 sin
#define cp_cos_f64 cos
#define cp_erf_f64 erf
#define cp_abs_f64 fabs
#define cp_floor_f64 floor
#define cp_ceil_f64 ceil
#define cp_fmod_f64 fmod
#define cp_pow_f64 pow
#define cp_log1p_f64 log1p
#define cp_expm1_f64 expm1
#define cp_trunc_f64 trunc
#define cp_rint_f64 rint
#define cp_round_f64 round
CP_INLINE double cp_rsqrt_f64(double x) { return 1.0 / sqrt(x); }

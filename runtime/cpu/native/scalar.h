/* Scalar building blocks of generated kernels: bit casts, conversions, integer division, minimum and maximum.
 * Everything is branch-free enough for gcc to vectorise and has one defined result for every input, so vector and
 * scalar code agree bit for bit. */
#pragma once
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define CP_INLINE static inline __attribute__((always_inline))

CP_INLINE float cp_bits_f32(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
CP_INLINE uint32_t cp_f32_bits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
CP_INLINE double cp_bits_f64(uint64_t u) { double f; memcpy(&f, &u, 8); return f; }
CP_INLINE uint64_t cp_f64_bits(double f) { uint64_t u; memcpy(&u, &f, 8); return u; }
CP_INLINE _Float16 cp_bits_f16(uint16_t u) { _Float16 f; memcpy(&f, &u, 2); return f; }
CP_INLINE uint16_t cp_f16_bits(_Float16 f) { uint16_t u; memcpy(&u, &f, 2); return u; }

/* bf16 is kept as its bits. Rounding is to nearest even; every NaN becomes the quiet NaN 0x7fc0. */
CP_INLINE float cp_bf16_f32(uint16_t x) { return cp_bits_f32((uint32_t)x << 16); }
CP_INLINE uint16_t cp_f32_bf16(float f) {
  uint32_t u = cp_f32_bits(f);
  uint32_t r = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return (uint16_t)(f != f ? 0x7fc0u : r);
}
CP_INLINE uint16_t cp_f32_bf16_rtz(float f) { return (uint16_t)(f != f ? 0x7fc0u : cp_f32_bits(f) >> 16); }

CP_INLINE _Float16 cp_f32_f16_rtz(float f) {
  _Float16 h = (_Float16)f;
  bool away = fabsf((float)h) > fabsf(f);
  return cp_bits_f16((uint16_t)(cp_f16_bits(h) - away));
}

/* f64 to f32 rounded to odd: a following rounding to a narrower type is then a single rounding of the f64. */
CP_INLINE float cp_f64_f32_odd(double d) {
  float f = (float)d;
  uint32_t u = cp_f32_bits(f);
  double back = (double)f;
  bool away = fabs(back) > fabs(d);
  uint32_t odd = (u - (away ? 1u : 0u)) | 1u;
  return back == d || d != d || fabs(d) == INFINITY ? f : cp_bits_f32(odd);
}

/* 64-bit integers to f64 rounded to odd, for the same purpose: beyond 2^53 the low bits become one sticky bit. */
#define CP_INT_TO_ODD(NAME, INT, BEYOND) \
  CP_INLINE double NAME(INT x) { \
    INT sticky = (x & ~(INT)0x7ff) | ((x & 0x7ff) != 0 ? 0x800 : 0); \
    return (double)((BEYOND) ? sticky : x); \
  }
CP_INT_TO_ODD(cp_i64_f64_odd, int64_t, x > (1ll << 53) || x < -(1ll << 53))
CP_INT_TO_ODD(cp_u64_f64_odd, uint64_t, x > (1ull << 53))

/* Float to integer: truncation, saturating, NaN gives 0 (C leaves both undefined). */
#define CP_FLOAT_TO_INT(NAME, FLOAT, INT, WIDE, LOW, HIGH, LOW_F, HIGH_F) \
  CP_INLINE INT NAME(FLOAT x) { \
    FLOAT c = x >= (HIGH_F) || x <= (LOW_F) || x != x ? (FLOAT)0 : x; \
    INT r = (INT)(WIDE)c; \
    r = x >= (HIGH_F) ? (INT)(HIGH) : r; \
    return x <= (LOW_F) ? (INT)(LOW) : r; \
  }
#define CP_FLOAT_TO_INTS(F, FLOAT) \
  CP_FLOAT_TO_INT(cp_##F##_i8, FLOAT, int8_t, int32_t, INT8_MIN, INT8_MAX, -128, 127) \
  CP_FLOAT_TO_INT(cp_##F##_i16, FLOAT, int16_t, int32_t, INT16_MIN, INT16_MAX, -32768, 32767) \
  CP_FLOAT_TO_INT(cp_##F##_i32, FLOAT, int32_t, int32_t, INT32_MIN, INT32_MAX, -2147483648.0f, 2147483648.0f) \
  CP_FLOAT_TO_INT(cp_##F##_i64, FLOAT, int64_t, int64_t, INT64_MIN, INT64_MAX, -0x1p63f, 0x1p63f) \
  CP_FLOAT_TO_INT(cp_##F##_u8, FLOAT, uint8_t, int32_t, 0, UINT8_MAX, 0, 255) \
  CP_FLOAT_TO_INT(cp_##F##_u16, FLOAT, uint16_t, int32_t, 0, UINT16_MAX, 0, 65535) \
  CP_FLOAT_TO_INT(cp_##F##_u32, FLOAT, uint32_t, int64_t, 0, UINT32_MAX, 0, 4294967296.0f) \
  CP_FLOAT_TO_INT(cp_##F##_u64, FLOAT, uint64_t, uint64_t, 0, UINT64_MAX, 0, 0x1p64f)
CP_FLOAT_TO_INTS(f32, float)
CP_FLOAT_TO_INTS(f64, double)

/* Integer division: never traps. x / 0 is 0, x % 0 is x, MIN / -1 is MIN. The f64 quotient of 32-bit integers is
 * exact after truncation, and vectorises where idiv does not. */
CP_INLINE int32_t cp_div_i32(int32_t a, int32_t b) {
  double q = (double)a / (double)(b == 0 ? 1 : b);
  int32_t r = q >= 2147483648.0 ? INT32_MIN : (int32_t)q;
  return b == 0 ? 0 : r;
}
CP_INLINE uint32_t cp_div_u32(uint32_t a, uint32_t b) {
  uint32_t r = (uint32_t)(int64_t)((double)a / (double)(b == 0 ? 1 : b));
  return b == 0 ? 0 : r;
}
CP_INLINE int64_t cp_div_i64(int64_t a, int64_t b) {
  return b == 0 ? 0 : b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b;
}
CP_INLINE uint64_t cp_div_u64(uint64_t a, uint64_t b) { return b == 0 ? 0 : a / b; }
CP_INLINE int32_t cp_rem_i32(int32_t a, int32_t b) {
  return (int32_t)((uint32_t)a - (uint32_t)cp_div_i32(a, b) * (uint32_t)b);
}
CP_INLINE uint32_t cp_rem_u32(uint32_t a, uint32_t b) { return a - cp_div_u32(a, b) * b; }
CP_INLINE int64_t cp_rem_i64(int64_t a, int64_t b) { return b == 0 ? a : b == -1 ? 0 : a % b; }
CP_INLINE uint64_t cp_rem_u64(uint64_t a, uint64_t b) { return b == 0 ? a : a % b; }
#define cp_div_i16 cp_div_i32
#define cp_div_i8 cp_div_i32
#define cp_div_u16 cp_div_u32
#define cp_div_u8 cp_div_u32
#define cp_rem_i16 cp_rem_i32
#define cp_rem_i8 cp_rem_i32
#define cp_rem_u16 cp_rem_u32
#define cp_rem_u8 cp_rem_u32

/* How many of the `size` numbers low, low + 1, .. are less than bound (or equal to it): exact for all 64-bit integers. */
CP_INLINE int64_t cp_reach(int64_t low, int64_t bound, bool or_equal, int64_t size) {
  uint64_t below = low > bound ? 0 : (uint64_t)bound - (uint64_t)low;
  bool one_more = or_equal && low <= bound;
  return below >= (uint64_t)size ? size : (int64_t)below + one_more;
}

/* count rounded up to whole groups of 64 lanes, at least one */
CP_INLINE int64_t cp_whole_lanes(int64_t count) { return count < 64 ? 64 : (count + 63) & ~(int64_t)63; }

/* Do all numbers from first to last have the same quotient? False where negative numbers are involved. */
CP_INLINE bool cp_same_quotient(int64_t first, int64_t last, int64_t divisor) {
  return first >= 0 && last >= first && divisor > 0 && first / divisor == last / divisor;
}

CP_INLINE uint64_t cp_reverse_bits(uint64_t x, int bits) {
  uint64_t r = 0;
  for (int i = 0; i < bits; i++) r |= (x >> i & 1) << (bits - 1 - i);
  return r;
}

/* *num ignore a NaN operand, *imum propagate it. */
#define CP_MINMAX(F, FLOAT) \
  CP_INLINE FLOAT cp_maxnum_##F(FLOAT a, FLOAT b) { FLOAT m = a > b ? a : b; return b != b ? a : m; } \
  CP_INLINE FLOAT cp_minnum_##F(FLOAT a, FLOAT b) { FLOAT m = a < b ? a : b; return b != b ? a : m; } \
  CP_INLINE FLOAT cp_maximum_##F(FLOAT a, FLOAT b) { FLOAT m = a > b ? a : b; return a != a ? a : m; } \
  CP_INLINE FLOAT cp_minimum_##F(FLOAT a, FLOAT b) { FLOAT m = a < b ? a : b; return a != a ? a : m; }
CP_MINMAX(f32, float)
CP_MINMAX(f64, double)

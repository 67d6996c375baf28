/* sin and cos of f32, branch-free: computed in f64, rounded to f32 once. Built from single operations and explicit fused
 * multiply-adds only: compiled with -ffp-contract=off they give the same bits in vector and in scalar code. Error below
 * 0.501 ulp for all finite arguments (tests/cpu/backend/test_trigonometric.py). */
#pragma once
#include "scalar.h"

/* What an f32 of 2^25 and more is multiplied by, to leave a number that differs from it by a multiple of 2 pi:
 * x = m 2^k, with a whole number m below 2^24, goes to m (2^k mod 2 pi). Entry k - 1 is 2^-k (2^k mod 2 pi), between
 * -2^-k pi and 2^-k pi, as a sum of two: the first has few enough bits for its product with x to be exact. Entry 0 leaves
 * smaller x as they are, the last one makes NaN of infinities. test_trigonometric.py computes them again. Two arrays
 * and an index of 64 bits: that is how gcc makes vectors of the loads. */
#define CP_TURNED_EXPONENT 151 /* biased: below 2^25 */
static const double cp_turned_high[105] = {
  0x1.0000000000000p+0, -0x1.243f6a8000000p-1, 0x1.b7812b0000000p-3, -0x1.6cbe3fa000000p-3, 0x1.2b0bad8000000p-6,
  0x1.2b0bad4000000p-6, 0x1.2b0bad6000000p-6, -0x1.9c501fc000000p-8, 0x1.87ef4ac000000p-8, -0x1.460d4e0000000p-13,
  -0x1.460d4f0000000p-13, -0x1.460d4f0000000p-13, -0x1.460d4ec000000p-13, -0x1.460d4ee000000p-13,
  0x1.304999c000000p-15, 0x1.304999c000000p-15, -0x1.87586e0000000p-17, -0x1.87586de000000p-17, 0x1.58e8ec0000000p-22,
  0x1.58e8ec0000000p-22, 0x1.58e8ec0000000p-22, 0x1.58e8ec0000000p-22, 0x1.58e8ec2000000p-22, -0x1.c9b6498000000p-25,
  -0x1.c9b6498000000p-25, 0x1.5a89210000000p-25, -0x1.bcb4a20000000p-28, -0x1.bcb4a24000000p-28,
  0x1.678ac84000000p-28, -0x1.54a7680000000p-31, -0x1.54a767c000000p-31, -0x1.54a767e000000p-31,
  0x1.ebc26b8000000p-34, 0x1.ebc26b8000000p-34, -0x1.387cff0000000p-34, 0x1.668ad94000000p-36, 0x1.668ad94000000p-36,
  -0x1.5ca6e00000000p-39, -0x1.5ca6e00000000p-39, -0x1.5ca6dfe000000p-39, 0x1.abc6ab0000000p-42,
  0x1.abc6aac000000p-42, -0x1.7878bfc000000p-42, 0x1.9a6f590000000p-46, 0x1.9a6f588000000p-46, 0x1.9a6f588000000p-46,
  -0x1.89d0120000000p-46, 0x1.09f4680000000p-51, 0x1.09f4680000000p-51, 0x1.09f4680000000p-51, 0x1.09f4684000000p-51,
  0x1.09f4684000000p-51, -0x1.10569a0000000p-52, 0x1.0392366000000p-53, -0x1.1d1afdc000000p-54, 0x1.d412de4000000p-56,
  -0x1.502c8c4000000p-56, 0x1.07cca44000000p-58, 0x1.07cca42000000p-58, -0x1.14a6222000000p-59, 0x1.f5e64c4000000p-61,
  -0x1.2e591e4000000p-61, 0x1.8f1a5c4000000p-63, 0x1.8f1a5c4000000p-63, -0x1.82ac800000000p-70,
  -0x1.82ac840000000p-70, -0x1.82ac840000000p-70, -0x1.82ac830000000p-70, -0x1.82ac838000000p-70,
  -0x1.82ac838000000p-70, -0x1.82ac838000000p-70, 0x1.ee663a0000000p-75, 0x1.ee663a0000000p-75, 0x1.ee66398000000p-75,
  0x1.ee66398000000p-75, -0x1.35d9310000000p-75, 0x1.711a110000000p-77, 0x1.711a112000000p-77, -0x1.082d218000000p-80,
  -0x1.082d218000000p-80, -0x1.082d21a000000p-80, 0x1.13e5276000000p-81, -0x1.f8ea37c000000p-83,
  0x1.2b5532c000000p-83, -0x1.9b2a0a4000000p-85, 0x1.8915606000000p-85, -0x1.214a9c0000000p-90,
  -0x1.214a9c0000000p-90, -0x1.214a9b8000000p-90, -0x1.214a9b8000000p-90, -0x1.214a9ba000000p-90,
  0x1.c35466c000000p-92, -0x1.60eb03c000000p-92, 0x1.89a58c8000000p-95, 0x1.89a58c4000000p-95, 0x1.89a58c4000000p-95,
  -0x1.0f45200000000p-100, -0x1.0f45200000000p-100, -0x1.0f45208000000p-100, -0x1.0f45204000000p-100,
  -0x1.0f45204000000p-100, 0x1.05b529e000000p-101, -0x1.18d516a000000p-102, 0x1.e52a7a8000000p-104, __builtin_nan(""),
};
static const double cp_turned_low[105] = {
  0x0.0p+0, -0x1.10b4611a62633p-30, -0x1.10b4611a62633p-31, 0x1.9bc5b961b1acep-33, -0x1.5385e583ebeffp-33,
  0x1.58f434f828201p-34, -0x1.4e17960fafbfep-35, 0x1.4c71cb18f8747p-38, 0x1.b6ed46a6de9d7p-37, -0x1.a2d9d3cca5286p-38,
  0x1.7498b0cd6b5e8p-40, 0x1.7498b0cd6b5e8p-40, -0x1.16ce9e6529430p-41, 0x1.d262c335ad7a1p-42, 0x1.6af3cf0b7aae9p-44,
  0x1.6af3cf0b7aae9p-44, 0x1.c5333cfc92f9ep-45, -0x1.d666181b68310p-48, 0x1.2c0aa86572557p-50, 0x1.2c0aa86572557p-50,
  0x1.2c0aa86572557p-50, 0x1.2c0aa86572557p-50, -0x1.a7eaaf351b553p-51, -0x1.8226fe1264360p-54,
  -0x1.8226fe1264360p-54, -0x1.c5ca73e0074b5p-56, -0x1.f3999b0a6608ep-55, 0x1.8ccc9eb33ee4bp-60,
  0x1.424df4f0ca3fdp-57, 0x1.73e788c7321c6p-58, -0x1.1830ee719bc74p-59, 0x1.cf9e231cc8718p-60, 0x1.5fe14ea7e68c5p-62,
  0x1.5fe14ea7e68c5p-62, 0x1.af0e3c356ab57p-63, 0x1.bb436614df386p-66, 0x1.bb436614df386p-66, 0x1.551e09f4f9aa6p-67,
  0x1.551e09f4f9aa6p-67, -0x1.55c3ec160cab4p-68, -0x1.9ad37711b6f35p-69, 0x1.94b223b92432cp-71, 0x1.07fb853d839f2p-72,
  -0x1.e75019a819fdbp-72, 0x1.8afe657e60255p-76, 0x1.8afe657e60255p-76, -0x1.2cd4b96cc9422p-77, 0x1.e928118ff7087p-78,
  0x1.e928118ff7087p-78, 0x1.e928118ff7087p-78, -0x1.6d7ee7008f78ap-82, -0x1.6d7ee7008f78ap-82,
  -0x1.c773d49aaa1f8p-81, 0x1.81ccb7e50e243p-82, 0x1.f2e50eafb9e54p-83, 0x1.ecfcfcf3ac5b5p-85, 0x1.b89137b293f04p-86,
  -0x1.36ba673309ac9p-86, 0x1.928b3199eca6ep-87, -0x1.eb9dfde689157p-88, 0x1.3978654d50385p-89, 0x1.623c69803e0d8p-90,
  -0x1.56965f290c0efp-94, -0x1.56965f290c0efp-94, -0x1.bbff90aee86abp-93, 0x1.1001bd445e555p-95,
  0x1.1001bd445e555p-95, -0x1.dffc857743555p-96, 0x1.001bd445e5556p-99, 0x1.001bd445e5556p-99, 0x1.001bd445e5556p-99,
  -0x1.de27ecb3a5e43p-101, -0x1.de27ecb3a5e43p-101, 0x1.0ec09a62d0debp-104, 0x1.0ec09a62d0debp-104,
  -0x1.f3c6b791847c5p-112, 0x1.0cccd3ab3f5a4p-105, -0x1.e66658a9814b9p-106, -0x1.bb0224dac9f4ap-108,
  -0x1.bb0224dac9f4ap-108, 0x1.13f76c94d82d9p-110, -0x1.db543250c56f4p-110, -0x1.8eb98b77da837p-112,
  -0x1.f814a975e080fp-114, 0x1.f3414a2aad5c6p-113, 0x1.ee6deadf7a37dp-115, 0x1.bb73138a2fa93p-116,
  0x1.bb73138a2fa93p-116, -0x1.1233b1d7415b4p-118, -0x1.1233b1d7415b4p-118, 0x1.db989c517d499p-119,
  0x1.8fcb337ab9ec9p-121, 0x1.fc5b49815e257p-123, -0x1.f11dfa24ee8a1p-122, 0x1.dc40bb622ebdap-127,
  0x1.dc40bb622ebdap-127, -0x1.33486483ad679p-126, -0x1.33486483ad679p-126, 0x1.996f36f8a530ep-127,
  -0x1.9a43241d6b3c8p-129, -0x1.9a43241d6b3c8p-129, 0x1.dc2e18df8bea3p-130, -0x1.58582f5b4a8edp-131,
  -0x1.9ffbfd9c32ba7p-132, __builtin_nan(""),
};

/* x - q pi/2 for the whole number q that leaves at most pi/4, and q modulo 2^32. */
CP_INLINE double cp_reduce_turns_f32(float x, int32_t *quarters) {
  const double magic = 6755399441055744.0; /* 1.5 * 2^52: adding and subtracting it rounds to whole numbers */
  int32_t exponent = (int32_t)(cp_f32_bits(x) >> 23 & 255);
  int64_t entry = exponent > CP_TURNED_EXPONENT ? exponent - CP_TURNED_EXPONENT : 0;
  double high = (double)x * cp_turned_high[entry], low = (double)x * cp_turned_low[entry];
  double n = __builtin_fma(high + low, 0x1.45f306dc9c883p-1, magic);
  *quarters = (int32_t)cp_f64_bits(n);
  n -= magic;
  double r = __builtin_fma(n, -0x1.921fb54442d18p+0, high);
  return __builtin_fma(n, -0x1.1a62633145c07p-54, r) + low;
}

/* sin(r) for even quarters, cos(r) for odd ones, negative for the second half of a turn. |r| <= pi/4, polynomials of
 * FreeBSD's k_sinf.c and k_cosf.c (relative errors 2^-37.5 and 2^-34.1). */
CP_INLINE float cp_wave_f64(double r, int32_t quarters) {
  double z = r * r;
  double s = 0x1.6cd878c3b46a7p-19;
  s = __builtin_fma(s, z, -0x1.a00f9e2cae774p-13);
  s = __builtin_fma(s, z, 0x1.11110896efbb2p-7);
  s = __builtin_fma(s, z, -0x1.5555554cbac77p-3);
  s = __builtin_fma(s, z * r, r);
  double c = 0x1.99342e0ee5069p-16;
  c = __builtin_fma(c, z, -0x1.6c087e80f1e27p-10);
  c = __builtin_fma(c, z, 0x1.55553e1053a42p-5);
  c = __builtin_fma(c, z, -0x1.ffffffd0c5e81p-2);
  c = __builtin_fma(c, z, 1.0);
  double wave = quarters & 1 ? c : s;
  return (float)(quarters & 2 ? -wave : wave);
}

CP_INLINE float cp_sin_f32(float x) {
  int32_t quarters;
  double r = cp_reduce_turns_f32(x, &quarters);
  float y = cp_wave_f64(r, quarters);
  return x == 0.0f ? x : y; /* keeps the sign */
}

CP_INLINE float cp_cos_f32(float x) {
  int32_t quarters;
  double r = cp_reduce_turns_f32(x, &quarters);
  return cp_wave_f64(r, (int32_t)((uint32_t)quarters + 1u));
}

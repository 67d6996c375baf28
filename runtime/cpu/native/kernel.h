/* What every generated kernel may use; kernels with dots include dot.h, dot_bf16.h or dot_i8.h too (vector intrinsics are
 * slow to parse). */
#pragma once
#include "scalar.h"
#include "transcendental.h"

typedef float cp_f32x16 __attribute__((vector_size(64)));
typedef int32_t cp_i32x16 __attribute__((vector_size(64)));

CP_INLINE bool cp_any_lane(cp_i32x16 a) {
  int32_t any = 0;
  for (int k = 0; k < 16; k++) any |= a[k];
  return any != 0;
}
CP_INLINE bool cp_same_bits(cp_f32x16 a, cp_f32x16 b) { return !cp_any_lane((cp_i32x16)a ^ (cp_i32x16)b); }

#define cp_likely(x) __builtin_expect(!!(x), 1)
#define cp_compare_exchange(where, old, next) \
  __atomic_compare_exchange(where, old, next, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)

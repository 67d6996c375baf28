/* What every generated kernel may use; kernels with dots include dot.h, dot_bf16.h or dot_i8.h too (vector intrinsics are
 * slow to parse). */
#pragma once
#include "scalar.h"
#include "transcendental.h"

typedef float cp_f32x16 __attribute__((vector_size(64)));
typedef uint32_t cp_u32x16 __attribute__((vector_size(64)));

CP_INLINE bool cp_same_bits(cp_f32x16 a, cp_f32x16 b) {
  cp_u32x16 differ = (cp_u32x16)a ^ (cp_u32x16)b;
  uint32_t any = 0;
  for (int k = 0; k < 16; k++) any |= differ[k];
  return any == 0;
}

#define cp_likely(x) __builtin_expect(!!(x), 1)
#define cp_compare_exchange(where, old, next) \
  __atomic_compare_exchange(where, old, next, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)

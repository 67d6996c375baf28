/* Everything a generated kernel may use. */
#pragma once
#include "dot.h"
#include "dot_bf16.h"
#include "scalar.h"
#include "transcendental.h"

#define cp_likely(x) __builtin_expect(!!(x), 1)
#define cp_compare_exchange(where, old, next) \
  __atomic_compare_exchange(where, old, next, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)

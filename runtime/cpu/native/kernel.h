/* Everything a generated kernel may use. */
#pragma once
#include "dot.h"
#include "dot_bf16.h"
#include "scalar.h"
#include "transcendental.h"

#define cp_likely(x) __builtin_expect(!!(x), 1)

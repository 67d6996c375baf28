"""exp, exp2 and rounding to bf16 of whole arrays (native/arrays.h): bits of the scalar functions, and their error."""

from __future__ import annotations

import ctypes
import functools

import numpy as np
import pytest
from test_dot_native import ISA_LEVELS, supported

from runtime.cpu import pool, toolchain

SOURCE = """
#include "arrays.h"
void exp_array(float *x, int n) { cp_exp_f32_array(x, x, 0.0f, n); }
void exp2_array(float *x, int n) { cp_exp2_f32_array(x, x, 0.0f, n); }
#define ONE_BY_ONE(NAME, FUNCTION) \\
  __attribute__((optimize("no-tree-vectorize"))) void NAME(float *x, int n) { \\
    for (int i = 0; i < n; i++) x[i] = FUNCTION(x[i]); \\
  }
ONE_BY_ONE(exp_scalar, cp_exp_f32)
ONE_BY_ONE(exp2_scalar, cp_exp2_f32)
#define OF_ROWS(NAME, FUNCTION) \\
  void NAME(float *y, const float *x, float scale, const float *shift, int rows, int columns) { \\
    FUNCTION(y, x, scale, shift, rows, columns); \\
  }
OF_ROWS(exp_rows, cp_exp_f32_rows)
OF_ROWS(exp2_rows, cp_exp2_f32_rows)
void bf16_array(uint16_t *y, const float *x, int n) { cp_f32_bf16_array(y, x, n); }
__attribute__((optimize("no-tree-vectorize"))) void bf16_scalar(uint16_t *y, const float *x, int n) {
  for (int i = 0; i < n; i++) y[i] = cp_f32_bf16(x[i]);
}
"""
#: Largest error in units of the last place, of results that are not denormal.
BOUND = 1.0


@functools.cache
def native(isa: str) -> ctypes.CDLL:
    patch = pytest.MonkeyPatch()
    patch.setenv("STEPFORGE_CPU_ISA", isa)
    library = pool.load_object("arrays", toolchain.build_kernel(SOURCE, "arrays"))
    patch.undo()
    return library


def samples() -> np.ndarray:
    """Every 1024th float, denser where results are finite, and the places where something changes."""
    patterns = np.arange(0, 1 << 32, 1024, dtype=np.uint32).view(np.float32)
    dense = np.linspace(-152, 130, 1 << 20, dtype=np.float32)
    named = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        88.72283,
        88.72284,
        89.0,
        -87.33655,
        -103.97208,
        -104.0,
        -150.0,
        -149.5,
        128.0,
        127.99999,
    ]
    named += [np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3.4e38, -3.4e38]
    return np.concatenate([np.array(named, np.float32), dense, patterns])


def evaluate(isa: str, name: str, x: np.ndarray) -> np.ndarray:
    out = x.copy()
    getattr(native(isa), name)(ctypes.c_void_p(out.ctypes.data), len(out))
    return out


@pytest.mark.parametrize("function", ["exp", "exp2"])
@pytest.mark.parametrize("isa", ISA_LEVELS)
def test_same_bits_as_scalar_code(isa: str, function: str) -> None:
    if not supported(isa):
        pytest.skip(f"this processor has no {isa}")
    x = samples()
    whole, single = evaluate(isa, f"{function}_array", x), evaluate("baseline", f"{function}_scalar", x)
    numbers = ~np.isnan(x)
    assert (whole[numbers].view(np.uint32) == single[numbers].view(np.uint32)).all()
    assert np.isnan(whole[~numbers]).all()
    for count in range(200):  # remainders of the vector loops
        tail = np.linspace(-3, 3, 200, dtype=np.float32)
        expected = tail.copy()
        expected[:count] = evaluate("baseline", f"{function}_scalar", tail[:count])
        getattr(native(isa), f"{function}_array")(ctypes.c_void_p(tail.ctypes.data), count)
        assert (tail.view(np.uint32) == expected.view(np.uint32)).all()


@pytest.mark.parametrize("columns", [64, 128, 192])
@pytest.mark.parametrize("rows", [1, 2, 3, 8])
@pytest.mark.parametrize("function", ["exp", "exp2"])
@pytest.mark.parametrize("isa", ISA_LEVELS)
def test_rows_are_scaled_and_shifted(isa: str, function: str, rows: int, columns: int) -> None:
    """Both round: the product is not fused with the difference."""
    if not supported(isa):
        pytest.skip(f"this processor has no {isa}")
    rng = np.random.default_rng(rows * columns)
    x = rng.standard_normal((rows, columns)).astype(np.float32) * 30
    x[0, :3] = np.inf, -np.inf, np.nan
    scale, shift = np.float32(0.3), rng.standard_normal(rows).astype(np.float32) * 30
    expected = evaluate("baseline", f"{function}_scalar", (x * scale - shift[:, None]).reshape(-1)).reshape(x.shape)
    for out in (np.empty_like(x), x):
        addresses = [ctypes.c_void_p(a.ctypes.data) for a in (out, x, shift)]
        getattr(native(isa), f"{function}_rows")(*addresses[:2], ctypes.c_float(scale), addresses[2], rows, columns)
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("isa", ISA_LEVELS)
def test_rounding_to_bf16_has_the_bits_of_scalar_code(isa: str) -> None:
    """Ties, denormals, infinities, and NaNs whatever they carry, alone among normal numbers and not."""
    if not supported(isa):
        pytest.skip(f"this processor has no {isa}")
    rng = np.random.default_rng(5)
    ties = (np.arange(1 << 16, dtype=np.uint32) << 16 | 0x8000).view(np.float32)
    x = np.concatenate([samples(), ties, rng.integers(0, 1 << 32, 1 << 16, dtype=np.uint32).view(np.float32)])
    normal = rng.standard_normal(64 * 100).astype(np.float32)
    normal[::64] = [1e-45, np.nan, -1e-39, np.inf] * 25
    for values in (x, normal, normal[:63], normal[:65]):
        got, expected = np.full(len(values) + 1, 7, np.uint16), np.full(len(values) + 1, 7, np.uint16)
        for library, name, out in ((native(isa), "bf16_array", got), (native("baseline"), "bf16_scalar", expected)):
            getattr(library, name)(ctypes.c_void_p(out.ctypes.data), ctypes.c_void_p(values.ctypes.data), len(values))
        assert (got == expected).all()


@pytest.mark.parametrize("function", ["exp", "exp2"])
def test_error(function: str) -> None:
    x = samples()
    x = x[~np.isnan(x)]
    got = evaluate("native", f"{function}_array", x)
    with np.errstate(over="ignore", under="ignore"):
        exact = getattr(np, function)(x.astype(np.longdouble))
        rounded = exact.astype(np.float32)
    normal = np.isfinite(rounded) & (np.abs(rounded) >= 2.0**-126)
    error = np.abs(got[normal].astype(np.longdouble) - exact[normal]) / np.spacing(rounded[normal]).astype(
        np.longdouble
    )
    assert error.max() < BOUND
    tiny = np.isfinite(rounded) & ~normal
    assert (np.abs(got[tiny].astype(np.longdouble) - exact[tiny]) <= 2.0**-149).all()
    assert (got[np.isinf(rounded)] == rounded[np.isinf(rounded)]).all()

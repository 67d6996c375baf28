"""sin, cos and erf of f32 (native/trigonometric.h, transcendental.h): error, special values, one set of bits."""

from __future__ import annotations

import ctypes
import functools
import math
import re
from fractions import Fraction

import numpy as np
import pytest
import torch
from test_dot_native import ISA_LEVELS, supported

from runtime.cpu import pool, toolchain

SOURCE = """
#include "transcendental.h"
#define EACH(NAME, FUNCTION) \\
  void NAME(float *x, int n) { \\
    for (int i = 0; i < n; i++) x[i] = FUNCTION(x[i]); \\
  } \\
  __attribute__((optimize("no-tree-vectorize"))) void NAME##_scalar(float *x, int n) { \\
    for (int i = 0; i < n; i++) x[i] = FUNCTION(x[i]); \\
  }
EACH(sine, cp_sin_f32)
EACH(cosine, cp_cos_f32)
EACH(error_function, cp_erf_f32)
"""
#: Largest error in units of the last place of the rounded result; of denormal results: of the smallest normal one.
BOUNDS = {"sine": 0.501, "cosine": 0.501, "error_function": 1.0}
EXACT = {
    "sine": lambda x: np.sin(x.astype(np.longdouble)),
    "cosine": lambda x: np.cos(x.astype(np.longdouble)),
    "error_function": lambda x: torch.erf(torch.from_numpy(x.astype(np.float64))).numpy(),
}
#: The f32 nearest to a multiple of pi/2, relatively: J.-M. Muller, Elementary Functions, table 11.1.
WORST = 16367173 * 2.0**72


@functools.cache
def native(isa: str) -> ctypes.CDLL:
    patch = pytest.MonkeyPatch()
    patch.setenv("STEPFORGE_CPU_ISA", isa)
    library = pool.load_object("trigonometric", toolchain.build_kernel(SOURCE, "trigonometric"))
    patch.undo()
    return library


def evaluate(isa: str, name: str, x: np.ndarray) -> np.ndarray:
    out = np.array(x, np.float32)
    getattr(native(isa), name)(ctypes.c_void_p(out.ctypes.data), len(out))
    return out


@functools.cache
def samples() -> np.ndarray:
    """Every 1021st finite f32, some thousand times pi/4, neighbours of powers of two, denormals."""
    patterns = np.arange(0, 1 << 32, 1021, dtype=np.uint64).astype(np.uint32).view(np.float32)
    octants = (np.arange(-5000, 5000) * (math.pi / 4)).astype(np.float32)
    powers = np.ldexp(np.float32(1), np.arange(-149, 128)).astype(np.float32)
    near = [np.nextafter(powers, np.float32(direction)) for direction in (0, np.inf)]
    x = np.concatenate([patterns, octants, powers, *near, np.linspace(-5, 5, 1 << 18, dtype=np.float32)])
    return x[np.isfinite(x)]


@pytest.mark.parametrize("name", BOUNDS)
def test_error(name: str) -> None:
    x = samples()
    got, exact = evaluate("native", name, x), EXACT[name](x)
    spacing = np.spacing(np.maximum(np.abs(exact), 2.0**-126).astype(np.float32)).astype(np.longdouble)
    error = np.abs(got.astype(np.longdouble) - exact) / spacing
    assert error.max() < BOUNDS[name], x[error.argmax()]


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("isa", ISA_LEVELS)
def test_vector_and_scalar_code_have_the_same_bits(isa: str, name: str) -> None:
    if not supported(isa):
        pytest.skip(f"this processor has no {isa}")
    x = np.concatenate([samples()[::3], np.array([np.inf, -np.inf, np.nan], np.float32)])
    vector, single = evaluate(isa, name, x), evaluate("baseline", f"{name}_scalar", x)
    numbers = ~np.isnan(single)
    assert (np.isnan(vector) == ~numbers).all()
    assert (vector[numbers].view(np.uint32) == single[numbers].view(np.uint32)).all()


def test_special_values() -> None:
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1.17549435e-38], np.float32)
    sine, cosine, erf = (evaluate("native", name, x) for name in BOUNDS)
    assert np.isnan(sine[2:5]).all()
    assert np.isnan(cosine[2:5]).all()
    assert (sine[[0, 1, 5, 6, 7]].view(np.uint32) == x[[0, 1, 5, 6, 7]].view(np.uint32)).all()
    assert (cosine[[0, 1, 5, 6, 7]] == 1).all()
    assert np.isnan(erf[4])
    assert (erf[2:4] == [1, -1]).all()
    assert (erf[:2].view(np.uint32) == x[:2].view(np.uint32)).all()
    assert (erf[5:7] == x[5:7]).all()  # 1.128 of the smallest denormal rounds to it


@pytest.mark.parametrize(("name", "odd"), [("sine", True), ("cosine", False), ("error_function", True)])
def test_symmetry(name: str, odd: bool) -> None:
    x = samples()
    right, left = evaluate("native", name, x), evaluate("native", name, -x)
    assert (left.view(np.uint32) == (-right if odd else right).view(np.uint32)).all()


def test_error_function_is_one_from_four_on() -> None:
    x = np.array([4.0, 4.5, 10.0, 1e10, 1e30, 3.4e38], np.float32)
    assert (evaluate("native", "error_function", x) == 1).all()


# ---- large arguments


@functools.cache
def pi() -> Fraction:
    """To 380 bits: Machin's formula."""
    one = 1 << 400

    def arctan(inverse: int) -> int:
        term, total, n, sign = one // inverse, 0, 1, 1
        while term:
            total += sign * (term // n)
            term, n, sign = term // inverse**2, n + 2, -sign
        return total

    return Fraction(4 * (4 * arctan(5) - arctan(239)), one)


def test_the_argument_nearest_to_a_multiple_of_half_pi() -> None:
    """Its sine or cosine is about 1e-9: all bits come from the far end of 2/pi."""
    quarter = pi() / 2
    count = round(Fraction(WORST) / quarter)
    rest = float(Fraction(WORST) - count * quarter)
    assert abs(rest) < 1e-8
    sine, cosine = (evaluate("native", name, np.array([WORST], np.float32))[0] for name in ("sine", "cosine"))
    small, exact = [(sine, rest), (cosine, -rest), (sine, -rest), (cosine, rest)][count % 4]
    assert abs(float(small) - exact) < 0.501 * float(np.spacing(np.float32(abs(exact))))


def test_the_table_of_turned_powers_of_two() -> None:
    text = (toolchain.NATIVE / "trigonometric.h").read_text()
    columns = []
    for part in ("high", "low"):
        body = re.search(rf"cp_turned_{part}\[105\] = {{(.*?)}};", text, re.DOTALL)
        assert body
        numbers = re.findall(r"-?0x[0-9a-f.]+p[+-]\d+", body.group(1))
        columns.append([float.fromhex(number) for number in numbers])
        assert body.group(1).rstrip(", \n").endswith('__builtin_nan("")')
    assert [len(column) for column in columns] == [104, 104]
    assert (columns[0][0], columns[1][0]) == (1.0, 0.0)
    for k in range(2, 105):
        rest = Fraction(2) ** k % (2 * pi())
        rest -= 2 * pi() if rest > pi() else 0
        high = Fraction(round(rest * 2**26), 2**26)
        assert columns[0][k - 1] == float(high / 2**k)
        assert columns[1][k - 1] == float(rest - high) / 2.0**k

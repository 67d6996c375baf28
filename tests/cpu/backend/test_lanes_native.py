"""Combining the lanes of a reduction: on every instruction set the bits of lane j with j + step, for halving steps."""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from test_dot_native import ISA_LEVELS, supported

from runtime.cpu import pool, toolchain

NAMES = ("add", "maxnum", "minnum", "maximum", "minimum")
SOURCE = '#include "lanes.h"\n' + "\n".join(
    f"float {name}_{lanes}(const float *x) {{ return cp_halve_{name}_f32(x, {lanes}); }}\n"
    f"float {name}(float a, float b) {{ return cp_{name}_f32(a, b); }}"
    if lanes == 16
    else f"float {name}_{lanes}(const float *x) {{ return cp_halve_{name}_f32(x, {lanes}); }}"
    for name in NAMES
    for lanes in (16, 32, 64)
)
SPECIAL = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, -1e-45, 1.0], np.float32)


@functools.cache
def native(isa: str) -> ctypes.CDLL:
    patch = pytest.MonkeyPatch()
    patch.setenv("STEPFORGE_CPU_ISA", isa)
    library = pool.load_object("lanes", toolchain.build_kernel(SOURCE, "lanes"))
    patch.undo()
    return library


def halved(x: np.ndarray, combine: Callable[[float, float], float]) -> np.float32:
    lanes = list(x)
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = [np.float32(combine(a, b)) for a, b in zip(lanes[:half], lanes[half:], strict=True)]
    return lanes[0]


@pytest.mark.parametrize("lanes", [16, 32, 64])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("isa", ISA_LEVELS)
def test_bits_are_those_of_halving(isa: str, name: str, lanes: int) -> None:
    if not supported(isa):
        pytest.skip(f"this processor has no {isa}")
    function, one = getattr(native(isa), f"{name}_{lanes}"), getattr(native(isa), name)
    function.restype = one.restype = ctypes.c_float
    one.argtypes = [ctypes.c_float, ctypes.c_float]
    draw = np.random.default_rng(lanes)
    for trial in range(200):
        x = draw.standard_normal(lanes, np.float32)
        x = np.where(draw.random(lanes) < trial % 5 / 4, draw.choice(SPECIAL, lanes), x).astype(np.float32)
        got, expected = np.float32(function(x.ctypes.data_as(ctypes.c_void_p))), halved(x, one)
        assert (np.isnan(got) and np.isnan(expected)) or got.tobytes() == expected.tobytes(), x


@triton.jit
def rescaled(x, shift, out, M: tl.constexpr, N: tl.constexpr):
    """A factor per row, costly and used twice."""
    o_m, o_n = tl.arange(0, M), tl.arange(0, N)
    factor = tl.exp(tl.load(shift + o_m))
    b_x = tl.load(x + o_m[:, None] * N + o_n[None, :])
    total = tl.sum(b_x - factor[:, None], axis=1)
    tl.store(out + o_m[:, None] * N + o_n[None, :], b_x * factor[:, None] + total[:, None])


def test_what_is_repeated_along_rows_is_computed_once_a_row() -> None:
    x, shift = torch.randn(8, 64), torch.randn(8)
    out = torch.empty_like(x)
    kernel = rescaled[(1,)](x, shift, out, M=8, N=64)
    factor = shift.exp()[:, None]
    torch.testing.assert_close(out, x * factor + (x - factor).sum(1, keepdim=True))
    source = kernel.asm["c"]
    assert source.count("cp_exp_f32") == 1, source
    assert re.search(r"float factor_\d+\[8\]", source), source
    assert not re.search(r"float factor_\d+\[512\]", source), "stored once per element"

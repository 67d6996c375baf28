"""The bf16 micro-kernel itself, on every instruction set, against the scalar oracle: shapes, denormals, infinities."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from dot_oracle import dot, same_bits
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.cpu import pool, toolchain

SOURCE = """
#include "dot_bf16.h"
#define RUN(NAME, START) \
  void NAME(int M, int N, int K, int lda, const uint16_t *A, const uint16_t *P, long ldp, float *C, int ldc, \
            const float *scale) { \
    cp_dot_panel(M, N, (K + 1) / 2, A, lda, P, ldp, C, ldc, START, scale, 0); \
  }
RUN(run_from_c, CP_FROM_C)
RUN(run_from_zero, CP_FROM_ZERO)
RUN(run_from_scaled, CP_FROM_SCALED)
void pack(int K, int N, int NP, const uint16_t *B, uint16_t *P) { cp_pack_panel(K, N, NP, B, P); }
void pack_transposed(int K, int N, int NP, const uint16_t *B, uint16_t *P) { cp_pack_panel_transposed(K, N, NP, B, P); }
const char *path(void) { return CP_DOT_BF16_PATH; }
"""
STARTS = {
    "c": lambda c, scale: c,
    "zero": lambda c, scale: torch.zeros_like(c),
    "scaled": lambda c, scale: c * scale[:, None],
}
ISA_LEVELS = ["native", "avx512", "avx2", "baseline"]


def supported(isa: str) -> bool:
    flags = Path("/proc/cpuinfo").read_text()
    needs = {"avx512": " avx512f", "avx2": " avx2"}.get(isa, "")
    return needs in flags


@functools.cache
def native(isa: str) -> ctypes.CDLL:
    patch = pytest.MonkeyPatch()
    patch.setenv("STEPFORGE_CPU_ISA", isa)
    library = pool.load_object("dot", toolchain.build_kernel(SOURCE, "dot"))
    patch.undo()
    library.path.restype = ctypes.c_char_p
    return library


def run(
    library: ctypes.CDLL,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    transposed: bool = False,
    start: str = "c",
    scale: torch.Tensor | None = None,
) -> torch.Tensor:
    at = ctypes.c_void_p
    (rows, depth), columns = a.shape, b.shape[1]
    pairs, padded = (depth + 1) // 2, -(-columns // 16) * 16
    left = torch.zeros(rows, 2 * pairs, dtype=torch.bfloat16)
    left[:, :depth] = a
    panel = torch.empty(pairs * padded * 2, dtype=torch.bfloat16)
    out = torch.zeros(rows, padded)
    out[:, :columns] = torch.full_like(c, torch.nan) if start == "zero" else c
    factors = None if scale is None else at(scale.data_ptr())
    source = b.t().contiguous() if transposed else b.contiguous()
    pack = library.pack_transposed if transposed else library.pack
    pack(depth, columns, padded, at(source.data_ptr()), at(panel.data_ptr()))
    where = at(left.data_ptr()), at(panel.data_ptr())
    function = getattr(library, f"run_from_{start}")
    function(rows, padded, depth, 2 * pairs, *where, ctypes.c_long(2 * padded), at(out.data_ptr()), padded, factors)
    return out[:, :columns].contiguous()


def numbers(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> torch.Tensor:
    """f32 numbers that are exact in bf16."""
    if kind == "normal":
        return torch.from_numpy(rng.standard_normal(shape).astype(np.float32)).bfloat16().float()
    exponents = {"tiny": (0, 70), "any": (0, 256), "near": (120, 134)}[kind]
    bits = rng.integers(0, 128, shape) | rng.integers(*exponents, shape) << 7 | rng.integers(0, 2, shape) << 15
    return torch.from_numpy((bits << 16).astype(np.uint32).view(np.float32))


@pytest.mark.parametrize("isa", ISA_LEVELS)
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    rows=st.integers(1, 40),
    columns=st.sampled_from([1, 2, 4, 8, 15, 16, 17, 32, 48, 64, 80, 128]),
    depth=st.integers(1, 70),
    kinds=st.tuples(*[st.sampled_from(["normal", "tiny", "any", "near"])] * 3),
    transposed=st.booleans(),
    start=st.sampled_from(sorted(STARTS)),
    seed=st.integers(0, 2**32 - 1),
)
def test_equals_the_scalar_oracle(isa, rows, columns, depth, kinds, transposed, start, seed) -> None:
    """Whatever accumulators start from: scaling rounds once, and flushes nothing before the dot does."""
    if not supported(isa):
        pytest.skip(f"no {isa} here")
    rng = np.random.default_rng(seed)
    shapes = (rows, depth), (depth, columns), (rows, columns)
    a, b, c = (numbers(rng, shape, kind) for shape, kind in zip(shapes, kinds, strict=True))
    a, b = a.bfloat16(), b.bfloat16()
    scale = torch.from_numpy(rng.standard_normal(rows).astype(np.float32)) * 2.0 ** int(rng.integers(-20, 40))
    got = run(native(isa), a, b, c, transposed, start, scale)
    assert same_bits(got, dot(a, b, STARTS[start](c, scale)))


def test_paths_differ_by_instruction_set() -> None:
    paths = {native(isa).path().decode() for isa in ISA_LEVELS if supported(isa)}
    assert "portable" in paths
    assert len(paths) >= 2


@pytest.mark.parametrize("isa", ISA_LEVELS)
def test_a_row_does_not_depend_on_the_number_of_rows(isa: str) -> None:
    if not supported(isa):
        pytest.skip(f"no {isa} here")
    rng = np.random.default_rng(7)
    a, b = numbers(rng, (256, 96), "normal").bfloat16(), numbers(rng, (96, 64), "normal").bfloat16()
    full = run(native(isa), a, b, torch.zeros(256, 64))
    for rows in (1, 2, 3, 4, 5, 7, 8, 12, 63, 255):
        assert same_bits(run(native(isa), a[:rows], b, torch.zeros(rows, 64)), full[:rows])

"""The int8 micro-kernel itself, on every instruction set: exact sums modulo 2^32, the largest values too."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.cpu import pool, toolchain

SOURCE = """
#include "dot_i8.h"
void run(int M, int N, int K, int lda, const int8_t *A, const int8_t *P, long ldp, int32_t *C, int ldc) {
  cp_dot_quads(M, N, (K + 3) / 4, A, lda, P, ldp, C, ldc, CP_FROM_C, 0);
}
void fields(int M, int N, int K, int lda, const int8_t *A, const int8_t *P, long ldp, int32_t *C, int ldc, int shift,
            int mask, int bias, int zero, int ahead) {
  const cp_fields f = {shift, mask, bias};
  cp_dot_fields(M, N, (K + 3) / 4, A, lda, P, ldp, C, ldc, zero ? CP_FROM_ZERO : CP_FROM_C, f, ahead);
}
void pack(int K, int N, int NP, const int8_t *B, int8_t *P) { cp_pack_quads(K, N, NP, B, P); }
void pack_transposed(int K, int N, int NP, const int8_t *B, int8_t *P) { cp_pack_quads_transposed(K, N, NP, B, P); }
const char *path(void) { return CP_DOT_I8_PATH; }
"""
# path -> STEPFORGE_CPU_ISA, further flags, and what the processor must have
PATHS = {
    "avx512_vnni": ("native", "", "avx512_vnni"),
    "avx_vnni": ("avx2", "-mavxvnni", "avx_vnni"),
    "avx2": ("avx2", "", "avx2"),
    "portable": ("baseline", "", "fpu"),
}


@functools.cache
def native(path: str) -> ctypes.CDLL:
    isa, flags, needed = PATHS[path]
    if f" {needed} " not in Path("/proc/cpuinfo").read_text().replace("\n", " "):
        pytest.skip(f"no {needed} here")
    patch = pytest.MonkeyPatch()
    patch.setenv("STEPFORGE_CPU_ISA", isa)
    patch.setenv("STEPFORGE_CPU_CFLAGS", flags)
    library = pool.load_object("dot_i8", toolchain.build_kernel(SOURCE, "dot_i8"))
    patch.undo()
    library.path.restype = ctypes.c_char_p
    return library


def run(library: ctypes.CDLL, a: np.ndarray, b: np.ndarray, c: np.ndarray, transposed: bool = False) -> np.ndarray:
    (rows, depth), columns = a.shape, b.shape[1]
    quads, padded = -(-depth // 4), -(-columns // 16) * 16
    left, panel = np.zeros((rows, 4 * quads), np.int8), np.full(4 * quads * padded, 77, np.int8)
    left[:, :depth] = a
    out = np.zeros((rows, padded), np.int32)
    out[:, :columns] = c
    source = np.ascontiguousarray(b.T if transposed else b)
    at = ctypes.c_void_p
    pack = library.pack_transposed if transposed else library.pack
    pack(depth, columns, padded, at(source.ctypes.data), at(panel.ctypes.data))
    where = at(left.ctypes.data), at(panel.ctypes.data)
    library.run(rows, padded, depth, 4 * quads, *where, ctypes.c_long(4 * padded), at(out.ctypes.data), padded)
    assert not out[:, columns:].any()  # padding multiplies by zero
    return out[:, :columns]


def oracle(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    return (a.astype(np.int64) @ b.astype(np.int64) + c).astype(np.uint64).astype(np.uint32).astype(np.int32)


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    rows=st.integers(1, 20),
    columns=st.sampled_from([1, 2, 8, 15, 16, 17, 32, 48, 64, 80, 128]),
    depth=st.integers(1, 140),
    extreme=st.booleans(),
    transposed=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_sums_are_exact(path, rows, columns, depth, extreme, transposed, seed) -> None:
    rng = np.random.default_rng(seed)
    draw = (lambda shape: rng.choice([-128, -127, 127], shape)) if extreme else (lambda s: rng.integers(-128, 128, s))
    a, b = (draw(shape).astype(np.int8) for shape in ((rows, depth), (depth, columns)))
    c = rng.integers(-(2**31), 2**31, (rows, columns)).astype(np.int32)
    assert np.array_equal(run(native(path), a, b, c, transposed), oracle(a, b, c))


@st.composite
def fields(draw) -> tuple[int, int, int]:
    """Shift, mask and bias that leave int8."""
    shift = draw(st.integers(0, 7))
    mask = draw(st.integers(1, 255 >> shift))
    return shift, mask, draw(st.integers(max(0, mask - 127), 128))


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    rows=st.integers(1, 20),
    columns=st.sampled_from([16, 32, 48, 64, 128]),
    quads=st.integers(1, 35),
    part=fields(),
    zero=st.booleans(),
    extreme=st.booleans(),
    ahead=st.sampled_from([0, 2048]),
    seed=st.integers(0, 2**32 - 1),
)
def test_fields_of_bytes_are_multiplied_exactly(path, rows, columns, quads, part, zero, extreme, ahead, seed) -> None:
    rng, (shift, mask, bias) = np.random.default_rng(seed), part
    a = rng.choice([-128, 127], (rows, 4 * quads)) if extreme else rng.integers(-128, 128, (rows, 4 * quads))
    panel = rng.integers(0, 256, (quads, columns, 4)).astype(np.uint8)
    c = rng.integers(-(2**31), 2**31, (rows, columns)).astype(np.int32)
    b = (panel.astype(np.int64) >> shift & mask) - bias
    b = b.transpose(0, 2, 1).reshape(4 * quads, columns)
    left, out, at = a.astype(np.int8), c.copy(), ctypes.c_void_p
    where = at(left.ctypes.data), at(panel.ctypes.data), ctypes.c_long(4 * columns), at(out.ctypes.data), columns
    native(path).fields(rows, columns, 4 * quads, 4 * quads, *where, *part, int(zero), ahead)
    assert np.array_equal(out, oracle(a, b, np.zeros_like(c) if zero else c))


@pytest.mark.parametrize("path", PATHS)
def test_each_path_is_the_one_that_is_meant(path: str) -> None:
    assert native(path).path().decode() == path

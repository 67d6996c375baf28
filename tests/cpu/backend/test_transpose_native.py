"""Transposing words on every instruction set: all sizes around the blocks, sources without alignment."""

from __future__ import annotations

import ctypes
import functools

import numpy as np
import pytest
from test_dot_native import ISA_LEVELS, supported

from runtime.cpu import pool, toolchain

SOURCE = """
#include "transpose.h"
void run(int rows, int columns, const void *source, long from, void *target, long to) {
  cp_transpose_words(rows, columns, source, from, target, to);
}
"""


@functools.cache
def native(isa: str) -> ctypes.CDLL:
    patch = pytest.MonkeyPatch()
    patch.setenv("STEPFORGE_CPU_ISA", isa)
    library = pool.load_object("transpose", toolchain.build_kernel(SOURCE, "transpose"))
    patch.undo()
    return library


@pytest.mark.parametrize("isa", ISA_LEVELS)
@pytest.mark.parametrize("rows", [1, 7, 8, 9, 15, 16, 17, 33, 64])
def test_every_size(isa: str, rows: int) -> None:
    if not supported(isa):
        pytest.skip(f"this processor has no {isa}")
    for columns in (1, 3, 8, 15, 16, 17, 31, 32, 40):
        for shift in (0, 2):  # bf16 rows of odd length start between words
            raw = np.random.default_rng(rows * columns).integers(0, 256, rows * (4 * columns + 6) + 8, dtype=np.uint8)
            pitch, to = 4 * columns + 6, rows + 3
            target = np.full((columns, to), 0xABCDEF01, dtype=np.uint32)
            run = native(isa).run
            at = ctypes.c_void_p
            run(
                rows,
                columns,
                at(raw.ctypes.data + shift),
                ctypes.c_long(pitch),
                at(target.ctypes.data),
                ctypes.c_long(to),
            )
            source = np.stack(
                [raw[shift + r * pitch : shift + r * pitch + 4 * columns].view(np.uint32) for r in range(rows)]
            )
            assert (target[:, :rows] == source.T).all()
            assert (target[:, rows:] == 0xABCDEF01).all(), "wrote beyond a column"

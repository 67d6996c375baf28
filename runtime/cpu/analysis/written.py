"""Rows that are written right after a reduction: the lines they are written to can be fetched while it runs.

A reduction computes, or waits for what it reads; the store that follows waits for every line before it can write it.
"""

from __future__ import annotations

from ..ttir.ir import BITS, Op
from .affine import Strides

#: Bytes of a row that is worth it: beside what is read, the nearest cache has no room for more.
LONG_RESULT = 16384


def find_written_rows(ops: list[Op], strides: Strides) -> dict[Op, list[Op]]:
    """Maps a reduction of one row to the stores of rows of its length that follow it, with nothing but scalars and
    elementwise operations between."""
    found: dict[Op, list[Op]] = {}
    for store in ops:
        if store.name == "tt.store" and _is_long_row(store, strides):
            reduction = _reduction_before(store)
            if reduction is not None:
                found.setdefault(reduction, []).append(store)
    return found


def _is_long_row(store: Op, strides: Strides) -> bool:
    pointers, value = store.operands[:2]
    if not pointers.type.is_tensor or len(pointers.type.dims) != 1 or strides.of(pointers, 0) != 1:
        return False
    return value.type.numel * BITS[value.type.elem] // 8 >= LONG_RESULT


def _reduction_before(store: Op) -> Op | None:
    for op in reversed(store.block.ops[: store.position]):
        if op.name == "tt.reduce":
            return op if op.operands[0].type.dims == store.operands[0].type.dims else None
        if op.name != "tt.store" and (op.regions or not op.results or op.name in ("tt.atomic_rmw", "tt.atomic_cas")):
            return None
    return None

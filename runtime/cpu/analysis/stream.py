"""Loads that stream: long rows, or several rows read piece by piece in a loop.

The processor's own prefetching stops at page borders and follows few rows at once, so such a load fetches ahead itself.
"""

from __future__ import annotations

from ..ttir.ir import BITS, Op, Value
from .affine import Strides

#: A row of a page or more is fetched this far ahead while it is read; it runs over into the next row, mostly.
LONG_ROW, LONG_AHEAD = 4096, 2048
#: Pieces of rows: bytes of all rows together that are on their way, and the largest distance in one row. What is
#: fetched beyond the end of a row is lost.
BYTES_AHEAD, FARTHEST_BYTES = 4096, 1024
SHORTEST_PIECE, LONGEST_PIECE = 64, 2048


def find_streams(ops: list[Op], strides: Strides) -> dict[Op, int]:
    """Maps a load that should fetch ahead to the distance in bytes."""
    found = {op: _distance(op, strides) for op in ops if op.name == "tt.load" and op.result.type.is_tensor}
    return {op: distance for op, distance in found.items() if distance}


def _distance(load: Op, strides: Strides) -> int:
    type_, pointers = load.result.type, load.operands[0]
    if type_.is_pointer or strides.of(pointers, len(type_.dims) - 1) != 1:
        return 0
    row = type_.dims[-1] * BITS[type_.elem] // 8
    if row >= LONG_ROW:
        return LONG_AHEAD
    if len(type_.dims) == 2 and SHORTEST_PIECE <= row <= LONGEST_PIECE and _walks(load):
        return max(row, min(BYTES_AHEAD // type_.dims[0], FARTHEST_BYTES))
    return 0


def _walks(load: Op) -> bool:
    loop = load.block.parent
    return loop is not None and loop.name == "scf.for" and _depends_on(load.operands[0], set(load.block.args), set())


def _depends_on(value: Value, loop_values: set[Value], seen: set[Value]) -> bool:
    """Is `value` computed from one of `loop_values`?"""
    if value in loop_values:
        return True
    if value in seen or value.op is None or value.op.regions:
        return False
    seen.add(value)
    return any(_depends_on(operand, loop_values, seen) for operand in value.op.operands)

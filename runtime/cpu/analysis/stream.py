"""Loads that stream: long rows, or rows read piece by piece in a loop.

The processor's own prefetching stops at page borders and follows few rows at once, so such a load fetches ahead itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ..ttir.ir import BITS, Op, Value
from .affine import Strides
from .growth import Growth, rounds
from .induction import Induction

#: A row of a page or more is fetched this far ahead while it is read; it runs over into the next rows, mostly.
LONG_ROW, LONG_AHEAD = 4096, 8192
#: Pieces of rows: bytes of all rows together that are on their way, and the largest distance in one row. What is
#: fetched beyond the end of a row is lost.
BYTES_AHEAD, FARTHEST_BYTES = 4096, 1024
SHORTEST_PIECE, LONGEST_PIECE = 64, 2048


@dataclass(frozen=True)
class Ahead:
    """Distance in bytes from what is read to what is fetched: `bytes`, and so many more per round of `loop` and per row
    of the tensor."""

    bytes: int
    loop: Op | None = None
    per_round: int = 0
    per_row: int = 0


def find_streams(
    ops: list[Op], strides: Strides, inductions: Mapping[Value, Induction], row_loops: Collection[Op] = ()
) -> dict[Op, Ahead]:
    """Maps a load that should fetch ahead to the distance. `row_loops` take one row after another (row_loops.py)."""
    found = {}
    for op in ops:
        if op.name == "tt.load" and op.result.type.is_tensor:
            by_rows = op.block.parent in row_loops and len(op.result.type.dims) == 2
            found[op] = Ahead(LONG_AHEAD) if by_rows else _ahead(op, strides, inductions)
    return {op: ahead for op, ahead in found.items() if ahead is not None}


def _ahead(load: Op, strides: Strides, inductions: Mapping[Value, Induction]) -> Ahead | None:
    type_, pointers = load.result.type, load.operands[0]
    if type_.is_pointer or strides.of(pointers, len(type_.dims) - 1) != 1:
        return None
    row = type_.dims[-1] * BITS[type_.elem] // 8
    if row >= LONG_ROW or _is_long_block(load, strides):
        return Ahead(LONG_AHEAD)
    if len(type_.dims) == 2 and SHORTEST_PIECE <= row <= LONGEST_PIECE and _walks(load):
        nearest = Ahead(max(row, min(BYTES_AHEAD // type_.dims[0], FARTHEST_BYTES)))
        return _next_block(load, strides, inductions) or nearest
    return None


def _is_long_block(load: Op, strides: Strides) -> bool:
    """Rows without a gap that are read once: one long row."""
    type_ = load.result.type
    if len(type_.dims) != 2 or strides.of(load.operands[0], 0) != type_.dims[1] or _walks(load):
        return False
    return type_.numel * BITS[type_.elem] // 8 >= LONG_ROW


def _next_block(load: Op, strides: Strides, inductions: Mapping[Value, Induction]) -> Ahead | None:
    """Rows read piece by piece by all programs together without a gap: a program fetches what the next one reads.

    Piece (round, row) of this program fetches number `round * rows + row` of the next program's block, so memory is
    read in ascending order, though the program jumps from row to row, and nothing is fetched in vain."""
    loop, type_, pointers = load.block.parent, load.result.type, load.operands[0]
    (height, width), size, count = type_.dims, BITS[type_.elem] // 8, rounds(loop)
    if not count:
        return None
    row = count * width
    steps = strides.of(pointers, 0), Growth(inductions, loop).of(pointers), Growth(inductions).of(pointers)
    if height == 1 or steps != (row, width, height * row):
        return None
    return Ahead(height * row * size, loop, width * (height - 1) * size, (width - row) * size)


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

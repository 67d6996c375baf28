"""Loops that walk along the rows of a matrix, piece by piece for several rows at once, and may take row after row.

`acc += w * x` over pieces of 8 rows reads memory in 8 places at once and carries 8 rows of `acc` through every round.
Row by row memory is read in ascending order and one row of `acc` is carried. Every element sees the same operations in
the same order, so the bits are the same.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..ttir.ir import Op, Value, words
from .affine import Strides
from .growth import Growth
from .induction import Induction

#: Operations that evaluate element (row, column) from row `row` of their operands, besides elementwise ones.
_KEEPS_ROWS = words("arith.constant tt.make_range tt.splat tt.broadcast tt.expand_dims tt.load")
_ELEMENTWISE = (
    "arith.",
    "math.",
    "tt.addptr",
    "tt.bitcast",
    "tt.int_to_ptr",
    "tt.ptr_to_int",
    "tt.fp_to_fp",
    "tt.precise_",
)


def find_row_loops(ops: list[Op], strides: Strides, inductions: Mapping[Value, Induction]) -> set[Op]:
    """Loops over pieces of rows that nothing but carried matrices of one shape leaves."""
    return {op for op in ops if op.name == "scf.for" and _by_rows(op, strides, inductions)}


def shape_of_rows(loop: Op, inductions: Mapping[Value, Induction]) -> tuple[int, ...]:
    """The shape of the matrices a loop carries; () if it carries none, or others."""
    shapes = {arg.type.dims for arg in loop.regions[0].args[1:] if arg not in inductions}
    shape = shapes.pop() if len(shapes) == 1 else ()
    return shape if len(shape) == 2 and min(shape) > 1 else ()


def _by_rows(loop: Op, strides: Strides, inductions: Mapping[Value, Induction]) -> bool:
    body, shape = loop.regions[0], shape_of_rows(loop, inductions)
    if not shape or not all(_keeps_rows(op) for op in body.ops[:-1]):
        return False
    matrices = [op for op in body.ops if op.name == "tt.load" and op.result.type.dims == shape]
    growth = Growth(inductions, loop)
    return bool(matrices) and all(
        strides.of(load.operands[0], 1) == 1 and growth.of(load.operands[0]) == shape[1] for load in matrices
    )


def _keeps_rows(op: Op) -> bool:
    if op.regions or len(op.results) != 1 or op.attrs.get("isVolatile") == "true":
        return False
    return op.name in _KEEPS_ROWS or op.name.startswith(_ELEMENTWISE)

"""What a combine function of a reduction does, where it is a single operation."""

from __future__ import annotations

from ..ttir.ir import Op


def sole_operation(op: Op) -> str | None:
    """The one operation that combines elements a and b of a single tensor, if it is applied to just a and b."""
    region = op.regions[0]
    first = region.ops[0]
    sole = len(op.operands) == 1 and len(region.ops) == 2 and list(first.operands) == list(region.args)
    return first.name if sole else None


def sums_floats(op: Op) -> bool:
    """A tt.reduce that adds f32."""
    return sole_operation(op) == "arith.addf" and op.operands[0].type.elem == "f32"

"""The packed-dot pattern: a dot operand that already lies in memory as a k-pair panel.

A bf16 operand b[K, N] written as

    b = tl.reshape(tl.permute(pairs, (0, 2, 1)), (K, N))        # pairs: [K/2, N, 2]

is, element for element, the panel layout of `native/dot_bf16.h`. If `pairs` is an unmasked load whose (N, 2) block is
contiguous (or the reshape of such a load) the kernel reads it where it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ttir.ir import Op, Value
from .affine import RUNTIME, Strides
from .effects import Effects


@dataclass(frozen=True)
class Panel:
    """`pairs`: the tensor in panel order. `load`: the load to read in place, None when pairs must be stored first.
    `row_stride`: elements between k pairs when read in place, RUNTIME when only known at run time."""

    pairs: Value
    load: Op | None
    row_stride: int | str


def match_panel(operand: Value) -> Value | None:
    """The [K/2, N, 2] tensor that lies in panel order, or what that is a reshape of, if `operand` is a view of one."""
    if operand.defining != "tt.reshape" or operand.op.operands[0].defining != "tt.trans":
        return None
    transposed = operand.op.operands[0]
    pairs = transposed.op.operands[0]
    depth, width = operand.type.dims if len(operand.type.dims) == 2 else (0, 0)
    if transposed.op.attrs["order"] != [0, 2, 1] or pairs.type.dims != (depth // 2, width, 2):
        return None
    return pairs.op.operands[0] if pairs.defining == "tt.reshape" else pairs


def find_panels(dots: list[Op], strides: Strides, effects: Effects) -> dict[Op, Panel]:
    """Panels of the right operand of every bf16 dot that has the pattern."""
    found = {}
    for dot in dots:
        right = dot.operands[1]
        pairs = match_panel(right) if right.type.elem == "bf16" else None
        if pairs is not None:
            width = right.type.dims[1]
            stride = _row_stride(pairs, width, strides)
            in_place = stride is not None and not effects.written_between(pairs.op, dot)
            found[dot] = Panel(pairs, pairs.op if in_place else None, stride if in_place else 2 * width)
    return found


def _row_stride(pairs: Value, width: int, strides: Strides) -> int | str | None:
    """Elements between k pairs if `pairs` is a readable panel in memory, else None."""
    if pairs.defining != "tt.load" or len(pairs.op.operands) != 1 or pairs.op.attrs.get("isVolatile") == "true":
        return None
    pointers = pairs.op.operands[0]
    steps = [strides.of(pointers, d) for d in range(len(pointers.type.dims))]
    if len(steps) == 1:
        return 2 * width if steps == [1] else None
    rows_of_pairs = pairs.type.dims[1:] in ((width, 2), (2 * width,)) and steps[1:] in ([2, 1], [1])
    if not rows_of_pairs:
        return None
    return steps[0] if steps[0] == RUNTIME or isinstance(steps[0], int) else None

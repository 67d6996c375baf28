"""The packed-dot pattern: a dot operand that already lies in memory as a panel of groups along k.

An operand b[K, N] written as

    b = tl.reshape(tl.permute(groups, (0, 2, 1)), (K, N))        # groups: [K/G, N, G], G = 2 of bf16, 4 of int8

is, element for element, the panel layout of `native/dot_bf16.h` or `native/dot_i8.h`. If `groups` is an unmasked load
whose (N, G) block is contiguous (or the reshape of such a load) the kernel reads it where it is; if it is `coded_bf16`
of `functions.py`, its words are made from their codes on the way. If `groups` are fields of loaded bytes (`fields.py`),
the bytes are read where they are, and their fields in registers.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ttir.ir import CODED, Op, Value
from .affine import RUNTIME, Strides
from .effects import Effects
from .fields import Fields, fields_of

#: Elements along k that lie together, by their type: 32 bits.
GROUPS = {"bf16": 2, "i8": 4}
#: Panels of fewer columns are copied into wider ones.
COLUMN_MULTIPLE = 16
#: What products of these types are summed in.
SUMS = {"bf16": "f32", "i8": "i32"}


@dataclass(frozen=True)
class Panel:
    """`groups`: the tensor in panel order. `load`: the load to read in place, or the call of coded_bf16 to decode on
    the way; None when groups must be stored first. `row_stride`: elements between k groups when read in place, RUNTIME
    when only known at run time. `fields`: what of the loaded bytes `groups` are, None: they themselves. `fetches`:
    whether this product is the first of its block that reads the load."""

    groups: Value
    load: Op | None
    row_stride: int | str
    fields: Fields | None = None
    fetches: bool = True

    @property
    def source(self) -> Value:
        """The tensor whose elements lie where a product reads them in place."""
        return self.groups if self.load is None else self.load.result


def is_packed(op: Op) -> bool:
    """Is it a product of matrices that runs on panels?"""
    if op.name != "tt.dot" or len(op.operands[0].type.dims) != 2:
        return False
    left, right, _ = op.operands
    return left.type.elem == right.type.elem and SUMS.get(left.type.elem) == op.result.type.elem


def match_panel(operand: Value) -> Value | None:
    """The [K/G, N, G] tensor that lies in panel order, or what that is a reshape of, if `operand` is a view of one."""
    group = GROUPS.get(operand.type.elem)
    if group is None or operand.defining != "tt.reshape" or operand.op.operands[0].defining != "tt.trans":
        return None
    transposed = operand.op.operands[0]
    groups = transposed.op.operands[0]
    depth, width = operand.type.dims if len(operand.type.dims) == 2 else (0, 0)
    if transposed.op.attrs["order"] != [0, 2, 1] or groups.type.dims != (depth // group, width, group):
        return None
    return groups.op.operands[0] if groups.defining == "tt.reshape" else groups


def find_panels(dots: list[Op], strides: Strides, effects: Effects, fields: bool = True) -> dict[Op, Panel]:
    """Panels of the right operand of every bf16 or int8 dot that has the pattern. fields: look for fields of bytes."""
    found: dict[Op, Panel] = {}
    read = set()
    for dot in dots:
        right = dot.operands[1]
        groups = match_panel(right)
        if groups is not None:
            row = right.type.dims[1] * GROUPS[right.type.elem]
            part = fields_of(groups) if fields else None
            source = groups if part is None else _unshaped(part.bytes)
            stride = row if _is_decoded_by(dot, groups) else _row_stride(source, row, strides)
            if stride is None or effects.written_between(source.op, dot):
                found[dot] = Panel(groups, None, row)
            else:
                found[dot] = Panel(groups, source.op, stride, part, (source, dot.block) not in read)
                read.add((source, dot.block))
    return found


def is_read_in_place(dot: Op, groups: Value, strides: Strides) -> bool:
    """Whether a product reads its right operand, a view of `groups`, where it lies, or decodes it on the way."""
    columns = dot.operands[1].type.dims[1]
    row = columns * GROUPS[groups.type.elem]
    return columns >= COLUMN_MULTIPLE and (_is_decoded_by(dot, groups) or _row_stride(groups, row, strides) is not None)


def _unshaped(value: Value) -> Value:
    return value.op.operands[0] if value.defining == "tt.reshape" else value


def _is_decoded_by(dot: Op, groups: Value) -> bool:
    """Are these codes that one dot alone reads, once, in panels of the width that they were coded in?"""
    right, step = dot.operands[1], dot.operands[1]
    depth, width = right.type.dims
    if groups.defining != CODED or groups.type.dims != (depth // 2, width, 2) or dot.result.type.elem != "f32":
        return False
    while step is not groups and len(step.uses) == 1:
        step = step.op.operands[0]
    return step is groups and len(step.uses) == 1 and groups.op.block is dot.block


def _row_stride(groups: Value, row: int, strides: Strides) -> int | str | None:
    """Elements between k groups if `groups` is a readable panel in memory, else None. row: elements of all columns."""
    if groups.defining != "tt.load" or len(groups.op.operands) != 1 or groups.op.attrs.get("isVolatile") == "true":
        return None
    pointers, group = groups.op.operands[0], GROUPS[groups.type.elem]
    steps = [strides.of(pointers, d) for d in range(len(pointers.type.dims))]
    if len(steps) == 1:
        return row if steps == [1] else None
    rows_of_groups = groups.type.dims[1:] in ((row // group, group), (row,)) and steps[1:] in ([group, 1], [1])
    if not rows_of_groups:
        return None
    return steps[0] if steps[0] == RUNTIME or isinstance(steps[0], int) else None

"""Small numbers that lie together in a byte: `((byte >> shift) & mask) - bias`, elementwise, of 8 bits throughout."""

from __future__ import annotations

from dataclasses import dataclass

from ..ttir.ir import Value
from .affine import constant_int

BYTE, INT8 = 255, range(-128, 128)


@dataclass(frozen=True)
class Fields:
    """`((bytes >> shift) & mask) - bias`, shifted as unsigned, all of whose values fit int8; mask <= 255 >> shift."""

    bytes: Value
    shift: int
    mask: int
    bias: int


def fields_of(value: Value) -> Fields | None:
    """The fields that `value`, a tensor of int8, is computed as: any of the three steps may be missing, not all."""
    step, bias = value, 0
    if step.defining in ("arith.subi", "arith.addi") and (constant := constant_int(step.op.operands[1])) is not None:
        bias = (constant if step.defining == "arith.subi" else -constant) & BYTE
        step = step.op.operands[0]
    mask = BYTE
    if step.defining == "arith.andi" and (constant := constant_int(step.op.operands[1])) is not None:
        mask = constant & BYTE
        step = step.op.operands[0]
    shift = 0
    if step.defining in ("arith.shrui", "arith.shrsi") and (constant := constant_int(step.op.operands[1])) is not None:
        if not 0 <= constant < 8 or (step.defining == "arith.shrsi" and mask > BYTE >> constant):
            return None
        shift, mask = constant, mask & BYTE >> constant
        step = step.op.operands[0]
    fits = mask > 0 and -bias in INT8 and mask - bias in INT8
    return Fields(step, shift, mask, bias) if step is not value and fits and step.op is not None else None

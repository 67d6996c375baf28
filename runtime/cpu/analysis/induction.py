"""Loop-carried integer and pointer tensors that advance by a uniform step: base tensor plus a scalar offset.

The base is evaluated again at every use. What is too expensive for that (`offsets % n`, offsets loaded from a table) is
stored once, before the loop: an anchor.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ttir.ir import Function, Op, Value, words
from .affine import uniform

_CHEAP = words(
    "arith.constant tt.make_range tt.splat tt.broadcast tt.expand_dims tt.addptr arith.addi arith.subi arith.muli",
    "arith.extsi arith.index_cast tt.trans tt.reshape",
)


@dataclass(frozen=True)
class Induction:
    """`initial + offset`, where the scalar offset grows by `step` per iteration. `anchors`: stored parts of it."""

    initial: Value
    step: Value
    anchors: tuple[Value, ...] = ()


def find_inductions(function: Function) -> dict[Value, Induction]:
    """Maps loop arguments and loop results to their Induction."""
    found: dict[Value, Induction] = {}
    for op in function.walk():
        if op.name == "scf.for":
            _inspect(op, found)
    return found


def _inspect(loop: Op, found: dict[Value, Induction]) -> None:
    body = loop.regions[0]
    for k, arg in enumerate(body.args[1:]):
        initial, next_value = loop.operands[3 + k], body.terminator.operands[k]
        if not arg.type.is_tensor or next_value.defining not in ("tt.addptr", "arith.addi"):
            continue
        base, step = next_value.op.operands
        step_value, anchors = uniform(step), []
        if base is arg and step_value is not None and _recomputable(initial, found, anchors):
            found[arg] = found[loop.results[k]] = Induction(initial, step_value, tuple(anchors))


def _recomputable(value: Value, found: dict[Value, Induction], anchors: list[Value]) -> bool:
    """May the tensor be evaluated again at every use: index arithmetic on scalars and anchors, which are collected."""
    if value in found or not value.type.is_tensor:
        return True
    if value.op is None:
        return False
    if value.defining in _CHEAP:
        return all(_recomputable(operand, found, anchors) for operand in value.op.operands)
    if value.type.is_pointer or value.type.is_float or value.op.regions:
        return False
    anchors.append(value)
    return True


def is_index_arithmetic(value: Value) -> bool:
    """Made of scalars, ranges and cheap integer operations alone."""
    anchors: list[Value] = []
    return _recomputable(value, {}, anchors) and not anchors

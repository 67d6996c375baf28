"""Offsets as the kernel meant them: i32 arithmetic evaluated in 64 bits, to be compared with what it wrapped to."""

from __future__ import annotations

from typing import NamedTuple

from ..analysis.placement import Place
from ..ttir.ir import Op, Value
from .ctypes import size_of
from .nest import RULES, At, Index, Nest, deepest

_INFIX = {"arith.addi": "+", "arith.subi": "-", "arith.muli": "*"}
_SAME = ("arith.extsi", "arith.index_cast", "arith.trunci")
#: Operations that lose bits if the result does not fit.
_WRAPS = (*_INFIX, "arith.shli", "arith.trunci")
_LOADS = ("tt.load",)


class Link(NamedTuple):
    """An i32 operation of an address computation: its exact and its wrapped result, as C expressions."""

    op: Op
    exact: str
    wrapped: str


def _combined(op: Op, args: list[str]) -> str | None:
    """64-bit expression of an integer operation on exact operands; None when it is not followed."""
    if op.name in _INFIX and op.result.type.elem in ("i32", "i64"):
        return f"(int64_t)((uint64_t)({args[0]}) {_INFIX[op.name]} (uint64_t)({args[1]}))"
    if op.name == "arith.shli" and op.result.type.elem in ("i32", "i64"):
        return f"(int64_t)((uint64_t)({args[0]}) << (({args[1]}) & 63))"
    if op.name in _SAME and op.operands[0].type.elem in ("i32", "i64"):
        return args[0]
    if op.name == "tt.addptr":
        return f"(int64_t)((uint64_t)({args[0]}) + (uint64_t)({args[1]}) * {size_of(op.result.type.pointee)})"
    return None


def _is_link(op: Op) -> bool:
    return op.name in _WRAPS and op.result.type.elem == "i32"


class ExactScalars:
    """Exact values of the scalars emitted so far, and the operations that may have wrapped on the way to each."""

    def __init__(self) -> None:
        self.names: dict[Value, str] = {}
        self.links: dict[Value, list[Link]] = {}

    def code(self, value: Value, name: str) -> str:
        plain = f"((int64_t)({name}))"
        return self.names.get(value, plain)

    def follow(self, op: Op, names: dict[Value, str], fresh: str) -> str | None:
        """Declaration of the exact result of a scalar operation, None when nothing on the way can wrap."""
        links = [link for operand in op.operands for link in self.links.get(operand, ())]
        if op.result.type.is_tensor or not (links or _is_link(op)):
            return None
        code = _combined(op, [self.code(operand, names[operand]) for operand in op.operands])
        if code is None:
            return None
        if _is_link(op):
            links.append(Link(op, fresh, names[op.result]))
        self.names[op.result], self.links[op.result] = fresh, links
        return f"int64_t const {fresh} = {code};"


class Exact(Nest):
    """Evaluates exact elements into the levels of `nest`, and collects the operations that may wrap on the way."""

    def __init__(self, nest: Nest, scalars: ExactScalars) -> None:
        super().__init__(nest.emitter, 0)
        self.levels, self.nest, self.scalars = nest.levels, nest, scalars
        self.links: list[Link] = []

    def temporary(self, level: int, ctype: str, code: str, value: Value | None = None) -> At:
        """Exact integers and addresses are 64 bits wide, whatever the rule that made them."""
        return super().temporary(level, "int64_t", code)

    def at(self, value: Value, index: Index) -> At:
        key = (value, tuple(i.code for i in index))
        if key not in self._memo:
            self._memo[key] = self._exact(value, index)
        return self._memo[key]

    def _exact(self, value: Value, index: Index) -> At:
        place = self.emitter.place[value]
        if place is Place.SCALAR:
            self.links += self.scalars.links.get(value, [])
            return At(self.scalars.code(value, self.emitter.names[value]), 0)
        if place is Place.INDUCTION:
            return self._advanced(value, index)
        if place is Place.ARRAY:
            return self._leaf(value, index)
        op = value.op
        if op.name in RULES and op.name not in _LOADS:
            return RULES[op.name](self, op, value, index)
        return self._followed(op, value, index) or self._leaf(value, index)

    def _advanced(self, value: Value, index: Index) -> At:
        start = self.at(self.emitter.placement.inductions[value].initial, index)
        scale = size_of(value.type.pointee) if value.type.is_pointer else 1
        exact = At(f"({start.code} + {self.emitter.names[value]} * {scale})", start.level)
        if value.type.elem == "i32":
            self.links.append(Link(_advance(value), exact.code, self.nest.at(value, index).code))
        return exact

    def _leaf(self, value: Value, index: Index) -> At:
        actual = self.nest.at(value, index)
        return At(f"((int64_t)({actual.code}))", actual.level)

    def _followed(self, op: Op, value: Value, index: Index) -> At | None:
        if _combined(op, ["", "", ""]) is None:
            return None
        args = [self.at(operand, index if operand.type.is_tensor else ()) for operand in op.operands]
        exact = self.temporary(deepest(args), "int64_t", _combined(op, [a.code for a in args]))
        if _is_link(op):
            self.links.append(Link(op, exact.code, self.nest.at(value, index).code))
        return exact


def _advance(value: Value) -> Op:
    """The addition that makes the next value of a tensor carried around a loop."""
    body, k = (value.block, value.index - 1) if value.op is None else (value.op.regions[0], value.index)
    return body.terminator.operands[k].op

"""When one corner of a comparison decides it for the whole tile.

`offsets < n` with offsets that only grow along every dimension holds everywhere iff it holds at the last element, so a
loop nest can test that element once and run without masks.
"""

from __future__ import annotations

from ..ttir.ir import Value
from .affine import constant_int, uniform
from .induction import Induction


class Corners:
    def __init__(self, inductions: dict[Value, Induction]) -> None:
        self._inductions = inductions
        self._memo: dict[Value, bool] = {}

    def deciding(self, comparison: Value) -> str | None:
        """`last` or `first`: the corner that decides an arith.cmpi; None when no corner does."""
        if comparison.defining != "arith.cmpi":
            return None
        predicate = comparison.op.attrs["words"][0]
        left, right = comparison.op.operands
        less, greater = predicate in ("slt", "sle"), predicate in ("sgt", "sge")
        if self._grows(left) and uniform(right) is not None:
            return "last" if less else ("first" if greater else None)
        if self._grows(right) and uniform(left) is not None:
            return "last" if greater else ("first" if less else None)
        return None

    def _grows(self, value: Value) -> bool:
        """Monotone, not falling along any dimension."""
        if value not in self._memo:
            self._memo[value] = self._compute(value)
        return self._memo[value]

    def _compute(self, value: Value) -> bool:
        if not value.type.is_tensor:
            return True
        if value in self._inductions:
            return self._grows(self._inductions[value].initial)
        if value.op is None:
            return False
        operands = value.op.operands
        match value.defining:
            case "tt.make_range" | "arith.constant" | "tt.splat":
                return True
            case "tt.broadcast" | "tt.expand_dims" | "arith.extsi":
                return self._grows(operands[0])
            case "arith.addi":
                return all(map(self._grows, operands))
            case "arith.subi":
                return self._grows(operands[0]) and uniform(operands[1]) is not None
            case "arith.muli":
                return any(self._grows(a) and (constant_int(b) or -1) > 0 for a, b in (operands, operands[::-1]))
        return False

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
        if self.grows(left) and uniform(right) is not None:
            return "last" if less else ("first" if greater else None)
        if self.grows(right) and uniform(left) is not None:
            return "last" if greater else ("first" if less else None)
        return None

    def always_holds(self, comparison: Value) -> bool:
        """Known at compile time: the deciding corner passes the test (`tl.arange(0, 64) < 64`)."""
        corner = self.deciding(comparison)
        if corner is None:
            return False
        left, right = (self._at_corner(operand, corner == "last") for operand in comparison.op.operands)
        if left is None or right is None:
            return False
        predicate = comparison.op.attrs["words"][0]
        return {"slt": left < right, "sle": left <= right, "sgt": left > right, "sge": left >= right}[predicate]

    def _at_corner(self, value: Value, last: bool) -> int | None:
        """Value of the first or last element of index arithmetic on ranges and constants."""
        known = constant_int(value)
        if known is not None or value.op is None:
            return known
        parts = [self._at_corner(operand, last) for operand in value.op.operands]
        if None in parts:
            return None
        match value.defining:
            case "tt.make_range":
                return int(value.op.attrs["end"]) - 1 if last else int(value.op.attrs["start"])
            case "tt.broadcast" | "tt.expand_dims" | "arith.extsi" | "tt.splat":
                return parts[0]
            case "arith.addi":
                return parts[0] + parts[1]
            case "arith.muli":
                return parts[0] * parts[1]
        return None

    def grows(self, value: Value) -> bool:
        """Monotone, not falling along any dimension."""
        if value not in self._memo:
            self._memo[value] = self._compute(value)
        return self._memo[value]

    def _compute(self, value: Value) -> bool:
        if not value.type.is_tensor:
            return True
        if value in self._inductions:
            return self.grows(self._inductions[value].initial)
        if value.op is None:
            return False
        operands = value.op.operands
        match value.defining:
            case "tt.make_range" | "arith.constant" | "tt.splat":
                return True
            case "tt.broadcast" | "tt.expand_dims" | "arith.extsi":
                return self.grows(operands[0])
            case "arith.addi":
                return all(map(self.grows, operands))
            case "arith.subi":
                return self.grows(operands[0]) and uniform(operands[1]) is not None
            case "arith.muli":
                return any(self.grows(a) and (constant_int(b) or -1) > 0 for a, b in (operands, operands[::-1]))
        return False

"""How much an integer or a pointer grows from one program to the next, or from one round of a loop to the next."""

from __future__ import annotations

from collections.abc import Mapping

from ..ttir.ir import Op, Value, words
from .affine import constant_int
from .induction import Induction

_KEPT = words(
    "tt.splat tt.broadcast tt.expand_dims tt.reshape tt.trans arith.extsi arith.extui arith.index_cast arith.trunci",
)


class Growth:
    """Growth of values per step of one counter: the program id x (`loop` None), or a loop's counter.

    In units of the value: elements for pointers. None: not the same everywhere, or unknown."""

    def __init__(self, inductions: Mapping[Value, Induction], loop: Op | None = None) -> None:
        self._inductions, self._loop = inductions, loop
        self._memo: dict[Value, int | None] = {}

    def of(self, value: Value) -> int | None:
        """An int, or None."""
        if value not in self._memo:
            self._memo[value] = self._compute(value)
        return self._memo[value]

    def _compute(self, value: Value) -> int | None:
        if value.op is None or value in self._inductions:
            return self._of_argument(value)
        if value.defining == "tt.get_program_id" and value.op.attrs["words"][0] == "x":
            return int(self._loop is None)
        if value.defining in _KEPT:
            return self.of(value.op.operands[0])
        grown = [self.of(operand) for operand in value.op.operands]
        if not any(growth != 0 for growth in grown):
            return None if value.op.regions else 0
        if len(grown) != 2 or grown[0] is None or grown[1] is None:
            return None
        if value.defining in ("arith.addi", "tt.addptr"):
            return grown[0] + grown[1]
        if value.defining == "arith.subi":
            return grown[0] - grown[1]
        if value.defining == "arith.divsi":
            return self._of_quotient(*value.op.operands)
        return self._of_product(value) if value.defining == "arith.muli" else None

    def _of_product(self, value: Value) -> int | None:
        for side, other in (value.op.operands, value.op.operands[::-1]):
            factor, growth = constant_int(other), self.of(side)
            if factor is not None and growth is not None:
                return factor * growth
        return None

    def _of_quotient(self, counter: Value, divisor: Value) -> int | None:
        """A counter by a number that divides its first value and its step."""
        by = constant_int(divisor)
        loop = counter.block.parent if counter.op is None and counter.block is not None else None
        if loop is None or loop is not self._loop or counter is not loop.regions[0].args[0] or not by or by < 0:
            return None
        low, step = constant_int(loop.operands[0]), constant_int(loop.operands[2])
        if low is None or step is None or low < 0 or low % by or step % by:
            return None
        return step // by

    def _of_argument(self, value: Value) -> int | None:
        """Arguments of the kernel do not grow; counters of loops do, and tensors that loops carry may."""
        induction = self._inductions.get(value)
        inside = self._loop is not None and value.block is self._loop.regions[0]
        if induction is not None:
            start = self.of(induction.initial)
            step = constant_int(induction.step) if inside else 0
            return None if start is None or step is None else start + step
        loop = value.block.parent if value.block is not None else None
        if loop is None:
            return 0
        if loop.name != "scf.for" or value is not loop.regions[0].args[0]:
            return None
        return constant_int(loop.operands[2]) if inside else self.of(loop.operands[0])


def rounds(loop: Op) -> int | None:
    """How often the body of an scf.for runs, if that is known when it is compiled."""
    low, high, step = (constant_int(operand) for operand in loop.operands[:3])
    if low is None or high is None or step is None or step <= 0:
        return None
    return max(0, -((low - high) // step))

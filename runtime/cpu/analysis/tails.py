"""Rows that end where their mask does, and tensors that a reduction stores on its way.

A kernel pads a row of n elements to a power of two: `tl.load(x + o, mask=o < n, other=0.0)`. Beyond n all elements of
such a tensor are the same, and so are those of what is computed from it element by element. When everything that reads
a stored tensor stops at n as well, or knows that number, its array is not written any further.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ttir.ir import BITS, Op, Value
from .affine import uniform
from .liveness import leads_to

if TYPE_CHECKING:
    from .placement import Placement

#: Lanes of a reduction of elements of up to 32 bits: rows are cut after a multiple of them.
LANES = 64
#: Operations that emit nothing.
_WITHOUT_EFFECT = ("llvm.intr.assume",)


class Tails:
    """Of one-dimensional tensors that are stored.

    `mask`: the comparison after whose end all elements of a tensor are the same and are not stored.
    `deferred`: the reduction that stores a tensor, 64 elements at a time, as it reads it."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self.mask: dict[Value, Value] = {}
        self.deferred: dict[Value, Op] = {}
        self._ends: dict[Value, Value | None] = {}
        if placement.keep_loads:
            return
        taken = {*placement.anchors, *placement.updates, *placement.fused_updates}
        rows = [value for value in placement.stored if value not in taken and _is_row(value)]
        rows.sort(key=lambda value: value.op.position)
        self._find_tails(rows)
        again = {value for value in rows if self._is_read_again(value)}
        placement.stored -= again
        rows = [value for value in rows if value not in again]
        self._find_tails(rows)
        for value in rows:
            reduction = self._next_reduction(value)
            if reduction is not None and reduction not in self.deferred.values():
                self.deferred[value] = reduction

    def _is_read_again(self, value: Value) -> bool:
        """A load that is not worth an array: of consecutive floats which nothing overwrites while they are needed."""
        placement = self._placement
        if value.defining != "tt.load" or not value.type.is_float or placement.must_store(value.op, value):
            return False
        plain = len(value.op.operands) == 1 or value in self.mask
        return plain and placement.strides.of(value.op.operands[0], 0) == 1

    # ---- where rows end

    def _find_tails(self, rows: list[Value]) -> None:
        """Assumes that all rows end, and drops those of which that is wrong until none is."""
        kept, before = rows, None
        while kept != before:
            self.mask, self._ends = {}, {}
            for value in kept:
                mask = self._end_of(value)
                if mask is not None:
                    self.mask[value] = mask
            before, kept = kept, [v for v in kept if v in self.mask and self._nobody_looks_beyond(v, v, set())]
        self.mask, self._ends = {value: self.mask[value] for value in kept}, {}

    def of(self, op: Op) -> Value | None:
        """The comparison after whose end all elements that a reduction of a row reads are the same."""
        allowed = self._is_row_reduction(op) and not self._placement.keep_loads
        return self._known(op.operands[0]) if allowed else None

    def _end_of(self, value: Value) -> Value | None:
        """The comparison after whose end all elements of a tensor, computed from its operands, are the same."""
        if value not in self._ends:
            self._ends[value] = self._find_end(value)
        return self._ends[value]

    def _find_end(self, value: Value) -> Value | None:
        op = value.op
        if op is None or uniform(value) is not None:
            return None
        if op.name == "tt.load":
            ends = len(op.operands) > 1 and (len(op.operands) == 2 or uniform(op.operands[2]) is not None)
            return op.operands[1] if ends and self._cuts(op.operands[1]) else None
        if not self._placement.is_elementwise(op):
            return None
        operands = op.operands
        if op.name == "arith.select" and self._cuts(operands[0]):
            other = operands[2]
            return operands[0] if uniform(other) is not None or self._known(other) is operands[0] else None
        ends = {self._known(operand) for operand in operands if operand.type.is_tensor and uniform(operand) is None}
        return ends.pop() if len(ends) == 1 else None

    def _known(self, value: Value) -> Value | None:
        """The end of a tensor: of a stored one only if it is one of the rows."""
        if value in self.mask:
            return self.mask[value]
        return None if value in self._placement.stored else self._end_of(value)

    def _cuts(self, mask: Value) -> bool:
        """Does a comparison hold up to one place of a row and not after it?"""
        placement = self._placement
        if mask.defining != "arith.cmpi" or not _is_row(mask) or not placement.is_elementwise(mask.op):
            return False
        if mask in placement.stored or placement.corners.always_holds(mask):
            return False
        steps = {str(placement.strides.of(side, 0)) for side in mask.op.operands}
        return steps == {"0", "1"} and placement.corners.deciding(mask) == "last"

    def _nobody_looks_beyond(self, row: Value, value: Value, seen: set[Value]) -> bool:
        """Of `row` as part of `value`: is it read up to the end of its mask alone, or by what knows the rest?"""
        if value in seen:
            return True
        seen.add(value)
        return all(self._stops(row, user, k, seen) for user, k in value.uses)

    def _stops(self, row: Value, user: Op, k: int, seen: set[Value]) -> bool:
        mask = self.mask[row]
        if user.block is not row.op.block:
            return False
        if user.name == "tt.store":
            return k == 1 and len(user.operands) > 2 and _implies(user.operands[2], mask)
        if user.name == "tt.reduce":
            return self._is_row_reduction(user) and self._known(user.operands[0]) is mask
        if not self._placement.is_elementwise(user) or user.result in self._placement.updates:
            return False
        if user.result in self._placement.stored:
            return self.mask.get(user.result) is mask
        return self._nobody_looks_beyond(row, user.result, seen)

    def _is_row_reduction(self, op: Op) -> bool:
        """Of one row, in lanes of 64, that stores nothing of a loop."""
        fused = op in self._placement.fused_updates.values()
        return not fused and len(op.operands) == 1 and _is_row(op.operands[0]) and BITS[op.operands[0].type.elem] <= 32

    # ---- reductions that store

    def _next_reduction(self, value: Value) -> Op | None:
        """The reduction that follows, if nothing but scalars lies between and it reads `value` element by element."""
        placement = self._placement
        for op in value.op.block.ops[value.op.position + 1 :]:
            if op.name == "tt.reduce":
                return op if self._may_store(value, op) else None
            silent = op.results or op.name in _WITHOUT_EFFECT
            if placement.is_root(op) or op.regions or not silent or any(r in placement.stored for r in op.results):
                return None
        return None

    def _may_store(self, value: Value, reduction: Op) -> bool:
        if not self._is_row_reduction(reduction) or self.of(reduction) is not self.mask.get(value):
            return False
        if value not in self.mask and not self._has_no_mask(value):
            return False
        roots, elementwise = self._placement.roots_of_use, self._placement.is_elementwise
        users = [user for user, k in value.uses if reduction in (roots(user, k) or ())]
        return bool(users) and all(leads_to(user, reduction, elementwise, roots) for user in users)

    def _has_no_mask(self, value: Value) -> bool:
        """Computed from unmasked loads and stored tensors."""
        op = value.op
        if op is None or uniform(value) is not None:
            return True
        if op.name == "tt.load":
            return len(op.operands) == 1
        inner = [o for o in op.operands if o.type.is_tensor and o not in self._placement.stored]
        return self._placement.is_elementwise(op) and all(map(self._has_no_mask, inner))


def _is_row(value: Value) -> bool:
    dims = value.type.dims
    return value.op is not None and len(dims) == 1 and dims[0] >= 2 * LANES and dims[0] % LANES == 0


def _implies(mask: Value, comparison: Value) -> bool:
    if mask.defining == "arith.andi":
        return any(_implies(operand, comparison) for operand in mask.op.operands)
    return mask is comparison

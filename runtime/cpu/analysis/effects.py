"""Which operations write memory, and whether something is written between two points."""

from __future__ import annotations

from ..ttir.ir import Block, Function, Op

WRITES = frozenset(("tt.store", "tt.atomic_rmw", "tt.atomic_cas"))


class Effects:
    """Prefix counts of memory writes per block."""

    def __init__(self, function: Function) -> None:
        self._before: dict[Block, list[int]] = {}
        self._inside: dict[Op, int] = {}
        for block in function.blocks:
            self._count(block)

    def _count(self, block: Block) -> int:
        total, before = 0, []
        for op in block.ops:
            before.append(total)
            inside = (op.name in WRITES) + sum(self._count(region) for region in op.regions)
            self._inside[op] = inside
            total += inside
        self._before[block] = before
        return total

    def writes(self, op: Op) -> bool:
        """Does `op` or anything in its regions write memory?"""
        return self._inside[op] > 0

    def written_between(self, load: Op, user: Op) -> bool:
        """Can memory change after `load` runs and before `user`, nested in a later operation or not, runs?"""
        ancestor = user
        while ancestor.block is not load.block:
            if ancestor.block.parent is None:
                return True
            ancestor = ancestor.block.parent
        counts = self._before[load.block]
        changed = counts[ancestor.position] != counts[load.position]
        return changed or (ancestor is not user and self.writes(ancestor))

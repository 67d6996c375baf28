"""Reductions down the columns of one tile, and a store of it, that one loop nest performs.

A step of a recurrence stores a tile and sums what follows from it over the rows, once per token:

    tl.store(p, s); y0 = tl.sum(f0(s), 0); y1 = tl.sum(f1(s), 0)

Each by itself reads the whole tile, so the tile has to be an array. In one nest an element is loaded, worked on, stored
and added to all sums while it is in a register. A sum waits for the last member of its group, the leader, if nothing in
between reads it or writes memory; every sum keeps its order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..ttir.ir import Block, Function, Op
from .affine import Strides
from .combine import sums_floats

#: Lanes of a vector: what a sum down columns keeps in registers.
VECTOR = 16
#: Sums of one group: with 64 columns each they take 16 vectors.
MOST_SUMS = 4


class Group(NamedTuple):
    """`sums` in their order, and the `store` that leads them; without one the last sum does."""

    sums: tuple[Op, ...]
    store: Op | None

    @property
    def leader(self) -> Op:
        return self.sums[-1] if self.store is None else self.store


def find_groups(function: Function, strides: Strides, is_root: Callable[[Op], bool]) -> dict[Op, Group]:
    """Maps every member of a group of two or more to it."""
    blocks = [*function.blocks, *(region for op in function.walk() for region in op.regions)]
    groups = [group for block in blocks for group in _groups_of(block, strides, is_root)]
    return {member: group for group in groups for member in (*group.sums, group.leader)}


def dependents(group: Group) -> set[Op]:
    """Operations of the block that read a sum of `group`, or what is computed from one."""
    found: set[Op] = set()
    pending = [result for member in group.sums for result in member.results]
    while pending:
        for user, _ in pending.pop().uses:
            if user not in found:
                found.add(user)
                pending += user.results
    return found


def _groups_of(block: Block, strides: Strides, is_root: Callable[[Op], bool]) -> list[Group]:
    found: list[Group] = []
    waiting: list[Op] = []

    def close(store: Op | None = None) -> None:
        if len(waiting) + (store is not None) > 1:
            found.append(Group(tuple(waiting), store))
        waiting.clear()

    for op in block.ops:
        if _sums_columns(op):
            if waiting and (_tile(op) != _tile(waiting[0]) or len(waiting) == MOST_SUMS or _reads(op, waiting)):
                close()
            waiting.append(op)
        elif waiting and op.name == "tt.store" and _joins(op, waiting, strides):
            close(op)
        elif is_root(op) or op.regions or not op.results:
            close()
    close()
    return found


def _tile(op: Op) -> tuple[int, ...]:
    return op.operands[0].type.dims


def _sums_columns(op: Op) -> bool:
    """A sum of f32 over the rows of a matrix, in whole vectors of columns."""
    if op.name != "tt.reduce" or op.attrs["axis"] != 0 or not sums_floats(op):
        return False
    return len(_tile(op)) == 2 and _tile(op)[1] % VECTOR == 0


def _joins(store: Op, waiting: list[Op], strides: Strides) -> bool:
    return (
        _tile(store) == _tile(waiting[0]) and strides.innermost(store.operands[0]) == 1 and not _reads(store, waiting)
    )


def _reads(op: Op, waiting: list[Op]) -> bool:
    return op in dependents(Group(tuple(waiting), None))

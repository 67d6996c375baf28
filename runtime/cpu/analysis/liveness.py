"""When the array of a tensor may be overwritten: carried tensors updated in place or taking over an initial value."""

from __future__ import annotations

from collections.abc import Callable

from ..ttir.ir import Block, Function, Op, Value

Roots = Callable[[Op, int], frozenset[Op] | None]


def find_updates(function: Function, elementwise: Callable[[Op], bool]) -> dict[Value, Value]:
    """Maps a value to the carried tensor whose storage it may take over inside the loop body.

    That is a value computed elementwise from the carried tensor, through which all uses of the carried tensor go, and
    which replaces it for the next iteration, directly or as the accumulator of the dot that does."""
    updates: dict[Value, Value] = {}
    for loop in function.walk():
        if loop.name != "scf.for":
            continue
        body = loop.regions[0]
        for carried, yielded in zip(body.args[1:], body.terminator.operands, strict=True):
            value = _updating(yielded, body)
            if value is not None and carried.type.is_tensor and _all_paths_lead_to(carried, value, elementwise):
                updates[value] = carried
    return updates


def accumulates_in_place(dot: Op, updates: dict[Value, Value]) -> Value | None:
    """The carried tensor in whose array a dot may accumulate: it updates that tensor, and its result replaces it."""
    carried = updates.get(dot.operands[2])
    if carried is None or dot.block is not carried.block:
        return None
    return carried if carried.block.terminator.operands[carried.index - 1] is dot.result else None


def _updating(yielded: Value, body: Block) -> Value | None:
    if yielded.op is None or yielded.op.block is not body:
        return None
    if yielded.defining != "tt.dot":
        return yielded
    accumulator = yielded.op.operands[2]
    single = len(accumulator.uses) == 1 and accumulator.op is not None and accumulator.op.block is body
    return accumulator if single else None


def _all_paths_lead_to(value: Value, target: Value, elementwise: Callable[[Op], bool]) -> bool:
    for user, _ in value.uses:
        if user is target.op:
            if not elementwise(user):
                return False
        elif not elementwise(user) or not _all_paths_lead_to(user.result, target, elementwise):
            return False
    return bool(value.uses)


def dies_at(value: Value, op: Op, roots: Roots) -> bool:
    """Is `op` the last operation that evaluates `value`, which is passed to it once? Then `op` may own its storage."""
    home = value.op.block if value.op is not None else value.block
    if op.block is not home or sum(operand is value for operand in op.operands) != 1:
        return False
    for user, k in value.uses:
        for root in roots(user, k) or ():
            if root is op:
                continue
            ancestor = _ancestor_in(home, root)
            if ancestor is None or ancestor.position >= op.position:
                return False
    return True


def inherited(value: Value, stored: set[Value], elementwise: Callable[[Op], bool], roots: Roots) -> Value | None:
    """A stored tensor in whose array `value` may be stored: of its type, read for the last time where `value` is
    computed, and there only at the element that is written."""
    for leaf in _leaves(value.op, stored, elementwise):
        if (
            leaf.type == value.type
            and leaf.op.block is value.op.block
            and _last_read_by(leaf, value.op, elementwise, roots)
        ):
            return leaf
    return None


def _leaves(op: Op, stored: set[Value], elementwise: Callable[[Op], bool]) -> list[Value]:
    """Stored tensors that `op` reads directly or through elementwise operations."""
    found: list[Value] = []
    for operand in op.operands:
        if operand in stored:
            found.append(operand)
        elif operand.op is not None and elementwise(operand.op):
            found += _leaves(operand.op, stored, elementwise)
    return found


def _last_read_by(leaf: Value, op: Op, elementwise: Callable[[Op], bool], roots: Roots) -> bool:
    for user, k in leaf.uses:
        found = roots(user, k) or ()
        if op in found and not leads_to(user, op, elementwise, roots):
            return False
        ancestors = [_ancestor_in(op.block, root) for root in found if root is not op]
        if any(ancestor is None or ancestor.position >= op.position for ancestor in ancestors):
            return False
    return True


def leads_to(user: Op, op: Op, elementwise: Callable[[Op], bool], roots: Roots) -> bool:
    """Do all ways from `user` to `op` consist of elementwise operations?"""
    if user is op:
        return True
    if not elementwise(user):
        return False
    return all(leads_to(u, op, elementwise, roots) for u, k in user.result.uses if op in (roots(u, k) or ()))


def _ancestor_in(block: Block, op: Op) -> Op | None:
    while op.block is not block:
        if op.block.parent is None:
            return None
        op = op.block.parent
    return op

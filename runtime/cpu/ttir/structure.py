"""Blocks that branch forward (early returns) as one block of nested scf.if, by cloning."""

from __future__ import annotations

from collections.abc import Mapping

from .ir import Block, Function, Op, Value

#: Blocks on one path.
_MAX_PATH = 64


def structured(blocks: list[Block], mapping: Mapping[Value, Value]) -> list[Op]:
    """Operations equal to `blocks`, values renamed by `mapping`, ending with the operation that returns.

    Raises ValueError when the blocks loop or return too deep."""
    ops, last = _clone_from(blocks[0], dict(mapping), _MAX_PATH)
    return [*ops, last]


def _clone_from(block: Block, mapping: dict[Value, Value], budget: int) -> tuple[list[Op], Op]:
    """Operations from the start of a block to its return, branches as scf.if, and the return."""
    if budget == 0:
        raise ValueError("branches that loop or are nested too deeply")
    body, last = [_clone(op, mapping) for op in block.ops[:-1]], block.terminator
    passed = [mapping.get(v, v) for v in last.operands]
    if last.name == "cf.br":
        ((target, _),) = last.successors
        rest, end = _clone_from(target, mapping | dict(zip(target.args, passed, strict=True)), budget - 1)
        return body + rest, end
    if last.name == "cf.cond_br":
        branch, end = _branch(last, passed, mapping, budget - 1)
        return [*body, branch], end
    return body, Op(last.name, passed, attrs=last.attrs, location=last.location)


def _branch(last: Op, passed: list[Value], mapping: dict[Value, Value], budget: int) -> tuple[Op, Op]:
    """A cf.cond_br as scf.if whose results are the values returned."""
    condition, *passed = passed
    branch, start = Op("scf.if", [condition], location=last.location), 0
    for target, count in last.successors:
        arguments = dict(zip(target.args, passed[start : start + count], strict=True))
        ops, end = _clone_from(target, mapping | arguments, budget)
        branch.regions.append(Block(ops=[*ops, Op("scf.yield", end.operands)], parent=branch))
        start += count
    branch.results = [Value(v.name, v.type, branch, k) for k, v in enumerate(end.operands)]
    return branch, Op(end.name, branch.results, attrs=end.attrs, location=end.location)


def _clone(op: Op, mapping: dict[Value, Value]) -> Op:
    copy = Op(op.name, [mapping.get(v, v) for v in op.operands], attrs=op.attrs, location=op.location)
    for region in op.regions:
        block = Block(parent=copy)
        block.args = [_clone_value(v, mapping, None, block) for v in region.args]
        block.ops = [_clone(inner, mapping) for inner in region.ops]
        copy.regions.append(block)
    copy.results = [_clone_value(v, mapping, copy, None) for v in op.results]
    return copy


def _clone_value(value: Value, mapping: dict[Value, Value], op: Op | None, block: Block | None) -> Value:
    mapping[value] = Value(value.name, value.type, op, value.index, block)
    return mapping[value]


def rebuild_uses(function: Function) -> None:
    """Recompute blocks, positions and use lists after operations moved."""

    def visit(block: Block) -> None:
        ops, block.ops = block.ops, []
        for op in ops:
            block.append(op)
            for region in op.regions:
                visit(region)

    for op in function.walk():
        for value in (*op.results, *op.operands):
            value.uses = []
    for block in function.blocks:
        visit(block)

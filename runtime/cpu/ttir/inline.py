"""Inline the calls that Triton's own inliner leaves (functions marked noinline), by cloning the callee's body."""

from __future__ import annotations

from .ir import Block, Function, Op, Value
from .verify import unsupported

_MAX_DEPTH = 32
#: Blocks on one path through a callee.
_MAX_PATH = 64


def inline_calls(functions: list[Function]) -> Function:
    """The kernel (first function) with every tt.call replaced by the callee's operations.

    Early returns of a callee become nested scf.if. Recursion and callees whose blocks loop raise UnsupportedOp."""
    kernel, *others = functions
    table = {function.name: function for function in others}
    if any(op.name == "tt.call" for op in kernel.walk()):
        for block in kernel.blocks:
            _expand_block(kernel, block, table, 0)
        _rebuild_uses(kernel)
    return kernel


def _expand_block(kernel: Function, block: Block, table: dict[str, Function], depth: int) -> None:
    expanded: list[Op] = []
    renamed: dict[Value, Value] = {}
    for op in block.ops:
        _rename(op, renamed)
        for region in op.regions:
            _expand_block(kernel, region, table, depth)
        if op.name == "tt.call":
            body, returned = _clone_call(kernel, op, table, depth)
            expanded.extend(body)
            renamed.update(zip(op.results, returned, strict=True))
        else:
            expanded.append(op)
    block.ops = expanded


def _clone_call(kernel: Function, call: Op, table: dict[str, Function], depth: int) -> tuple[list[Op], list[Value]]:
    callee = table.get(call.attrs.get("callee", ""))
    if callee is None or depth > _MAX_DEPTH:
        raise unsupported(kernel, call, "recursive noinline functions cannot be inlined")
    mapping = dict(zip(callee.args, call.operands, strict=True))
    try:
        body, returned = _clone_from(callee.blocks[0], mapping, _MAX_PATH)
    except RecursionError as error:
        raise unsupported(kernel, call, "the callee's early returns are nested too deeply") from error
    holder = Block(ops=[*body, Op("scf.yield", returned)])
    _expand_block(kernel, holder, table, depth + 1)
    *body, terminator = holder.ops
    return body, terminator.operands


def _clone_from(block: Block, mapping: dict[Value, Value], budget: int) -> tuple[list[Op], list[Value]]:
    """Operations from the start of a callee's block to its return, branches as scf.if, and the returned values."""
    if budget == 0:
        raise RecursionError
    body = [_clone(op, mapping) for op in block.ops[:-1]]
    last = block.terminator
    passed = [mapping[v] for v in last.operands]
    if last.name == "tt.return":
        return body, passed
    if last.name == "cf.br":
        ((target, _),) = last.successors
        rest, returned = _clone_from(target, mapping | dict(zip(target.args, passed, strict=True)), budget - 1)
        return body + rest, returned
    branch = _branch(last, passed, mapping, budget - 1)
    return [*body, branch], branch.results


def _branch(last: Op, passed: list[Value], mapping: dict[Value, Value], budget: int) -> Op:
    """A cf.cond_br as scf.if whose results are the values returned."""
    condition, *passed = passed
    branch, start = Op("scf.if", [condition], location=last.location), 0
    for target, count in last.successors:
        arguments = dict(zip(target.args, passed[start : start + count], strict=True))
        ops, returned = _clone_from(target, mapping | arguments, budget)
        branch.regions.append(Block(ops=[*ops, Op("scf.yield", returned)], parent=branch))
        start += count
    branch.results = [Value(v.name, v.type, branch, k) for k, v in enumerate(returned)]
    return branch


def _clone(op: Op, mapping: dict[Value, Value]) -> Op:
    copy = Op(op.name, [mapping[v] for v in op.operands], attrs=op.attrs, location=op.location)
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


def _rename(op: Op, renamed: dict[Value, Value]) -> None:
    for inner in op.walk():
        inner.operands = [renamed.get(v, v) for v in inner.operands]


def _rebuild_uses(function: Function) -> None:
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

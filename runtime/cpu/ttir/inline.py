"""Inline the calls that Triton's own inliner leaves (functions marked noinline), by cloning the callee's body."""

from __future__ import annotations

from .ir import Block, Function, Op, Value
from .verify import unsupported

_MAX_DEPTH = 32


def inline_calls(functions: list[Function]) -> Function:
    """The kernel (first function) with every tt.call replaced by the callee's operations.

    A callee must be one block; recursion and early returns in noinline functions raise UnsupportedOp."""
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
    if callee is None or len(callee.blocks) != 1 or depth > _MAX_DEPTH:
        raise unsupported(kernel, call, "only straight, non-recursive noinline functions can be called")
    mapping = dict(zip(callee.args, call.operands, strict=True))
    holder = Block(ops=[_clone(op, mapping) for op in callee.blocks[0].ops])
    _expand_block(kernel, holder, table, depth + 1)
    *body, terminator = holder.ops
    return body, terminator.operands


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

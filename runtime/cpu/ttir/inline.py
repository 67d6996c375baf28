"""Inline the calls that Triton's own inliner leaves (functions marked noinline), by cloning the callee's body."""

from __future__ import annotations

from .ir import Block, Function, Op, Value
from .structure import rebuild_uses, structured
from .verify import unsupported

_MAX_DEPTH = 32


def inline_calls(functions: list[Function]) -> Function:
    """The kernel (first function) with every tt.call replaced by the callee's operations.

    Early returns of a callee become nested scf.if. Recursion and callees whose blocks loop raise UnsupportedOp."""
    kernel, *others = functions
    table = {function.name: function for function in others}
    if any(op.name == "tt.call" for op in kernel.walk()):
        for block in kernel.blocks:
            _expand_block(kernel, block, table, 0)
        rebuild_uses(kernel)
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
    try:
        holder = Block(ops=structured(callee.blocks, dict(zip(callee.args, call.operands, strict=True))))
    except ValueError as error:
        raise unsupported(kernel, call, f"the callee has {error}") from error
    _expand_block(kernel, holder, table, depth + 1)
    *body, terminator = holder.ops
    return body, terminator.operands


def _rename(op: Op, renamed: dict[Value, Value]) -> None:
    for inner in op.walk():
        inner.operands = [renamed.get(v, v) for v in inner.operands]

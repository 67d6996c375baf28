"""Inline the calls that Triton's own inliner leaves (functions marked noinline), by cloning the callee's body.

Calls of `functions.py` become operations of their own, which are emitted as hand-written C, where that has a form for
their sizes.
"""

from __future__ import annotations

from collections.abc import Iterator

from .ir import CODED, Block, Function, Op, Value
from .structure import rebuild_uses, structured
from .verify import unsupported

_MAX_DEPTH = 32
_FUNCTIONS = f"{__package__.rpartition('.')[0]}.functions."
_CODED_COLUMNS = (16, 32, 64, 128)


def inline_calls(functions: list[Function], native: bool = True) -> Function:
    """The kernel (first function) with every tt.call replaced by the callee's operations.

    native: use hand-written forms; without, the bodies of `functions.py` are inlined like any other.

    Early returns of a callee become nested scf.if. Recursion and callees whose blocks loop raise UnsupportedOp."""
    kernel, *others = functions
    table = {function.name: function for function in others}
    if native:
        for op in list(_calls(functions)):
            _make_native(op)
    if any(_calls([kernel])):
        for block in kernel.blocks:
            _expand_block(kernel, block, table, 0)
        rebuild_uses(kernel)
    return kernel


def _calls(functions: list[Function]) -> Iterator[Op]:
    return (op for function in functions for op in function.walk() if op.name == "tt.call")


def _make_native(call: Op) -> None:
    """Name a call after the function of `functions.py` that it calls, if there is C for it. Triton 3.6 quotes names."""
    coded = call.attrs.get("callee", "").strip('"').startswith(f"{_FUNCTIONS}coded_bf16__")
    if coded and call.result.type.dims[1] in _CODED_COLUMNS:
        call.name = CODED


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

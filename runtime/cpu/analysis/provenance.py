"""Which kernel arguments a pointer may have been derived from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ..ttir.ir import Function, Op, Value

#: A pointer made from an integer that shows no argument.
ANYWHERE = -1
_LOADED = ("tt.load", "tt.atomic_rmw", "tt.atomic_cas")


def find_sources(function: Function) -> dict[Value, frozenset[int]]:
    """Positions of the arguments every pointer may be derived from; {ANYWHERE} where the TTIR does not show it."""
    flows: dict[Value, list[Value]] = defaultdict(list)
    for op in function.walk():
        for source, target in _flows(op):
            flows[source].append(target)
    found: dict[Value, set[int]] = defaultdict(set)
    for k, arg in enumerate(function.args):
        if arg.type.is_pointer:
            _propagate(arg, {k}, flows, found)
    for op in function.walk():
        if op.name == "tt.int_to_ptr" and not found[op.result]:
            _propagate(op.result, {ANYWHERE}, flows, found)
    return {value: frozenset(sources) for value, sources in found.items() if sources}


def has_integer_addresses(function: Function) -> bool:
    """Is a pointer made from an integer or an integer from a pointer anywhere?"""
    return any(op.name in ("tt.int_to_ptr", "tt.ptr_to_int") for op in function.walk())


def _propagate(start: Value, added: set[int], flows: dict[Value, list[Value]], found: dict[Value, set[int]]) -> None:
    pending = [start]
    while pending:
        value = pending.pop()
        if not added <= found[value]:
            found[value] |= added
            pending.extend(flows[value])


def _flows(op: Op) -> Iterator[tuple[Value, Value]]:
    """(source, target) of every value that `op` passes on or computes with."""
    match op.name:
        case "scf.for":
            body = op.regions[0]
            yield from zip(op.operands[3:], body.args[1:], strict=True)
            yield from zip(body.terminator.operands, body.args[1:], strict=True)
            yield from zip(body.args[1:], op.results, strict=True)
        case "scf.if":
            for region in op.regions:
                yield from zip(region.terminator.operands, op.results, strict=True)
        case "scf.while":
            before, after = op.regions
            passed = before.terminator.operands[1:]
            yield from zip(op.operands, before.args, strict=True)
            yield from zip(after.terminator.operands, before.args, strict=True)
            yield from zip(passed, after.args, strict=True)
            yield from zip(passed, op.results, strict=True)
        case "cf.br" | "cf.cond_br":
            passed = op.operands[op.name == "cf.cond_br" :]
            targets = [arg for block, _ in op.successors for arg in block.args]
            yield from zip(passed, targets, strict=True)
        case _ if not op.regions and op.name not in _LOADED:
            yield from ((operand, result) for operand in op.operands for result in op.results if _carries(operand))


def _carries(value: Value) -> bool:
    return value.type.is_pointer or value.type.elem in ("i32", "i64", "index")

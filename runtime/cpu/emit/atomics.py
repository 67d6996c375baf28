"""Atomic read-modify-write and compare-and-swap of scalars and tensors, sequentially consistent whatever is asked."""

from __future__ import annotations

from collections.abc import Callable

from ..analysis.placement import Place
from ..ttir.ir import Op
from .checks import guarded
from .ctypes import c_type, c_unsigned, narrow, widen
from .emitter import Emitter, emits
from .nest import At, Index, Loop, Nest, flat

_FETCH = {"add": "add", "and": "and", "or": "or", "xor": "xor"}


@emits("tt.atomic_rmw")
def atomic_rmw(e: Emitter, op: Op) -> None:
    pointer, value, *rest = op.operands

    def old(nest: Nest, index: Index) -> tuple[str, str]:
        address, operand = nest.at(pointer, index).code, nest.at(value, index).code
        allowed = nest.at(rest[0], index).code if rest else "1"
        return _read_modify_write(op.attrs["words"][0], value.type.elem, address, operand), allowed

    _each_element(e, op, old)


@emits("tt.atomic_cas")
def atomic_cas(e: Emitter, op: Op) -> None:
    elem = c_type(op.result.type.elem)

    def old(nest: Nest, index: Index) -> tuple[str, str]:
        address, compare, value = (nest.at(operand, index).code for operand in op.operands)
        swap = f"{elem} old = {compare}, next = {value}; cp_compare_exchange({address}, &old, &next); old;"
        return f"({{ {swap} }})", "1"

    _each_element(e, op, old)


def _each_element(e: Emitter, op: Op, old: Callable[[Nest, Index], tuple[str, str]]) -> None:
    """Run the atomic that `old` returns (expression of the old value, condition) for every element in order."""
    shape, result, tensor = op.operands[0].type.dims, op.result, op.result.type.is_tensor
    target = e.allocate(result) if result.uses or not tensor else None
    if target is None:
        e.place[result] = Place.ARRAY
    nest = Nest(e, len(shape))
    names = [e.fresh("i") for _ in shape]
    index = tuple(At(name, d + 1) for d, name in enumerate(names))
    expression, allowed = old(nest, index)
    into = "" if target is None else f"{target}[{flat(shape, index)}] = " if tensor else f"{target} = "
    otherwise = f" else {into}0;" if into and allowed != "1" else ""
    access = guarded(nest, op, index, f"{into}{expression};")
    nest.levels[-1].append(f"if ({allowed}) {{ {access} }}{otherwise}")
    # several elements may hit one address: the loops must not be declared free of dependences
    loops = [Loop(name, size) for name, size in zip(names, shape, strict=True)]
    e.write("{", *nest.loops(loops, independent=False), "}")


def _read_modify_write(kind: str, elem: str, address: str, operand: str) -> str:
    """Statement expression that returns the old value."""
    if kind in _FETCH and elem[0] == "i":
        return f"__atomic_fetch_{kind}({address}, {operand}, __ATOMIC_SEQ_CST)"
    u = f"({c_unsigned(elem)})" if kind[0] == "u" else ""
    combined = {
        "exch": operand,
        "fadd": narrow(elem, f"{widen(elem, 'old')} + {widen(elem, 'operand')}"),
        "max": "old > operand ? old : operand",
        "min": "old < operand ? old : operand",
        "umax": f"{u}old > {u}operand ? old : operand",
        "umin": f"{u}old < {u}operand ? old : operand",
    }[kind]
    t = c_type(elem)
    return (
        f"({{ {t} old, next; {t} const operand = {operand}; {t} *const where = {address}; "
        "__atomic_load(where, &old, __ATOMIC_RELAXED); "
        f"do {{ next = {combined}; }} while (!cp_compare_exchange(where, &old, &next)); old; }})"
    )

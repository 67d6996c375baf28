"""Scalars, loads, stores and atomics."""

from __future__ import annotations

from ..analysis.placement import Place
from ..ttir.ir import Op
from .checks import guarded
from .ctypes import c_type, c_unsigned, literal, narrow, widen
from .emitter import Emitter, emits
from .nest import ZERO, At, Index, Loop, Nest, flat


@emits("arith.constant", "ub.poison")
def constant(e: Emitter, op: Op) -> None:
    if not op.result.type.is_tensor:
        e.names[op.result] = literal(op)


@emits("tt.get_program_id", "tt.get_num_programs")
def program(e: Emitter, op: Op) -> None:
    prefix = "pid" if op.name == "tt.get_program_id" else "grid"
    e.names[op.result] = prefix + str("xyz".index(op.attrs["words"][0]))


@emits("tt.unsplat")
def unsplat(e: Emitter, op: Op) -> None:
    nest = Nest(e, 0)
    element = nest.at(op.operands[0], tuple(ZERO for _ in op.operands[0].type.dims))
    e.write(*nest.levels[0])
    e.define(op.result, element.code)


@emits("tt.load")
def load(e: Emitter, op: Op) -> None:
    if op.result.type.is_tensor:
        if op.result in e.placement.stored:
            e.store_inline(op.result)
        return
    pointer, *rest = (e.names[operand] for operand in op.operands)
    elem = c_type(op.result.type.elem)
    if e.checks:
        e.write(f"if ({rest[0]}) {e.checks.scalar(e, op)}" if rest else e.checks.scalar(e, op))
    code = f"*({pointer})"
    if op.attrs.get("isVolatile") == "true":
        code = f"*(volatile {elem} *)({pointer})"
    if rest:
        code = f"({rest[0]}) ? {code} : {rest[1] if len(rest) > 1 else f'({elem})0'}"
    e.define(op.result, code)


@emits("tt.store")
def store(e: Emitter, op: Op) -> None:
    pointer, value, *rest = op.operands
    mask = rest[0] if rest else None
    if not pointer.type.is_tensor:
        condition = f"if ({e.names[mask]}) " if mask else ""
        access = f"*({e.names[pointer]}) = {e.scalar(value)};"
        if e.checks:
            access = f"{{ {e.checks.scalar(e, op, e.scalar(value))} {access} }}"
        e.write(condition + access)
        return

    def build(nest: Nest, index: Index) -> None:
        element, address = nest.at(value, index).code, nest.at(pointer, index).code
        allowed = nest.mask(mask, index) if mask else None
        condition = f"if ({allowed.code}) " if allowed is not None else ""
        nest.levels[-1].append(condition + guarded(nest, op, index, f"*({address}) = {element};", element))

    if e.checks:
        e.write("check->instance++;")
    e.loop_nest(pointer.type.dims, build, None if e.checks else e.placement.strides.innermost(pointer))


_FETCH = {"add": "add", "and": "and", "or": "or", "xor": "xor"}


@emits("tt.atomic_rmw")
def atomic_rmw(e: Emitter, op: Op) -> None:
    pointer, value, *rest = op.operands
    shape, result, tensor = pointer.type.dims, op.result, pointer.type.is_tensor
    target = e.allocate(result) if result.uses or not tensor else None
    if tensor and target is None:
        e.place[result] = Place.ARRAY

    def build(nest: Nest, index: Index) -> None:
        address, operand = nest.at(pointer, index).code, nest.at(value, index).code
        mask = nest.at(rest[0], index).code if rest else "1"
        old = _atomic(op.attrs["words"][0], value.type.elem, address, operand)
        into = "" if target is None else f"{target}[{flat(shape, index)}] = " if tensor else f"{target} = "
        otherwise = f" else {into}0;" if into else ""
        nest.levels[-1].append(f"if ({mask}) {{ {guarded(nest, op, index, f'{into}{old};')} }}{otherwise}")

    # several elements may hit one address: the loop must not be declared free of dependences
    nest = Nest(e, len(shape))
    names = [e.fresh("i") for _ in shape]
    build(nest, tuple(At(name, d + 1) for d, name in enumerate(names)))
    loops = [Loop(name, size) for name, size in zip(names, shape, strict=True)]
    e.write("{", *nest.loops(loops, independent=False), "}")


def _atomic(kind: str, elem: str, address: str, operand: str) -> str:
    """Statement expression that returns the old value; sequentially consistent whatever the kernel asks for."""
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


@emits("tt.atomic_cas")
def atomic_cas(e: Emitter, op: Op) -> None:
    pointer, compare, value = (e.names[operand] for operand in op.operands)
    t = c_type(op.result.type.elem)
    if e.checks:
        e.write(e.checks.scalar(e, op))
    e.define(
        op.result,
        f"({{ {t} old = {compare}, next = {value}; cp_compare_exchange({pointer}, &old, &next); old; }})",
    )


@emits("tt.print", "tt.assert", "llvm.intr.assume", "tt.debug_barrier", "gpu.barrier", "ttg.barrier")
def no_code(e: Emitter, op: Op) -> None:
    """Device print and assert are accepted and do nothing; a program is one thread, so barriers have no effect."""

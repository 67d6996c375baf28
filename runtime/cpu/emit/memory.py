"""Scalars, loads and stores."""

from __future__ import annotations

from ..ttir.ir import Op
from .ctypes import c_type, literal
from .emitter import Emitter, emits
from .nest import ZERO, Index, Nest
from .reduce import sums_down_columns
from .stores import store_element
from .tiles import fetch_first


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
        fetch_first(e, op)
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
    if op in e.placement.groups:
        sums_down_columns(e, e.placement.groups[op])
        return
    if e.checks:
        e.write("check->instance++;")
    if not pointer.type.is_tensor:
        condition = f"if ({e.names[mask]}) " if mask else ""
        access = f"*({e.names[pointer]}) = {e.scalar(value)};"
        if e.checks:
            access = f"{{ {e.checks.scalar(e, op, e.scalar(value))} {access} }}"
        e.write(condition + access)
        return

    def build(nest: Nest, index: Index) -> None:
        nest.levels[-1] += store_element(nest, op, index)

    e.loop_nest(pointer.type.dims, build, None if e.checks else e.placement.strides.innermost(pointer))


@emits("llvm.intr.assume", "tt.debug_barrier", "gpu.barrier", "ttg.barrier")
def no_code(e: Emitter, op: Op) -> None:
    """A program is one thread, so barriers have no effect."""

"""Control flow: loops with carried values, conditionals, early returns."""

from __future__ import annotations

from ..analysis.affine import constant_int
from ..analysis.placement import SHAPE_OPS, Place
from ..analysis.row_loops import shape_of_rows
from ..ttir.ir import Block, Op, Value
from .ctypes import c_type, c_unsigned, literal
from .emitter import Emitter, emits
from .nest import At, Index, Loop, Nest, flat
from .tiles import begin_round


@emits("tt.return")
def return_(e: Emitter, op: Op) -> None:
    e.write("return;")


@emits("scf.for")
def for_loop(e: Emitter, op: Op) -> None:
    body = op.regions[0]
    induction, *carried = body.args
    low, high, step = (e.names[v] for v in op.operands[:3])
    for arg, result, initial in zip(carried, op.results, op.operands[3:], strict=True):
        _enter(e, op, arg, result, initial)
    _mark_accumulators(e, body, carried)
    e.names[induction] = i = e.fresh("iv")
    ctype = c_type(induction.type.elem)
    if op.attrs["unsigned"]:
        ctype = c_unsigned(induction.type.elem)
    if any(o.name == "tt.load" and len(o.operands) > 1 and not o.result.type.is_tensor for o in body.ops):
        e.write("#pragma GCC unroll 1")  # see Loop.head
    head = f"for ({ctype} {i} = {low}; {i} < {high}; {i} += {step})"
    if op in e.placement.row_loops:
        _by_rows(e, op, head)
        return
    with e.scope(head):
        begin_round(e, op, i)
        e.block(body, skip_terminator=True)
        parallel_assign(e, carried, body.terminator.operands)


def _by_rows(e: Emitter, op: Op, head: str) -> None:
    """A loop over pieces of rows, all of it for one row after another (analysis/row_loops.py)."""
    body, (rows, width) = op.regions[0], shape_of_rows(op, e.placement.inductions)
    row, column = e.fresh("row"), e.fresh("i")
    pairs = list(zip(body.args[1:], body.terminator.operands, strict=True))
    grown = [arg for arg, _ in pairs if e.place[arg] is Place.INDUCTION]
    matrices = [(arg, value) for arg, value in pairs if e.place[arg] is Place.ARRAY and _moves(e, arg, value)]

    def text(nest: Nest) -> list[str]:
        _assign_together(e, nest, (At(row, 0), At(column, 1)), matrices)
        return nest.loops([Loop(column, width)])

    with e.scope(f"for (int {row} = 0; {row} < {rows}; {row}++)"):
        e.write(*(f"{e.names[arg]} = 0;" for arg in grown))
        with e.scope(head):
            e.block(body, skip_terminator=True)
            e.versioned(1, text)
            e.write(*(f"{e.names[arg]} += {_step(e, arg)};" for arg in grown))


def _enter(e: Emitter, op: Op, arg: Value, result: Value, initial: Value) -> None:
    """Storage and first value of a carried value; the loop's result is the same storage."""
    if e.place[arg] is Place.ARRAY and e.placement.takes_over(initial, op):
        e.names[arg] = e.names[result] = e.names[initial]
        e.place[result] = Place.ARRAY
        return
    if e.place[arg] is Place.INDUCTION:
        e.names[arg] = e.fresh("offset")
        e.declare(f"int64_t {e.names[arg]} = 0;")
        e.write(f"{e.names[arg]} = 0;")
    else:
        e.allocate(arg)
        e.assign(arg, initial)
    e.names[result], e.place[result] = e.names[arg], e.place[arg]


def _mark_accumulators(e: Emitter, body: Block, carried: list[Value]) -> None:
    """A carried tensor whose only use is the accumulator of the dot that replaces it is updated in place."""
    for arg, value in zip(carried, body.terminator.operands, strict=True):
        is_dot = value.defining == "tt.dot" and value.op.block is body and value.op.operands[2] is arg
        if is_dot and e.place[arg] is Place.ARRAY and len(arg.uses) == 1:
            e.in_place_accumulators[value.op] = arg


@emits("scf.if")
def if_else(e: Emitter, op: Op) -> None:
    for result in op.results:
        e.allocate(result)
    for k, region in enumerate(op.regions):
        with e.scope("else" if k else f"if ({e.names[op.operands[0]]})"):
            e.block(region, skip_terminator=True)
            for result, value in zip(op.results, region.terminator.operands, strict=True):
                e.assign(result, value)


@emits("scf.while")
def while_loop(e: Emitter, op: Op) -> None:
    before, after = op.regions
    for arg, initial in zip(before.args, op.operands, strict=True):
        e.allocate(arg)
        e.assign(arg, initial)
    for arg, result in zip(after.args, op.results, strict=True):
        e.allocate(arg)
        e.names[result], e.place[result] = e.names[arg], e.place[arg]
    with e.scope("for (;;)"):
        e.block(before, skip_terminator=True)
        condition, *passed = before.terminator.operands
        # the condition is read first: passing values on may overwrite what it was computed from
        again = e.fresh("again")
        e.write(f"bool const {again} = {e.names[condition]};")
        parallel_assign(e, after.args, passed)
        e.write(f"if (!{again}) break;")
        e.block(after, skip_terminator=True)
        parallel_assign(e, before.args, after.terminator.operands)


@emits("cf.br", "cf.cond_br")
def branch(e: Emitter, op: Op) -> None:
    if op.name == "cf.br":
        _jump(e, op.successors[0][0], op.operands)
        return
    condition, *passed = op.operands
    taken = op.successors[0][1]
    with e.scope(f"if ({e.names[condition]})"):
        _jump(e, op.successors[0][0], passed[:taken])
    with e.scope("else"):
        _jump(e, op.successors[1][0], passed[taken:])


def _jump(e: Emitter, target: Block, values: list[Value]) -> None:
    parallel_assign(e, target.args, values)
    e.write(f"goto L{e.function.blocks.index(target)};")


# ---- parallel assignment


def parallel_assign(e: Emitter, targets: list[Value], values: list[Value]) -> None:
    """targets[k] <- values[k], all values read before any target changes."""
    scalars = _read_scalars(e, targets, values)
    arrays = [(t, v) for t, v in zip(targets, values, strict=True) if e.place[t] is Place.ARRAY and _moves(e, t, v)]
    fused, copied = _split_hazards(e, arrays)
    copies = [(target, value, e.array(target.type.elem, target.type.numel)) for target, value in copied]
    for _, value, name in copies:
        e.materialise(value, name)
    for shape in dict.fromkeys(target.type.dims for target, _ in fused):
        _fused_nest(e, shape, [(t, v) for t, v in fused if t.type.dims == shape])
    for target, _, name in copies:
        e.copy(e.names[target], name, target)
    for target in targets:
        if e.place[target] is Place.INDUCTION:
            e.write(f"{e.names[target]} += {_step(e, target)};")
    for target, name in scalars:
        e.write(f"{e.names[target]} = {name};")


def _moves(e: Emitter, target: Value, value: Value) -> bool:
    return target is not value and e.names.get(value) != e.names[target]


def _step(e: Emitter, target: Value) -> str:
    step = e.placement.inductions[target].step
    known = constant_int(step)
    if known is not None:
        return str(known)
    return literal(step.op) if step.type.is_tensor else e.names[step]


def _read_scalars(e: Emitter, targets: list[Value], values: list[Value]) -> list[tuple[Value, str]]:
    read = []
    for target, value in zip(targets, values, strict=True):
        if e.place[target] is Place.SCALAR and e.names[value] != e.names[target]:
            name = e.fresh("s")
            e.write(f"{c_type(target.type.elem)} const {name} = {e.scalar(value)};")
            read.append((target, name))
    return read


Pairs = list[tuple[Value, Value]]


def _split_hazards(e: Emitter, pairs: Pairs) -> tuple[Pairs, Pairs]:
    """Pairs that one loop nest can assign element by element, and pairs that need a copy first.

    Safe: every read of an assigned array is at the element being written, in a nest of the same shape."""
    targets = {target for target, _ in pairs}
    reads = {target: _reads(e, value, targets) for target, value in pairs}
    names = {e.names[target] for target in targets}
    fused, copied = [], []
    for target, value in pairs:
        own = all(same and read.type.dims == target.type.dims for read, same in reads[target].items())
        readers = [other for other, _ in pairs if other is not target and target in reads[other]]
        others = all(reads[other][target] and other.type.dims == target.type.dims for other in readers)
        is_target = e.place[value] is Place.ARRAY and e.names[value] in names
        (fused if own and others and not is_target else copied).append((target, value))
    return fused, copied


def _reads(e: Emitter, value: Value, targets: set[Value]) -> dict[Value, bool]:
    """Assigned arrays that evaluating `value` reads, and whether each is read only at the element evaluated."""
    found: dict[Value, bool] = {}
    _collect_reads(e, value, {e.names[t]: t for t in targets}, True, found, set())
    return found


def _collect_reads(
    e: Emitter, value: Value, storage: dict[str, Value], same: bool, found: dict[Value, bool], visited: set
) -> None:
    if (value, same) in visited:
        return
    visited.add((value, same))
    place = e.place[value]
    if place is Place.ARRAY:
        target = storage.get(e.names[value])
        if target is not None:
            found[target] = found.get(target, True) and same
    elif place is Place.INDUCTION:
        _collect_reads(e, e.placement.inductions[value].initial, storage, same, found, visited)
    elif place is Place.INLINE:
        for operand in value.op.operands:
            _collect_reads(e, operand, storage, same and value.defining not in SHAPE_OPS, found, visited)


def _fused_nest(e: Emitter, shape: tuple[int, ...], pairs: Pairs) -> None:
    e.loop_nest(shape, lambda nest, index: _assign_together(e, nest, index, pairs))


def _assign_together(e: Emitter, nest: Nest, index: Index, pairs: Pairs) -> None:
    """One element of every target, after the elements of all values have been evaluated."""
    depth = len(nest.levels) - 1
    elements = [nest.temporary(depth, c_type(t.type.elem), nest.at(v, index).code) for t, v in pairs]
    for (target, _), element in zip(pairs, elements, strict=True):
        nest.levels[depth].append(f"{e.names[target]}[{flat(target.type.dims, index)}] = {element.code};")

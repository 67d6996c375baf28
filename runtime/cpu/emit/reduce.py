"""tt.reduce and tt.scan with any combine function.

The order of a reduction depends only on the length N of the axis, the element types and whether a dimension longer
than one follows the axis:

* nothing follows: L = min(N, 64) lanes (32 for 64-bit elements); lane j combines elements j, j + L, j + 2L, ...
  ascending, then lanes are combined pairwise, j with j + s for s = L/2, L/4, ... 1;
* something follows: every output combines its elements in ascending order.

So a row's result does not depend on the number of rows, and not on masks, threads or surrounding code.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..analysis.placement import Place
from ..ttir.ir import BITS, Block, Op
from .ctypes import c_type
from .emitter import Emitter, emits
from .nest import ZERO, At, Index, Loop, Nest, flat

LANES, LANES_64BIT = 64, 32
#: Columns accumulated in registers at a time when the axis is not the last dimension.
COLUMNS = 64
#: Lanes of one named vector accumulator.
VECTOR = 16


def combine(e: Emitter, region: Block, left: list[str], right: list[str]) -> tuple[list[str], list[str]]:
    """Statements and results of the combine function applied to two elements (one C expression per operand)."""
    return e.apply(region, left + right)


def assignments(targets: list[str], values: list[str], types: list[str], e: Emitter) -> list[str]:
    """Parallel assignment: all values are computed before any target changes."""
    if len(targets) == 1:
        return [f"{targets[0]} = {values[0]};"]
    names = [e.fresh("r") for _ in values]
    reads = [f"{t} const {n} = {v};" for t, n, v in zip(types, names, values, strict=True)]
    return reads + [f"{t} = {n};" for t, n in zip(targets, names, strict=True)]


@emits("tt.reduce")
def reduce(e: Emitter, op: Op) -> None:
    shape, axis = op.operands[0].type.dims, op.attrs["axis"]
    for result in op.results:
        e.allocate(result)
    updates = {value for value, reduction in e.placement.fused_updates.items() if reduction is op}
    along_lanes = all(size == 1 for size in shape[axis + 1 :])

    def build(nest: Nest) -> list[str]:
        nest.updates = updates
        return _along_lanes(e, nest, op, axis) if along_lanes else _down_columns(e, nest, op, axis)

    e.versioned(axis + 2 if along_lanes else len(shape) + 1, build)
    for value in updates:
        e.names[value], e.place[value] = e.names[e.placement.updates[value]], Place.ARRAY


def _store(e: Emitter, op: Op, index: Index, values: list[str]) -> list[str]:
    lines = []
    for result, value in zip(op.results, values, strict=True):
        target = e.names[result]
        position = f"[{flat(result.type.dims, index)}]" if e.place[result] is Place.ARRAY else ""
        lines.append(f"{target}{position} = {value};")
    return lines


@dataclass(frozen=True)
class _Accumulation:
    """Lines that declare accumulators for some lanes, take the first elements, combine further ones, and finish.

    After `finish` the result of lane j is `at_lane` (one expression per operand of the reduction)."""

    declare: list[str]
    first: list[str]
    combine: list[str]
    finish: list[str]
    at_lane: list[str]


def _accumulation(e: Emitter, op: Op, lanes: Loop, masked: bool, body: list[str], elements: list[str]) -> _Accumulation:
    """`body` computes the `elements` of a lane, `masked` says that it loads under a mask."""
    if _is_float_sum(op) and lanes.high % VECTOR == 0:
        return _vector_sum(e, lanes, masked, body, elements[0])
    lane = lanes.var
    types = [c_type(operand.type.elem) for operand in op.operands]
    names = [e.fresh("acc") for _ in op.operands]
    at_lane = [f"{name}[{lane}]" for name in names]
    statements, values = combine(e, op.regions[0], at_lane, elements)
    start = [f"{a} = {x};" for a, x in zip(at_lane, elements, strict=True)]
    return _Accumulation(
        declare=[f"{t} {n}[{lanes.high}] __attribute__((aligned(64)));" for t, n in zip(types, names, strict=True)],
        first=_lane_loop(lanes, masked, body + start),
        combine=_lane_loop(lanes, masked, body + statements + assignments(at_lane, values, types, e)),
        finish=[],
        at_lane=at_lane,
    )


def _is_float_sum(op: Op) -> bool:
    region = op.regions[0]
    return (
        len(op.operands) == 1
        and op.operands[0].type.elem == "f32"
        and [o.name for o in region.ops[:-1]] == ["arith.addf"]
    )


def _vector_sum(e: Emitter, lanes: Loop, masked: bool, body: list[str], element: str) -> _Accumulation:
    """Sums kept in named vectors: gcc does not always keep an array of accumulators in registers."""
    part, vectors, lane = e.fresh("part"), [e.fresh("acc") for _ in range(lanes.high // VECTOR)], lanes.var
    chunks = [f"*(cp_f32x{VECTOR} *)({part} + {k * VECTOR})" for k in range(len(vectors))]
    loop = _lane_loop(lanes, masked, [*body, f"{part}[{lane}] = {element};"])
    return _Accumulation(
        declare=[f"float {part}[{lanes.high}] __attribute__((aligned(64)));", f"cp_f32x{VECTOR} {', '.join(vectors)};"],
        first=loop + [f"{v} = {c};" for v, c in zip(vectors, chunks, strict=True)],
        combine=loop + [f"{v} = {v} + {c};" for v, c in zip(vectors, chunks, strict=True)],
        finish=[f"{c} = {v};" for v, c in zip(vectors, chunks, strict=True)],
        at_lane=[f"{part}[{lane}]"],
    )


def _along_lanes(e: Emitter, nest: Nest, op: Op, axis: int) -> list[str]:
    shape = op.operands[0].type.dims
    length, outer = shape[axis], shape[:axis]
    widest = max(BITS[operand.type.elem] for operand in op.operands)
    lanes = min(length, LANES_64BIT if widest == 64 else LANES)
    outer_names = [e.fresh("i") for _ in outer]
    chunk, lane = e.fresh("k"), e.fresh("j")
    outer_index = tuple(At(name, d + 1) for d, name in enumerate(outer_names))
    tail = tuple(ZERO for _ in shape[axis + 1 :])
    index = (*outer_index, At(f"({chunk} + {lane})", axis + 1), *tail)
    nest.chunk, nest.chunk_lanes = At(chunk, axis + 1), lanes
    elements = [nest.at(operand, index).code for operand in op.operands]
    body, nest.levels[axis + 1] = nest.levels[axis + 1], []
    acc = _accumulation(e, op, Loop(lane, lanes), nest.masked, body, elements)
    lines = [*acc.declare, f"{{ const int {chunk} = 0;", *nest.chunk_lines, *acc.first, "}"]
    if lanes < length:
        lines.append(f"for (int {chunk} = {lanes}; {chunk} < {length}; {chunk} += {lanes}) {{")
        lines += [*nest.chunk_lines, *acc.combine, "}"]
    lines += [*acc.finish, *_halve(e, op, acc.at_lane, lane, lanes)]
    lines += _store(e, op, (*outer_index, *tail), [a.replace(f"[{lane}]", "[0]") for a in acc.at_lane])
    nest.levels[axis] += lines
    return nest.loops([Loop(name, size) for name, size in zip(outer_names, outer, strict=True)], independent=False)


def _halve(e: Emitter, op: Op, at_lane: list[str], lane: str, lanes: int) -> list[str]:
    """Combine lanes pairwise until lane 0 holds the result."""
    types = [c_type(operand.type.elem) for operand in op.operands]
    lines, step = [], lanes // 2
    while step >= 1:
        partner = [a.replace(f"[{lane}]", f"[{lane} + {step}]") for a in at_lane]
        statements, values = combine(e, op.regions[0], at_lane, partner)
        lines += [f"for (int {lane} = 0; {lane} < {step}; {lane}++) {{", *statements]
        lines += [*assignments(at_lane, values, types, e), "}"]
        step //= 2
    return lines


def _lane_loop(lanes: Loop, masked: bool, body: list[str]) -> list[str]:
    return [*lanes.head(independent=True, masked=masked), *body, "}"]


def _down_columns(e: Emitter, nest: Nest, op: Op, axis: int) -> list[str]:
    """Accumulate rows: blocks of columns of the last dimension stay in registers while the axis runs."""
    shape = op.operands[0].type.dims
    width = min(shape[-1], COLUMNS)
    others = [d for d in range(len(shape) - 1) if d != axis]
    names = {d: e.fresh("i") for d in range(len(shape) - 1)}
    base, lane, row = e.fresh("p"), e.fresh("j"), names[axis]
    # loop order: other dimensions, column block, axis, lane
    level = {d: k + 1 for k, d in enumerate(others)}
    level[axis] = len(others) + 2
    last = At(f"({base} + {lane})", len(others) + 3)
    index = tuple(At(names[d], level[d]) if d in names else last for d in range(len(shape)))
    elements = [nest.at(operand, index).code for operand in op.operands]
    *outside, per_block, per_row, body = nest.levels
    acc = _accumulation(e, op, Loop(lane, width), nest.masked, body, elements)
    target = index[:axis] + index[axis + 1 :]
    block = [
        f"for (int {base} = 0; {base} < {shape[-1]}; {base} += {width}) {{",
        *per_block,
        *acc.declare,
        *[f"{{ const int {row} = 0;", *per_row, *acc.first, "}"],
        *[f"for (int {row} = 1; {row} < {shape[axis]}; {row}++) {{", *per_row, *acc.combine, "}"],
        *acc.finish,
        *_lane_loop(Loop(lane, width), False, _store(e, op, target, acc.at_lane)),
        "}",
    ]
    nest.levels = outside
    nest.levels[-1] += block
    return nest.loops([Loop(names[d], shape[d]) for d in others], independent=False)


@emits("tt.scan")
def scan(e: Emitter, op: Op) -> None:
    """Sequential along the axis: element i combines (result i-1, element i); reverse runs from the end."""
    shape, axis, reverse = op.operands[0].type.dims, op.attrs["axis"], op.attrs["reverse"]
    for result, source in zip(op.results, op.operands, strict=True):
        e.allocate(result)
        e.materialise(source, e.names[result])
    names = [e.fresh("i") for _ in shape]
    here = tuple(At(name, 0) for name in names)
    before = tuple(At(f"({n} {'+' if reverse else '-'} 1)", 0) if d == axis else At(n, 0) for d, n in enumerate(names))
    current = [f"{e.names[r]}[{flat(shape, here)}]" for r in op.results]
    previous = [f"{e.names[r]}[{flat(shape, before)}]" for r in op.results]
    statements, values = combine(e, op.regions[0], previous, current)
    types = [c_type(r.type.elem) for r in op.results]
    e.write("{")
    # the axis runs outside the other dimensions, so these stay free to vectorise
    for d in [axis, *(d for d in range(len(shape)) if d != axis)]:
        n = names[d]
        if d != axis:
            e.write(f"for (int {n} = 0; {n} < {shape[d]}; {n}++) {{")
        elif reverse:
            e.write(f"for (int {n} = {shape[d] - 2}; {n} >= 0; {n}--) {{")
        else:
            e.write(f"for (int {n} = 1; {n} < {shape[d]}; {n}++) {{")
    e.write(*statements, *assignments(current, values, types, e), "}" * (len(shape) + 1))

"""tt.reduce and tt.scan with any combine function.

The order of a reduction depends only on the length N of the axis, the element types and whether a dimension longer
than one follows the axis:

* nothing follows: L = min(N, 64) lanes (32 for 64-bit elements); lane j combines elements j, j + L, j + 2L, ...
  ascending, then lanes are combined pairwise, j with j + s for s = L/2, L/4, ... 1;
* something follows: every output combines its elements in ascending order.

So a row's result does not depend on the number of rows, and not on masks, threads or surrounding code.
"""

from __future__ import annotations

from ..analysis.placement import Place
from ..ttir.ir import BITS, Block, Op, Value
from .ctypes import c_type, literal
from .elementwise import expression
from .emitter import Emitter, emits
from .nest import ZERO, At, Index, Loop, Nest, flat

LANES, LANES_64BIT = 64, 32
#: Columns accumulated in registers at a time when the axis is not the last dimension.
COLUMNS = 64


def combine(e: Emitter, region: Block, left: list[str], right: list[str]) -> tuple[list[str], list[str]]:
    """Statements and results of the combine function applied to two elements (one C expression per operand)."""
    names: dict[Value, str] = dict(zip(region.args, left + right, strict=True))
    statements = []
    for op in region.ops[:-1]:
        if op.name == "arith.constant":
            names[op.result] = literal(op)
            continue
        args = [names.get(operand) or e.names[operand] for operand in op.operands]
        names[op.result] = e.fresh("c")
        statements.append(f"{c_type(op.result.type.elem)} const {names[op.result]} = {expression(op, args)};")
    results = [names.get(operand) or e.names[operand] for operand in region.terminator.operands]
    return statements, results


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
    if all(size == 1 for size in shape[axis + 1 :]):
        depth = axis + 2
        e.versioned(depth, lambda nest: _along_lanes(e, nest, op, axis))
    else:
        depth = len(shape) + 1
        e.versioned(depth, lambda nest: _down_columns(e, nest, op, axis))


def _store(e: Emitter, op: Op, index: Index, values: list[str]) -> list[str]:
    lines = []
    for result, value in zip(op.results, values, strict=True):
        target = e.names[result]
        position = f"[{flat(result.type.dims, index)}]" if e.place[result] is Place.ARRAY else ""
        lines.append(f"{target}{position} = {value};")
    return lines


def _along_lanes(e: Emitter, nest: Nest, op: Op, axis: int) -> list[str]:
    shape = op.operands[0].type.dims
    length, outer = shape[axis], shape[:axis]
    types = [c_type(operand.type.elem) for operand in op.operands]
    widest = max(BITS[operand.type.elem] for operand in op.operands)
    lanes = min(length, LANES_64BIT if widest == 64 else LANES)
    outer_names = [e.fresh("i") for _ in outer]
    chunk, lane = e.fresh("k"), e.fresh("j")
    outer_index = tuple(At(name, d + 1) for d, name in enumerate(outer_names))
    tail = tuple(ZERO for _ in shape[axis + 1 :])
    index = (*outer_index, At(f"({chunk} + {lane})", axis + 1), *tail)
    elements = [nest.at(operand, index).code for operand in op.operands]
    body, nest.levels[axis + 1] = nest.levels[axis + 1], []
    accumulators = [e.fresh("acc") for _ in op.operands]
    at_lane = [f"{a}[{lane}]" for a in accumulators]

    lines = [f"{t} {a}[{lanes}] __attribute__((aligned(64)));" for t, a in zip(types, accumulators, strict=True)]
    first = [f"{a} = {x};" for a, x in zip(at_lane, elements, strict=True)]
    lines += [f"{{ const int {chunk} = 0;", *_lane_loop(lane, lanes, body + first), "}"]
    if lanes < length:
        statements, values = combine(e, op.regions[0], at_lane, elements)
        lines.append(f"for (int {chunk} = {lanes}; {chunk} < {length}; {chunk} += {lanes}) {{")
        lines += _lane_loop(lane, lanes, body + statements + assignments(at_lane, values, types, e))
        lines.append("}")
    step = lanes // 2
    while step >= 1:
        partner = [f"{a}[{lane} + {step}]" for a in accumulators]
        statements, values = combine(e, op.regions[0], at_lane, partner)
        lines += [f"for (int {lane} = 0; {lane} < {step}; {lane}++) {{", *statements]
        lines += [*assignments(at_lane, values, types, e), "}"]
        step //= 2
    lines += _store(e, op, (*outer_index, *tail), [f"{a}[0]" for a in accumulators])
    nest.levels[axis] += lines
    return nest.loops([Loop(name, size) for name, size in zip(outer_names, outer, strict=True)], independent=False)


def _lane_loop(lane: str, lanes: int, body: list[str]) -> list[str]:
    return ["#pragma GCC ivdep", f"for (int {lane} = 0; {lane} < {lanes}; {lane}++) {{", *body, "}"]


def _down_columns(e: Emitter, nest: Nest, op: Op, axis: int) -> list[str]:
    """Accumulate rows: blocks of columns of the last dimension stay in registers while the axis runs."""
    shape = op.operands[0].type.dims
    types = [c_type(operand.type.elem) for operand in op.operands]
    width = min(shape[-1], COLUMNS)
    others = [d for d in range(len(shape) - 1) if d != axis]
    names = {d: e.fresh("i") for d in range(len(shape) - 1)}
    base, lane = e.fresh("p"), e.fresh("j")
    # loop order: other dimensions, column block, axis, lane
    level = {d: k + 1 for k, d in enumerate(others)}
    level[axis] = len(others) + 2
    last = At(f"({base} + {lane})", len(others) + 3)
    index = tuple(At(names[d], level[d]) if d in names else last for d in range(len(shape)))
    elements = [nest.at(operand, index).code for operand in op.operands]
    accumulators = [e.fresh("acc") for _ in op.operands]
    at_lane = [f"{a}[{lane}]" for a in accumulators]
    statements, values = combine(e, op.regions[0], at_lane, elements)
    hoisted, per_row, body = nest.levels[len(others) + 1], nest.levels[len(others) + 2], nest.levels[len(others) + 3]

    first = [f"{a} = {x};" for a, x in zip(at_lane, elements, strict=True)]
    row = names[axis]
    lines = [
        *hoisted,
        *(f"{t} {a}[{width}] __attribute__((aligned(64)));" for t, a in zip(types, accumulators, strict=True)),
    ]
    lines += [f"{{ const int {row} = 0;", *per_row, *_lane_loop(lane, width, body + first), "}"]
    lines += [f"for (int {row} = 1; {row} < {shape[axis]}; {row}++) {{", *per_row]
    lines += [*_lane_loop(lane, width, body + statements + assignments(at_lane, values, types, e)), "}"]
    target = index[:axis] + index[axis + 1 :]
    lines += _lane_loop(lane, width, _store(e, op, target, at_lane))
    block = [f"for (int {base} = 0; {base} < {shape[-1]}; {base} += {width}) {{", *lines, "}"]
    nest.levels = nest.levels[: len(others) + 1]
    nest.levels[len(others)] = nest.levels[len(others)] + block
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

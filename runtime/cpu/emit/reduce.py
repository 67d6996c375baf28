"""tt.reduce and tt.scan with any combine function.

The order of a reduction depends only on the length N of the axis, the element types and whether a dimension longer
than one follows the axis:

* nothing follows: L = min(N, 64) lanes (32 for 64-bit elements); lane j combines elements j, j + L, j + 2L, ...
  ascending, then lanes are combined pairwise, j with j + s for s = L/2, L/4, ... 1;
* something follows: every output combines its elements in ascending order.

Ascending order means `combine(what came before, element)`. The sign of a zero can depend on it where a maximum or
minimum meets both: then what came before stays.

So a row's result does not depend on the number of rows, and not on masks, threads or surrounding code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..analysis.combine import sole_operation, sums_floats
from ..analysis.placement import Place
from ..analysis.together import VECTOR, Group
from ..ttir.ir import BITS, Block, Op, Value
from .ctypes import c_type
from .emitter import Emitter, emits
from .nest import ZERO, At, Index, Loop, Nest, flat
from .rows import Lanes, element_beyond, end_of_row, fetch_results, store_lanes
from .stores import store_element

LANES, LANES_64BIT = 64, 32
#: Columns accumulated in registers at a time when the axis is not the last dimension.
COLUMNS = 64
#: Of so many sums at once half as many, or gcc spills them.
MANY_SUMS = 3


def combine(e: Emitter, region: Block, left: list[str], right: list[str]) -> tuple[list[str], list[str]]:
    """Statements and results of the combine function applied to two elements (one C expression per operand)."""
    return e.apply(region, left + right)


def accumulate(e: Emitter, op: Op, held: list[str], elements: list[str]) -> tuple[list[str], list[str]]:
    """Statements and results of combining what accumulators hold with the elements that follow.

    Of equal numbers, zeros of both signs, an extreme keeps the earlier: vmaxps and vminps do so."""
    if sole_operation(op) in _EXTREMES:
        held, elements = elements, held
    return combine(e, op.regions[0], held, elements)


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
    if group := e.placement.groups.get(op):
        if group.leader is op:
            sums_down_columns(e, group)
        return
    for result in op.results:
        e.allocate(result)
    tails = e.placement.tails
    stored = next((value for value, reduction in tails.deferred.items() if reduction is op), None)
    mask = tails.of(op)
    if stored is not None or mask is not None:
        _along_row(e, op, stored, mask)
        return
    updates = {value for value, reduction in e.placement.fused_updates.items() if reduction is op}
    along_lanes = all(size == 1 for size in shape[axis + 1 :])

    def build(nest: Nest) -> list[str]:
        nest.updates = updates
        return _along_lanes(e, nest, op, axis) if along_lanes else _down_columns(e, nest, [op], axis)

    e.versioned(axis + 2 if along_lanes else len(shape) + 1, build)
    for value in updates:
        e.names[value], e.place[value] = e.names[e.placement.updates[value]], Place.ARRAY


def sums_down_columns(e: Emitter, group: Group) -> None:
    """All members of a group, at the place of its leader (analysis/together.py)."""
    for member in group.sums:
        e.allocate(member.result)
    e.versioned(3, lambda nest: _down_columns(e, nest, group.sums, 0, group.store))


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


def _accumulation(
    e: Emitter, ops: Sequence[Op], lanes: Loop, masked: bool, body: list[str], elements: list[str]
) -> _Accumulation:
    """`body` computes the `elements` of a lane, `masked` says that it loads under a mask. Several `ops` sum f32."""
    op, lane = ops[0], lanes.var
    if sums_floats(op) and lanes.high % VECTOR == 0:
        return _vector_sums(e, lanes, masked, body, elements)
    types = [c_type(operand.type.elem) for operand in op.operands]
    names = [e.fresh("acc") for _ in op.operands]
    at_lane = [f"{name}[{lane}]" for name in names]
    statements, values = accumulate(e, op, at_lane, elements)
    start = [f"{a} = {x};" for a, x in zip(at_lane, elements, strict=True)]
    return _Accumulation(
        declare=[f"{t} {n}[{lanes.high}] __attribute__((aligned(64)));" for t, n in zip(types, names, strict=True)],
        first=_lane_loop(lanes, masked, body + start),
        combine=_lane_loop(lanes, masked, body + statements + assignments(at_lane, values, types, e)),
        finish=[],
        at_lane=at_lane,
    )


def _vector_sums(e: Emitter, lanes: Loop, masked: bool, body: list[str], elements: list[str]) -> _Accumulation:
    """Sums kept in named vectors: gcc does not always keep an array of accumulators in registers."""
    parts, lane = [e.fresh("part") for _ in elements], lanes.var
    held = [(e.fresh("acc"), f"*(cp_f32x{VECTOR} *)({p} + {k})") for p in parts for k in range(0, lanes.high, VECTOR)]
    at_lane = [f"{part}[{lane}]" for part in parts]
    loop = _lane_loop(lanes, masked, [*body, *(f"{a} = {x};" for a, x in zip(at_lane, elements, strict=True))])
    return _Accumulation(
        declare=[
            *(f"float {part}[{lanes.high}] __attribute__((aligned(64)));" for part in parts),
            f"cp_f32x{VECTOR} {', '.join(v for v, _ in held)};",
        ],
        first=loop + [f"{v} = {chunk};" for v, chunk in held],
        combine=loop + [f"{v} = {v} + {chunk};" for v, chunk in held],
        finish=[f"{chunk} = {v};" for v, chunk in held],
        at_lane=at_lane,
    )


_EXTREMES = {"arith.maxnumf": ">", "arith.minnumf": "<"}


class _Vectors:
    """Accumulators of f32 lanes in named vectors, for any combine function.

    gcc leaves an array of accumulators in memory when the loop stores something else. Arrays that live for one round
    are not: `held` is what the vectors hold, `next` what they will hold. `odd`: may a maximum or minimum hold a NaN?"""

    def __init__(self, e: Emitter, op: Op, lanes: Loop) -> None:
        self._e, self._op, self._lanes = e, op, lanes
        self.held, self.next, self._odd = e.fresh("held"), e.fresh("next"), e.fresh("odd")
        self._symbol = _EXTREMES.get(sole_operation(op) or "")
        self.names = [e.fresh("acc") for _ in range(lanes.high // VECTOR)]

    def declare(self) -> list[str]:
        arrays = [f"float {a}[{self._lanes.high}] __attribute__((aligned(64)));" for a in (self.held, self.next)]
        return [*arrays, f"cp_f32x{VECTOR} {', '.join(self.names)};", *([f"bool {self._odd};"] if self._symbol else [])]

    def _part(self, array: str, k: int) -> str:
        return f"*(cp_f32x{VECTOR} *)({array} + {k * VECTOR})"

    def write(self, array: str) -> list[str]:
        return [f"{self._part(array, k)} = {name};" for k, name in enumerate(self.names)]

    def _read(self) -> list[str]:
        return [f"{name} = {self._part(self.next, k)};" for k, name in enumerate(self.names)]

    def _look(self) -> list[str]:
        odd = " | ".join(f"({name} != {name})" for name in self.names)
        return [f"{self._odd} = cp_any_lane({odd});"] if self._symbol else []

    def first(self, body: list[str], masked: bool, element: str) -> list[str]:
        line = f"{self.next}[{self._lanes.var}] = {element};"
        return [*_lane_loop(self._lanes, masked, [*body, line]), *self._read(), *self._look()]

    def combine(self, body: list[str], masked: bool, element: str) -> list[str]:
        lane = self._lanes.var
        if self._symbol:
            return [*self.write(self.held), *self._extreme(body, masked, element)]
        statements, values = accumulate(self._e, self._op, [f"{self.held}[{lane}]"], [element])
        loop = _lane_loop(self._lanes, masked, [*body, *statements, f"{self.next}[{lane}] = {values[0]};"])
        return [*self.write(self.held), *loop, *self._read()]

    def _extreme(self, body: list[str], masked: bool, element: str) -> list[str]:
        """`accumulate` of a maximum or minimum. A NaN that is held gives way to any number, which takes a comparison of
        its own; but after one round, mostly, none is held any more, and no further one can be."""
        lane, part = self._lanes.var, self._e.fresh("part")
        old, new, other = (f"{array}[{lane}]" for array in (self.held, self.next, part))
        choose = _lane_loop(self._lanes, False, [f"{new} = {other} {self._symbol} {old} ? {other} : {old};"])
        replace = _lane_loop(self._lanes, False, [f"{new} = {old} != {old} ? {other} : {new};"])
        return [
            f"float {part}[{self._lanes.high}] __attribute__((aligned(64)));",
            *_lane_loop(self._lanes, masked, [*body, f"{other} = {element};"]),
            *[f"if (cp_likely(!{self._odd})) {{", *choose, *self._read()],
            *["} else {", *choose, *replace, *self._read(), *self._look(), "}"],
        ]

    def repeat(self, element: str) -> list[str]:
        """Combines all lanes with one element; breaks out of a loop if that changes none of their bits."""
        old = [f"cp_f32x{VECTOR} const old_{name} = {name};" for name in self.names]
        same = " && ".join(f"cp_same_bits(old_{name}, {name})" for name in self.names)
        return [*old, *self.combine([], False, element), f"if ({same}) break;"]


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
    acc = _accumulation(e, [op], Loop(lane, lanes), nest.masked, body, elements)
    nest.chunk_lines += fetch_results(e, op, chunk)
    lines = [*acc.declare, f"{{ const int {chunk} = 0;", *nest.chunk_lines, *acc.first, "}"]
    if lanes < length:
        lines.append(f"for (int {chunk} = {lanes}; {chunk} < {length}; {chunk} += {lanes}) {{")
        lines += [*nest.chunk_lines, *acc.combine, "}"]
    lines += [*acc.finish, *_halve(e, op, acc.at_lane, lane, lanes)]
    lines += _store(e, op, (*outer_index, *tail), [a.replace(f"[{lane}]", "[0]") for a in acc.at_lane])
    nest.levels[axis] += lines
    return nest.loops([Loop(name, size) for name, size in zip(outer_names, outer, strict=True)], independent=False)


def _along_row(e: Emitter, op: Op, stored: Value | None, mask: Value | None) -> None:
    """Of one row: stores the tensor `stored` on its way, and stops where all further elements are the same.

    When combining lanes of these has left the accumulators as they are, more of them do so too."""
    operand = op.operands[0]
    length, chunk, lane = operand.type.numel, e.fresh("k"), e.fresh("j")
    end = end_of_row(e, mask or e.placement.tails.mask.get(stored), length)
    ready = Lanes([])
    if stored is not None:
        name = e.home(stored)
        if stored in e.placement.tails.mask:
            e.beyond[stored] = element_beyond(e, stored, end)
        ready = store_lanes(e, stored, chunk, end, f"{name} + {chunk}")
        e.names[stored], e.place[stored] = name, Place.ARRAY
    beyond = element_beyond(e, operand, end) if mask is not None else ""
    nest = Nest(e, 1)
    nest.chunk, nest.chunk_lanes = At(chunk, 0), LANES
    element = nest.at(operand, (At(f"({chunk} + {lane})", 1),)).code
    if nest.corners:  # masks other than those of stored tensors: lanes are computed twice, with and without
        part = e.array(operand.type.elem, LANES)
        ready = ready.then(store_lanes(e, operand, chunk, end, part))
        nest, element = Nest(e, 1), f"{part}[{lane}]"
    body = nest.levels[1]
    ready = ready.then([*nest.levels[0], *nest.chunk_lines, *fetch_results(e, op, chunk)])
    lanes = Loop(lane, LANES)
    if operand.type.elem == "f32":
        vectors = _Vectors(e, op, lanes)
        declare, at_lane = vectors.declare(), f"{vectors.held}[{lane}]"
        first, step = (f(body, nest.masked, element) for f in (vectors.first, vectors.combine))
        again, finish = vectors.repeat(beyond), vectors.write(vectors.held)
    else:
        acc = _accumulation(e, [op], lanes, nest.masked, body, [element])
        declare, first, step, finish, at_lane = acc.declare, acc.first, acc.combine, acc.finish, acc.at_lane[0]
        again = _combine_again(e, op, lanes, at_lane, beyond)
    e.write("{", *declare, *ready.first(chunk, end, first), *ready.loop(chunk, LANES, end, step))
    if mask is not None:
        e.write(f"for (int64_t {chunk} = {end.ends}; {chunk} < {length}; {chunk} += {LANES}) {{", *again, "}")
    result = at_lane.replace(f"[{lane}]", "[0]")
    e.write(*finish, *_halve(e, op, [at_lane], lane, LANES), *_store(e, op, (), [result]), "}")


def _combine_again(e: Emitter, op: Op, lanes: Loop, at_lane: str, element: str) -> list[str]:
    """Combines all lanes with one element; breaks out of a loop if that changes none of their bits."""
    ctype, array, old = c_type(op.operands[0].type.elem), at_lane.split("[")[0], e.fresh("old")
    statements, values = accumulate(e, op, [at_lane], [element])
    return [
        f"{ctype} {old}[{LANES}];",
        f"memcpy({old}, {array}, sizeof({old}));",
        *_lane_loop(lanes, False, [*statements, *assignments([at_lane], values, [ctype], e)]),
        f"if (memcmp({old}, {array}, sizeof({old})) == 0) break;",
    ]


#: Combine functions that lanes.h has for vectors.
_HALVED = {
    "arith.addf": "add",
    "arith.maxnumf": "maxnum",
    "arith.minnumf": "minnum",
    "arith.maximumf": "maximum",
    "arith.minimumf": "minimum",
}


def _halved_by(op: Op, lanes: int) -> str | None:
    """The function of lanes.h that combines so many lanes of a reduction, if there is one."""
    fits = op.operands[0].type.elem == "f32" and lanes >= VECTOR
    return _HALVED.get(sole_operation(op) or "") if fits else None


def _halve(e: Emitter, op: Op, at_lane: list[str], lane: str, lanes: int) -> list[str]:
    """Combine lanes pairwise until lane 0 holds the result."""
    if function := _halved_by(op, lanes):
        e.include("lanes.h")
        first = at_lane[0].replace(f"[{lane}]", "[0]")
        return [f"{first} = cp_halve_{function}_f32(&{first}, {lanes});"]
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


def _down_columns(e: Emitter, nest: Nest, ops: Sequence[Op], axis: int, store: Op | None = None) -> list[str]:
    """Accumulate rows: blocks of columns of the last dimension stay in registers while the axis runs.

    `store`: what is stored of every element, after all of `ops` have evaluated theirs."""
    shape = ops[0].operands[0].type.dims
    width = min(shape[-1], COLUMNS if len(ops) < MANY_SUMS else COLUMNS // 2)
    others = [d for d in range(len(shape) - 1) if d != axis]
    names = {d: e.fresh("i") for d in range(len(shape) - 1)}
    base, lane, row = e.fresh("p"), e.fresh("j"), names[axis]
    # loop order: other dimensions, column block, axis, lane
    level = {d: k + 1 for k, d in enumerate(others)}
    level[axis] = len(others) + 2
    last = At(f"({base} + {lane})", len(others) + 3)
    index = tuple(At(names[d], level[d]) if d in names else last for d in range(len(shape)))
    elements = [nest.at(operand, index).code for op in ops for operand in op.operands]
    if store is not None:
        nest.levels[-1] += store_element(nest, store, index)
    *outside, per_block, per_row, body = nest.levels
    acc = _accumulation(e, ops, Loop(lane, width), nest.masked, body, elements)
    target = index[:axis] + index[axis + 1 :]
    # several operations have an operand each, one may have several
    stored = [
        line
        for k, op in enumerate(ops)
        for line in _store(e, op, target, acc.at_lane[k : k + 1] if len(ops) > 1 else acc.at_lane)
    ]
    block = [
        f"for (int {base} = 0; {base} < {shape[-1]}; {base} += {width}) {{",
        *per_block,
        *acc.declare,
        *[f"{{ const int {row} = 0;", *per_row, *acc.first, "}"],
        *[f"for (int {row} = 1; {row} < {shape[axis]}; {row}++) {{", *per_row, *acc.combine, "}"],
        *acc.finish,
        *_lane_loop(Loop(lane, width), False, stored),
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

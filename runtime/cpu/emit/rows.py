"""Rows stored 64 elements at a time, up to where their mask ends (analysis/tails.py).

The array of such a tensor holds the first `ends` elements: as many as the mask lets through, rounded up to whole groups
of lanes, with the element that follows the mask in the last of them. That element is also a C scalar.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..analysis.affine import uniform
from ..analysis.placement import Place
from ..analysis.tails import LANES
from ..ttir.ir import Op, Value
from .ctypes import c_type, size_of
from .elementwise import array_function
from .nest import ZERO, At, Loop, Nest
from .split import reach

if TYPE_CHECKING:
    from .emitter import Emitter

#: What a processor fetches at a time.
LINE_BYTES = 64


class End(NamedTuple):
    """Where a row of `size` elements ends: C expressions of the elements its mask lets through, and of whole lanes.

    Without a mask both are the size."""

    mask: Value | None
    count: str
    ends: str


def end_of_row(e: Emitter, mask: Value | None, size: int) -> End:
    """Writes the C scalars of an End."""
    if mask is None:
        return End(None, str(size), str(size))
    nest, count, ends = Nest(e, 0), e.fresh("count"), e.fresh("ends")
    length = reach(nest, mask, (ZERO,), size)
    e.write(*nest.levels[0], f"int64_t const {count} = {length};", f"int64_t const {ends} = cp_whole_lanes({count});")
    return End(mask, count, ends)


def element_beyond(e: Emitter, value: Value, end: End) -> str:
    """Writes a C scalar: every element of `value` for which the end's mask does not hold, if there is one."""
    nest, name = Nest(e, 0, refuted=frozenset([end.mask])), e.fresh("beyond")
    code = nest.at(value, (ZERO,)).code
    e.write(f"{c_type(value.type.elem)} {name} = 0;")
    e.write(f"if ({end.count} < {value.type.numel}) {{", *nest.levels[0], f"{name} = {code};", "}")
    return name


class Lanes(NamedTuple):
    """Lines for 64 lanes: `whole` where their mask lets all through, `edge` where it may not; None: the same."""

    whole: list[str]
    edge: list[str] | None = None

    def then(self, more: Lanes | list[str]) -> Lanes:
        """These lines and then others."""
        after = more if isinstance(more, Lanes) else Lanes(more)
        same = self.edge is None and after.edge is None
        edge = None if same else [*(self.edge or self.whole), *(after.edge or after.whole)]
        return Lanes([*self.whole, *after.whole], edge)

    def first(self, chunk: str, end: End, step: list[str]) -> list[str]:
        """The first group of a row."""
        chosen = self.whole
        if self.edge is not None:
            chosen = [f"if (cp_likely({LANES} <= {end.count})) {{", *self.whole, "} else {", *self.edge, "}"]
        return [f"{{ const int {chunk} = 0;", *chosen, *step, "}"]

    def loop(self, chunk: str, start: int, end: End, step: list[str]) -> list[str]:
        """All groups of a row from element `start` on. One that its mask cuts through is the last, behind the loop: a
        branch in the loop would keep gcc from holding everything in registers."""
        if self.edge is None:
            head = f"for (int {chunk} = {start}; {chunk} < {end.ends}; {chunk} += {LANES}) {{"
            return [head, *self.whole, *step, "}"]
        head = f"for (; {chunk} + {LANES} <= {end.count}; {chunk} += {LANES}) {{"
        last = [f"if ({chunk} < {end.ends}) {{", *self.edge, *step, "}"]
        return ["{", f"int {chunk} = {start};", head, *self.whole, *step, "}", *last, "}"]


def store_row(e: Emitter, value: Value, target: str) -> None:
    """target = value up to the end of its mask, and the element beyond as a scalar."""
    end = end_of_row(e, e.placement.tails.mask[value], value.type.numel)
    e.beyond[value] = element_beyond(e, value, end)
    chunk = e.fresh("k")
    e.write(*store_lanes(e, value, chunk, end, f"{target} + {chunk}").loop(chunk, 0, end, []))


def store_lanes(e: Emitter, value: Value, chunk: str, end: End, target: str) -> Lanes:
    """Lines that store 64 elements of `value`, from element `chunk` on, at the C address `target`."""
    function = array_function(value)
    if function is None:
        return _each_lane(e, value, chunk, end, target)
    e.include("arrays.h")
    argument = value.op.operands[0]
    if shifted := e.shifted(argument):
        source, shift = shifted
        return Lanes([f"{function}_lanes({target}, {source} + {chunk}, {shift});"])
    stored = _each_lane(e, argument, chunk, end, target).then([f"{function}_lanes({target}, {target}, 0.0f);"])
    if direct := _from_memory(e, argument, chunk, end):
        lines, address, shift = direct
        return Lanes([*lines, f"{function}_lanes({target}, {address}, {shift});"], stored.edge or stored.whole)
    return stored


def _from_memory(e: Emitter, argument: Value, chunk: str, end: End) -> tuple[list[str], str, str] | None:
    """Lines, address and scalar, if `argument` is a load of consecutive elements less a scalar, masked by the end."""
    load, shift = argument, "0.0f"
    if argument.defining == "arith.subf" and e.place[argument] is Place.INLINE:
        load, scalar = argument.op.operands[0], uniform(argument.op.operands[1])
        if scalar is None or e.place[scalar] is not Place.SCALAR:
            return None
        shift = e.names[scalar]
    if load.defining != "tt.load" or e.place[load] is not Place.INLINE:
        return None
    pointers, *rest = load.op.operands
    if (rest[0] if rest else None) is not end.mask or e.placement.strides.of(pointers, 0) != 1:
        return None
    nest = Nest(e, 0)
    address = nest.at(pointers, (At(chunk, 0),)).code
    return nest.levels[0], address, shift


def _each_lane(e: Emitter, value: Value, chunk: str, end: End, target: str) -> Lanes:
    """One loop over lanes, and another one without the mask where it tests one."""
    general = Nest(e, 1)
    masked = _lane_loop(general, value, chunk, target)
    if end.mask is None or end.mask not in general.corners:
        return Lanes(masked)
    return Lanes(_lane_loop(Nest(e, 1, frozenset([end.mask])), value, chunk, target), masked)


def _lane_loop(nest: Nest, value: Value, chunk: str, target: str) -> list[str]:
    lane = nest.emitter.fresh("j")
    nest.chunk, nest.chunk_lanes = At(chunk, 0), LANES
    element = nest.at(value, (At(f"({chunk} + {lane})", 1),)).code
    nest.levels[1].append(f"({target})[{lane}] = {element};")
    return [*nest.chunk_lines, "{", *nest.loops([Loop(lane, LANES)]), "}"]


def fetch_results(e: Emitter, reduction: Op, chunk: str) -> list[str]:
    """Lines that fetch, for writing, where the 64 elements from `chunk` on of rows stored after a reduction will be."""
    lines: list[str] = []
    for store in e.placement.written.get(reduction, ()):
        pointers, value = store.operands[:2]
        if not _is_known(e, pointers):
            continue
        nest, byte, length = Nest(e, 0), e.fresh("byte"), LANES * size_of(value.type.elem)
        address = nest.at(pointers, (At(chunk, 0),)).code
        fetch = f"__builtin_prefetch((char *)({address}) + {byte}, 1, 3);"
        loop = f"for (int {byte} = 0; {byte} < {length}; {byte} += {LINE_BYTES}) {fetch}"
        lines += ["{", *nest.levels[0], loop, "}"]
    return lines


def _is_known(e: Emitter, value: Value) -> bool:
    """Is everything computed already that `value`, which is not stored, is computed from?"""
    if e.place[value] is Place.SCALAR:
        return value in e.names
    return e.place[value] is Place.INLINE and all(_is_known(e, operand) for operand in value.op.operands)

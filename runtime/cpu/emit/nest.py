"""A loop nest under construction.

Tensors that are not stored are index functions: `Nest.at(value, index)` returns the C expression of one element and
places the statements it needs at the outermost loop level their indices allow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..analysis.affine import constant_int, uniform
from ..analysis.placement import Place
from ..analysis.stream import LONG_ROW, Ahead
from ..ttir.ir import Op, Value
from .ctypes import c_type, literal, size_of
from .elementwise import expression

if TYPE_CHECKING:
    from .emitter import Emitter


class At(NamedTuple):
    """A C expression and the loop level it is known from: 0 outside all loops, k inside the k-th."""

    code: str
    level: int


ZERO = At("0", 0)
#: A mask that holds nowhere in the nest being built.
NEVER = At("0", 0)
Index = tuple[At, ...]


#: gcc unrolls loops of at most this many rounds completely before it vectorises.
PEELED = 16


class Loop(NamedTuple):
    """`for (int var = low; var < high; var++)`"""

    var: str
    high: int | str
    low: int | str = 0

    @property
    def rounds(self) -> int | None:
        """None: known at run time only."""
        return self.high - self.low if isinstance(self.high, int) and isinstance(self.low, int) else None

    def head(self, independent: bool = False, masked: bool = False) -> list[str]:
        """Lines up to the opening brace. `independent`: no round depends on another. `masked`: loads under a mask.

        gcc 12 miscompiles masked loads side by side that need several vectors (all get the first one's mask): they
        come from unrolling a short loop inside another one, so loops with masked loads are not unrolled."""
        if self.rounds == 1:
            return [f"{{ const int {self.var} = {self.low};"]
        hints = ["#pragma GCC ivdep"] if independent else []
        if masked and self.rounds is not None and self.rounds <= PEELED:
            hints.append("#pragma GCC unroll 1")
        return [*hints, f"for (int {self.var} = {self.low}; {self.var} < {self.high}; {self.var}++) {{"]


def flat(shape: Sequence[int], index: Index) -> str:
    """Row-major position of `index`."""
    terms, stride = [], 1
    for at, size in zip(reversed(index), reversed(shape), strict=True):
        if size != 1 and at.code != "0":
            terms.append(f"{at.code}*{stride}" if stride != 1 else at.code)
        stride *= size
    return " + ".join(reversed(terms)) or "0"


def deepest(parts: Iterable[At]) -> int:
    return max((part.level for part in parts), default=0)


class Nest:
    """Statements per loop level. `assumed` comparisons are known to hold, `refuted` ones to fail; `corners` are those
    that could be either.

    `masked`: it loads under a mask, or loads what a select may not need (gcc makes a masked load of that)."""

    def __init__(
        self,
        emitter: Emitter,
        depth: int,
        assumed: frozenset[Value] = frozenset(),
        refuted: frozenset[Value] = frozenset(),
        unwrapped: frozenset[Value] = frozenset(),
    ) -> None:
        self.emitter, self.refuted, self.unwrapped = emitter, refuted, unwrapped
        self.levels: list[list[str]] = [[] for _ in range(depth + 1)]
        self.assumed = assumed
        self.corners: list[Value] = []
        #: Remainders that could be assumed not to wrap.
        self.wraps: list[Value] = []
        #: Where each corner's comparison was asked for.
        self.asked: dict[Value, list[Index]] = {}
        #: Values stored as they are evaluated: updates of carried tensors fused into this nest.
        self.updates: set[Value] = set()
        #: Of a nest that runs over chunks of rows: where one starts, its elements, and what is done before each.
        self.chunk: At | None = None
        self.chunk_lanes, self.chunk_lines = 0, []
        self.masked = self._loads = self._selects = False
        self._memo: dict[tuple, At] = {}

    def temporary(self, level: int, ctype: str, code: str, value: Value | None = None) -> At:
        """A variable at a level, called like `value`."""
        name = self.emitter.name(value, "t") if value is not None else self.emitter.fresh("t")
        self.levels[level].append(f"{ctype} const {name} = {code};")
        return At(name, level)

    def at(self, value: Value, index: Index) -> At:
        """One element of `value`; index has one entry per dimension."""
        place = self.emitter.place[value]
        if place is Place.SCALAR:
            return At(self.emitter.names[value], 0)
        if value in self.unwrapped:
            return self._unwrapped(value, index)
        if self.emitter.placement.wraps(value) and value not in self.wraps:
            self.wraps.append(value)
        if place is Place.ARRAY:
            if self.emitter.placement.tails.mask.get(value) in self.refuted:
                return At(self.emitter.beyond[value], 0)
            self._loads = True
            self.masked = self._selects
            return At(f"{self.emitter.names[value]}[{flat(value.type.dims, index)}]", deepest(index))
        key = (value, tuple(i.code for i in index))
        if key not in self._memo:
            self._memo[key] = self._evaluate(value, index)
        return self._memo[key]

    def _evaluate(self, value: Value, index: Index) -> At:
        if self.emitter.place[value] is Place.INDUCTION:
            start = self.at(self.emitter.placement.inductions[value].initial, index)
            code = f"({start.code} + {self.emitter.names[value]})"
            return At(f"(({c_type(value.type.elem)}){code})" if self.emitter.checks else code, start.level)
        op = value.op
        self._loads |= op.name == "tt.load"
        self._selects |= op.name == "arith.select" or (op.name == "tt.load" and len(op.operands) > 1)
        self.masked = self._loads and self._selects
        if rule := RULES.get(op.name):
            return rule(self, op, value, index)
        args = [self.at(operand, index if operand.type.is_tensor else ()) for operand in op.operands]
        code = expression(op, [a.code for a in args], value in self.emitter.placement.addresses)
        result = self.temporary(deepest(args), c_type(value.type.elem), code, value)
        if value in self.updates:
            carried = self.emitter.names[self.emitter.placement.updates[value]]
            self.levels[deepest(index)].append(f"{carried}[{flat(value.type.dims, index)}] = {result.code};")
        return result

    def _unwrapped(self, value: Value, index: Index) -> At:
        """An element of a remainder whose quotient is the same for all elements: a difference."""
        key = (value, "multiple")
        if key not in self._memo:
            first = self.at(value.op.operands[0], tuple(ZERO for _ in index)).code
            divisor = self.at(uniform(value.op.operands[1]), ()).code
            code = f"{first} - {first} % {divisor}"
            self._memo[key] = self.temporary(0, c_type(value.type.elem), code)
        element = self.at(value.op.operands[0], index)
        return At(f"({element.code} - {self._memo[key].code})", element.level)

    # ---- masks

    def mask(self, value: Value, index: Index) -> At | None:
        """A mask element, None when it is known to hold, NEVER when it is known to fail."""
        if self.emitter.checks:
            return self.at(value, index)
        op = value.op if self.emitter.place[value] is Place.INLINE else None
        match op.name if op else None:
            case "arith.andi":
                parts = [m for operand in op.operands if (m := self.mask(operand, index)) is not None]
                if any(part is NEVER for part in parts):
                    return NEVER
                return At(" & ".join(f"({p.code})" for p in parts), deepest(parts)) if parts else None
            case "tt.broadcast":
                return self.mask(op.operands[0], broadcast_index(op, index))
            case "tt.expand_dims":
                axis = int(op.attrs["axis"])
                return self.mask(op.operands[0], index[:axis] + index[axis + 1 :])
            case "arith.cmpi" if value in self.assumed or self.emitter.placement.corners.always_holds(value):
                return None
            case "arith.cmpi" if value in self.refuted:
                return NEVER
            case "arith.cmpi" if self.emitter.placement.corners.deciding(value):
                self.asked.setdefault(value, []).append(index)
                if value not in self.corners:
                    self.corners.append(value)
        return self.at(value, index)

    # ---- text

    def loops(self, loops: Sequence[Loop], independent: bool = True) -> list[str]:
        """Lines of the nest: level statements wrapped in `loops`, the innermost marked free of dependences."""
        lines = list(self.levels[0])
        innermost = max((k for k, loop in enumerate(loops) if loop.rounds != 1), default=-1)
        for k, loop in enumerate(loops):
            lines += loop.head(independent and k == innermost, self.masked)
            lines += self.levels[k + 1]
        lines.append("}" * len(loops))
        return lines


# ---- inline rules of operations that are not elementwise

Rule = Callable[[Nest, Op, Value, Index], At]


def broadcast_index(op: Op, index: Index) -> Index:
    return tuple(i if size != 1 else ZERO for i, size in zip(index, op.operands[0].type.dims, strict=True))


def _constant(nest: Nest, op: Op, value: Value, index: Index) -> At:
    return At(literal(op), 0)


def _make_range(nest: Nest, op: Op, value: Value, index: Index) -> At:
    start = op.attrs["start"]
    return index[0] if start == "0" else At(f"({index[0].code} + {start})", index[0].level)


def _splat(nest: Nest, op: Op, value: Value, index: Index) -> At:
    source = op.operands[0]
    return nest.at(source, tuple(ZERO for _ in source.type.dims))


def _broadcast(nest: Nest, op: Op, value: Value, index: Index) -> At:
    return nest.at(op.operands[0], broadcast_index(op, index))


def _expand_dims(nest: Nest, op: Op, value: Value, index: Index) -> At:
    axis = int(op.attrs["axis"])
    return nest.at(op.operands[0], index[:axis] + index[axis + 1 :])


def _trans(nest: Nest, op: Op, value: Value, index: Index) -> At:
    source: list[At] = [ZERO] * len(index)
    for k, dim in enumerate(op.attrs["order"]):
        source[dim] = index[k]
    return nest.at(op.operands[0], tuple(source))


def _reshape(nest: Nest, op: Op, value: Value, index: Index) -> At:
    source, target = op.operands[0].type.dims, value.type.dims
    grouped = _group_reshape(source, target, index)
    if grouped is None:
        level = deepest(index)
        position = nest.temporary(level, "int", flat(target, index))
        grouped, stride = [], 1
        for size in reversed(source):
            grouped.append(ZERO if size == 1 else At(f"(({position.code} / {stride}) % {size})", level))
            stride *= size
        grouped.reverse()
    return nest.at(op.operands[0], tuple(grouped))


def _group_reshape(source: tuple[int, ...], target: tuple[int, ...], index: Index) -> list[At] | None:
    """Source index when the reshape only adds or removes dimensions of size 1, or merges dimensions; else None."""
    result: list[At] = []
    dims = [(at, size) for at, size in zip(index, target, strict=True) if size != 1]
    for size in source:
        part: list[tuple[At, int]] = []
        product = 1
        while product < size and dims:
            part.append(dims.pop(0))
            product *= part[-1][1]
        if product != size:
            return None
        if len(part) == 1:
            result.append(part[0][0])
        else:
            code = flat([s for _, s in part], tuple(at for at, _ in part))
            result.append(At(f"({code})", deepest(at for at, _ in part)) if part else ZERO)
    return result


def _join(nest: Nest, op: Op, value: Value, index: Index) -> At:
    first, second = (nest.at(operand, index[:-1]) for operand in op.operands)
    level = deepest((first, second, index[-1]))
    return nest.temporary(level, c_type(value.type.elem), f"({index[-1].code} ? {second.code} : {first.code})")


def _select(nest: Nest, op: Op, value: Value, index: Index) -> At:
    """A condition that is decided for the whole nest chooses here."""
    condition, *sides = op.operands
    chosen = nest.mask(condition, index if condition.type.is_tensor else ())
    if chosen is None or chosen is NEVER:
        return nest.at(sides[chosen is NEVER], index)
    first, second = (nest.at(side, index) for side in sides)
    code = expression(op, [chosen.code, first.code, second.code])
    return nest.temporary(deepest((chosen, first, second)), c_type(value.type.elem), code, value)


def _split(nest: Nest, op: Op, value: Value, index: Index) -> At:
    return nest.at(op.operands[0], (*index, At(str(value.index), 0)))


def _load(nest: Nest, op: Op, value: Value, index: Index) -> At:
    elem = c_type(value.type.elem)
    pointer = nest.at(op.operands[0], index)
    level, code = pointer.level, f"*({pointer.code})"
    mask = nest.mask(op.operands[1], index) if len(op.operands) > 1 else None
    if nest.emitter.checks:
        check = nest.emitter.checks.element(nest, op, index, mask)
        nest.levels[check.level].append(f"if ({mask.code}) {check.code}" if mask else check.code)
    ahead = nest.emitter.placement.prefetch.get(op)
    if ahead and mask is not NEVER:
        _prefetch(nest, op, index, ahead)
    if mask is NEVER:
        return nest.at(op.operands[2], index) if len(op.operands) > 2 else At(f"(({elem})0)", 0)
    if mask is not None:
        other = nest.at(op.operands[2], index) if len(op.operands) > 2 else At(f"({elem})0", 0)
        level, code = deepest((pointer, mask, other)), f"({mask.code}) ? {code} : {other.code}"
    return nest.temporary(level, elem, code, value)


def _prefetch(nest: Nest, op: Op, index: Index, ahead: Ahead) -> None:
    """Fetch ahead of what is read next: of a row, or of a chunk of one if the nest runs over chunks."""
    level = deepest(index)
    inner = [d for d, at in enumerate(index) if at.level == level]
    last = len(index) - 1
    if level == 0 or inner != [last]:
        return
    size = size_of(op.result.type.elem)
    row = op.result.type.dims[last] * size
    if nest.chunk is not None:
        lines, start, length = nest.chunk_lines, nest.chunk, min(nest.chunk_lanes * size, row)
    elif row < LONG_ROW:
        lines, start, length = nest.levels[level - 1], ZERO, row
    else:
        return
    byte, address = nest.emitter.fresh("byte"), Nest(nest.emitter, 0)
    code = address.at(op.operands[0], tuple(At(at.code, 0) for at in (*index[:last], start))).code
    distance = "" if ahead.loop is None else f" + ({_varying(nest, ahead.loop, ahead, index[0])})"
    fetch = f"__builtin_prefetch((const char *)({code}){distance} + {byte}, 0, 3);"
    lines += [
        "{",
        *address.levels[0],
        f"for (int {byte} = {ahead.bytes}; {byte} < {ahead.bytes + length}; {byte} += 64) {fetch}",
        "}",
    ]


def _varying(nest: Nest, loop: Op, ahead: Ahead, row: At) -> str:
    """The part of a distance that depends on the round of a loop, whose bounds are known, and on the row."""
    low, step = constant_int(loop.operands[0]), constant_int(loop.operands[2])
    counter = nest.emitter.names[loop.regions[0].args[0]]
    return f"((int64_t){counter} - {low}) / {step} * {ahead.per_round} + (int64_t){row.code} * {ahead.per_row}"


RULES: dict[str, Rule] = {
    "arith.constant": _constant,
    "ub.poison": _constant,
    "tt.make_range": _make_range,
    "tt.splat": _splat,
    "tt.broadcast": _broadcast,
    "tt.expand_dims": _expand_dims,
    "tt.trans": _trans,
    "tt.reshape": _reshape,
    "tt.join": _join,
    "arith.select": _select,
    "tt.split": _split,
    "tt.load": _load,
}

"""Loops that do nothing but add up dots along k, as one dot over all of k.

    for i_k in range(0, K, BLOCK_K):
        acc = tl.dot(tl.load(x + i_k + o_k), panel_of(w, i_k), acc)

With few rows a block is short: what happens once per dot (accumulators from memory to registers and back, rows copied
under their mask, codes whose escapes must be fetched in time) weighs more than its products. Products are added in
ascending order of k in either form, so the bits are the same.

A tensor of the loop becomes one that is as many times as long as there are rounds, where element (round, j) of the one
is element `round * size + j` of the other: that holds for integers and pointers that grow from one round to the next by
as much as from their first element to the one after the last, and for what is computed from such tensors element by
element.
"""

from __future__ import annotations

from collections.abc import Callable

from ..ttir.ir import BITS, CODED, Block, Function, Op, Type, Value, words
from ..ttir.structure import rebuild_uses
from .affine import Strides, constant_int, constant_text
from .growth import Growth, rounds
from .induction import find_inductions
from .panel import GROUPS, is_packed, is_read_in_place, match_panel

#: Left operands of more bytes stay in pieces: they would not stay in the nearest cache.
MOST_LEFT_BYTES = 32 << 10
_SHAPES = words("tt.broadcast tt.expand_dims tt.trans tt.reshape")
_INDEX = words("arith.addi arith.subi arith.muli arith.extsi tt.addptr")
_ELEMENTWISE = ("arith.", "math.", "tt.addptr", "tt.bitcast", "tt.fp_to_fp", "tt.precise_")
#: What a merged loop may hold besides elementwise operations.
_MERGED = _SHAPES | words("tt.make_range tt.splat tt.load tt.dot", CODED)
_NUMBERS = _SHAPES | words("tt.make_range tt.splat arith.addi arith.subi arith.muli arith.divsi arith.extsi")
_BEYOND_32_BITS = 1 << 31


class _Unfit(Exception):
    """A loop that stays as it is."""


def merge_dots(function: Function) -> None:
    """Replace such loops of `function`, in place."""
    inductions = find_inductions(function)
    strides = Strides({value: induction.initial for value, induction in inductions.items()})
    found = False
    for loop in [op for op in function.walk() if op.name == "scf.for" and _adds_dots(op, strides)]:
        try:
            merged = _Merged(loop, strides, Growth(inductions, loop))
            results = merged.results()
        except _Unfit:
            continue
        _replace(loop, merged.ops, results)
        found = True
    if found:
        rebuild_uses(function)


def _adds_dots(loop: Op, strides: Strides) -> bool:
    """Is every value that a loop carries the accumulator of a dot on a panel, and of nothing else?"""
    body = loop.regions[0]
    sums = list(zip(body.args[1:], body.terminator.operands, strict=True))
    if not sums or (rounds(loop) or 0) < 2 or not all(_is_pure(op) for op in body.ops[:-1]):
        return False
    return all(_is_sum(arg, value, body, strides) for arg, value in sums)


def _is_pure(op: Op) -> bool:
    if op.regions or len(op.results) != 1 or op.attrs.get("isVolatile") == "true":
        return False
    return op.name in _MERGED or op.name.startswith(_ELEMENTWISE)


def _is_sum(arg: Value, value: Value, body: Block, strides: Strides) -> bool:
    if value.defining != "tt.dot" or value.op.block is not body or len(arg.uses) != 1 or len(value.uses) != 1:
        return False
    left, right, accumulator = value.op.operands
    if accumulator is not arg or not is_packed(value.op):
        return False
    groups, (height, depth) = match_panel(right), left.type.dims
    left_bytes = height * depth * (rounds(body.parent) or 0) * BITS[left.type.elem] // 8
    if groups is None or left_bytes > MOST_LEFT_BYTES or depth % GROUPS[left.type.elem]:
        return False
    return is_read_in_place(value.op, groups, strides)


def _replace(loop: Op, ops: list[Op], results: list[Value]) -> None:
    for old, new in zip(loop.results, results, strict=True):
        for user, k in old.uses:
            user.operands[k] = new
            new.uses.append((user, k))
    at = loop.block.ops.index(loop)
    loop.block.ops[at : at + 1] = ops


def _before(op: Op, dim: int) -> tuple[Value, int]:
    """The operand of a shape operation, and its dimension that becomes `dim` of the result. Raises _Unfit."""
    source = op.operands[0]
    if op.name == "tt.trans":
        return source, op.attrs["order"][dim]
    if op.name == "tt.expand_dims" and int(op.attrs["axis"]) != dim:
        return source, dim - (dim > int(op.attrs["axis"]))
    if op.name == "tt.broadcast" or (op.name == "tt.reshape" and dim == 0):
        return source, dim
    raise _Unfit


def _combined(name: str, extents: list[tuple[int, int]]) -> tuple[int, int] | None:
    """Smallest and largest result of an operation on numbers between those given."""
    if len(extents) == 1:
        return extents[0]
    (low, high), (by_low, by_high) = extents
    if name == "arith.divsi":
        return (low // by_low, high // by_low) if low >= 0 and by_low == by_high > 0 else None
    if name == "arith.muli":
        corners = [a * b for a in (low, high) for b in (by_low, by_high)]
        return min(corners), max(corners)
    return (low - by_high, high - by_low) if name == "arith.subi" else (low + by_low, high + by_high)


class _Merged:
    """The operations that stand for a loop. `whole` gives a tensor for all rounds, `first` a value of the first one."""

    def __init__(self, loop: Op, strides: Strides, growth: Growth) -> None:
        self.ops: list[Op] = []
        self._loop, self._body = loop, loop.regions[0]
        self._strides, self._growth = strides, growth
        self._rounds = rounds(loop) or 0
        self._wholes: dict[tuple[Value, int], Value] = {}
        self._firsts: dict[Value, Value] = {self._body.args[0]: loop.operands[0]}
        self._changing: dict[Value, bool] = dict.fromkeys(self._body.args, True)

    def results(self) -> list[Value]:
        """One dot per carried value. Raises _Unfit."""
        dots = [value.op for value in self._body.terminator.operands]
        return [self._dot(dot, initial) for dot, initial in zip(dots, self._loop.operands[3:], strict=True)]

    def _dot(self, dot: Op, initial: Value) -> Value:
        left, right, _ = dot.operands
        return self._copy(dot, [self.whole(left, 1), self.whole(right, 0), initial], dot.result.type)

    def whole(self, value: Value, dim: int) -> Value:
        """The tensor of all rounds, one after the other along `dim`."""
        key = (value, dim)
        if key not in self._wholes:
            self._wholes[key] = self._whole(value, dim)
        return self._wholes[key]

    def _whole(self, value: Value, dim: int) -> Value:
        op = value.op
        if not value.type.is_tensor and not self._changes(value):
            return self.first(value)
        if op is None or not value.type.is_tensor:
            raise _Unfit
        if op.name == CODED:
            return self._coded(op, dim)
        if self._continues(value, dim):
            return self._stretched(value, dim)
        if op.name in ("arith.constant", "tt.splat"):
            if any(self._changes(operand) for operand in op.operands):
                raise _Unfit
            return self._repeated(value, dim)
        if op.name in _SHAPES:
            if op.name == "tt.broadcast" and op.operands[0].type.dims[dim] == 1 and self._changes(op.operands[0]):
                raise _Unfit
            return self._reshaped(value, dim, self.whole)
        if op.name.startswith(_ELEMENTWISE) or (op.name == "tt.load" and op.block is self._body):
            return self._copy(op, [self.whole(operand, dim) for operand in op.operands], self._long(value, dim))
        raise _Unfit

    def _continues(self, value: Value, dim: int) -> bool:
        """Does an integer or pointer go on in the next round where it ends in this one?"""
        if value.type.is_float or value.type.elem == "i1":
            return False
        step, growth = self._strides.of(value, dim), self._growth.of(value)
        return isinstance(step, int) and growth is not None and growth == step * value.type.dims[dim]

    def _stretched(self, value: Value, dim: int) -> Value:
        """Index arithmetic over a longer range, from the counter's first value on."""
        op, step, long = value.op, self._strides.of(value, dim), self._long(value, dim)
        if op is None or not isinstance(step, int) or not (self._continues(value, dim) or self._stays_small(value)):
            raise _Unfit
        if op.name == "tt.make_range":
            return self._copy(op, [], long, {**op.attrs, "end": int(op.attrs["start"]) + long.dims[0]})
        if op.name in ("arith.constant", "tt.splat"):
            if not all(not self._changes(operand) or self._stays_small(operand) for operand in op.operands):
                raise _Unfit
            return self._repeated(value, dim)
        if op.name in _SHAPES:
            return self._reshaped(value, dim, self._stretched)
        if op.name in _INDEX:
            return self._copy(op, [self._stretched(operand, dim) for operand in op.operands], long)
        raise _Unfit

    def _stays_small(self, value: Value) -> bool:
        """Do all numbers that a part of an index is made of fit their width, in all rounds and however long it is?

        Integers wrap, each operation in its own width; a sum that goes on from round to round wraps alike in either
        form, but a part that does not go on by itself must not wrap in one form alone. Pointers have 64 bits."""
        if value.type.is_pointer or BITS[value.type.elem] == 64:
            operands = value.op.operands if value.op is not None else []
            return not self._changes(value) or all(self._stays_small(operand) for operand in operands)
        return self._extent(value) is not None

    def _extent(self, value: Value) -> tuple[int, int] | None:
        """Smallest and largest number of an integer made of the counter, longer ranges and constants alone.

        None: it is made of others as well, or leaves 32 bits on the way."""
        extent = self._unbounded_extent(value)
        return extent if extent is not None and extent[0] >= -_BEYOND_32_BITS and extent[1] < _BEYOND_32_BITS else None

    def _unbounded_extent(self, value: Value) -> tuple[int, int] | None:
        loop, op = self._loop, value.op
        if value is self._body.args[0]:
            low, step = constant_int(loop.operands[0]) or 0, constant_int(loop.operands[2]) or 0
            return low, low + (self._rounds - 1) * step
        if (known := constant_int(value)) is not None:
            return known, known
        if op is None or op.name not in _NUMBERS:
            return None
        if op.name == "tt.make_range":
            start, end = int(op.attrs["start"]), int(op.attrs["end"])
            return start, start + (end - start) * self._rounds - 1
        extents = [self._extent(operand) for operand in op.operands]
        known_extents = [extent for extent in extents if extent is not None]
        return _combined(op.name, known_extents) if len(known_extents) == len(extents) else None

    def _repeated(self, value: Value, dim: int) -> Value:
        """More equal elements, those of the first round."""
        op = value.op
        if op.name == "arith.constant" and "," in constant_text(op):
            raise _Unfit
        return self._copy(op, [self.first(operand) for operand in op.operands], self._long(value, dim))

    def _reshaped(self, value: Value, dim: int, longer: Callable[[Value, int], Value]) -> Value:
        """A shape operation of a longer operand, or, where it repeats its operand along `dim`, more of the same."""
        source, dim_before = _before(value.op, dim)
        repeats = value.defining == "tt.broadcast" and source.type.dims[dim_before] == 1
        operand = self.first(source) if repeats else longer(source, dim_before)
        return self._copy(value.op, [operand], self._long(value, dim))

    def _coded(self, op: Op, dim: int) -> Value:
        """A longer run of coded rows."""
        rows, columns, _ = op.result.type.dims
        steps = [self._growth.of(pointer) for pointer in op.operands]
        small = all(self._stays_small(pointer) for pointer in op.operands)
        if dim or op.block is not self._body or not small or steps != [3 * columns * rows, columns * rows, 0, rows]:
            raise _Unfit
        return self._copy(op, [self.first(pointer) for pointer in op.operands], self._long(op.result, 0))

    def first(self, value: Value) -> Value:
        """A value as it is in the first round."""
        if value.op is None or value.op.block is not self._body:
            return self._firsts.get(value, value)
        if value not in self._firsts:
            if value.op.name in ("tt.load", "tt.dot", CODED):
                raise _Unfit
            self._firsts[value] = self._copy(value.op, [self.first(v) for v in value.op.operands], value.type)
        return self._firsts[value]

    def _changes(self, value: Value) -> bool:
        """May a value differ from round to round?"""
        if value not in self._changing:
            inside = value.op is not None and value.op.block is self._body
            self._changing[value] = inside and any(self._changes(operand) for operand in value.op.operands)
        return self._changing[value]

    def _long(self, value: Value, dim: int) -> Type:
        dims = list(value.type.dims)
        dims[dim] *= self._rounds
        return Type(value.type.elem, tuple(dims))

    def _copy(self, op: Op, operands: list[Value], type_: Type, attrs: dict | None = None) -> Value:
        copy = Op(op.name, operands, attrs=op.attrs if attrs is None else attrs, location=op.location)
        copy.block = self._loop.block
        copy.results = [Value(op.result.name, type_, copy)]
        self.ops.append(copy)
        return copy.result

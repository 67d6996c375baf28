"""Random loads, stores and atomics: masked, strided, indexed, scattered, in place, contended."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.cpu.fuzz.builder import Builder, random_shape
from tests.cpu.fuzz.dtypes import BF16, BOOL, F16, F32, F64, FLOATS, INTEGERS
from tests.cpu.fuzz.generate_tensor import tamed
from tests.cpu.fuzz.operations import ATOMIC_INTEGERS
from tests.cpu.fuzz.program import Stmt, Type

ANY = (*FLOATS, *INTEGERS, BOOL)


def memory(g: Builder) -> None:
    g.rng.choice([tile_load, shared_load, strided_load, indexed_load, masked_load, in_place])(g)


def _load(g: Builder, elem: str, args: tuple[str, ...], certain: bool, **attrs: Any) -> str:
    return g.emit("load", args, Type(elem, tuple(attrs["shape"])), certain, **attrs)


def tile_load(g: Builder) -> None:
    g.load(g.dtype(), g.shape if g.chance(0.7) else random_shape(g.rng, g.rng.choice([1, 2, 3])))


def shared_load(g: Builder) -> None:
    """The same elements for every program: a row, a column, a vector or a scalar."""
    dtype = g.dtype()
    shape = g.rng.choice([g.shape, g.shape[-1:], (*g.shape[:-1], 1), ()])
    buffer = g.buffer(dtype, max(1, int(np.prod(shape))), g.fill(dtype))
    _load(g, dtype.name, (), True, buffer=buffer.name, mode="shared", shape=shape)


def strided_load(g: Builder) -> None:
    """Rows at a distance that is an argument, columns beyond a limit masked off."""
    dtype, shape = g.dtype(), random_shape(g.rng, 2)
    stride = shape[1] + g.rng.choice([0, 0, 1, 3])
    buffer = g.buffer(dtype, g.programs * shape[0] * stride, g.fill(dtype))
    attrs: dict[str, Any] = {"stride": stride, "stride_name": g.scalar(stride)}
    certain = True
    if g.chance(0.6):
        attrs["columns"] = g.scalar(g.rng.randrange(shape[1]) + 1)
        if g.chance(0.8):
            attrs["other"] = g.other(dtype)
        else:
            certain = False
    if g.chance(0.3):
        attrs["limit"] = g.scalar(g.rng.randrange(buffer.count) + 1)
        certain = certain and "other" in attrs
    _load(g, dtype.name, (), certain, buffer=buffer.name, mode="strided", shape=shape, **attrs)


def indexed_load(g: Builder) -> None:
    """Addresses computed from data."""
    dtype = g.dtype()
    numbers = g.values(lambda t: t.dtype.is_int and t.shape != () and t.dtype.bits > 8, certain=True)
    shape = g.types[g.choose(numbers)].shape if numbers else g.fitting_shape(1)
    size = g.rng.choice([1, 2, 16, 128])
    index = g.index(shape, size)
    buffer = g.buffer(dtype, size, g.fill(dtype))
    _load(g, dtype.name, (index,), True, buffer=buffer.name, mode="index", shape=shape, index_arg=0)


def masked_load(g: Builder) -> None:
    """A mask computed from data, on top of a tail or not."""
    dtype, shape = g.dtype(), g.fitting_shape(1)
    mask = g.mask(shape)
    count = g.programs * int(np.prod(shape))
    attrs: dict[str, Any] = {}
    if g.chance(0.5):
        count -= g.rng.randrange(int(np.prod(shape)))
        attrs["limit"] = g.scalar(count)
    if g.chance(0.8):
        attrs["other"] = g.other(dtype)
    buffer = g.buffer(dtype, count, g.fill(dtype))
    certain = "other" in attrs
    _load(g, dtype.name, (mask,), certain, buffer=buffer.name, mode="tile", shape=shape, mask_arg=0, **attrs)


def in_place(g: Builder) -> None:
    """Load, compute, store to the same elements or others of the tile, load again: what was read must not change.

    Sums of what is stored may run in one loop nest with the store."""
    name = g.operand(ANY, rank=1)
    type_ = g.types[name]
    buffer = g.buffer(type_.dtype, g.programs * type_.numel, g.fill(type_.dtype))
    place: dict[str, Any] = {"buffer": buffer.name, "mode": "tile", "shape": type_.shape}
    outside = len(g.visible)
    before = _load(g, type_.elem, (), True, **place)
    value = g.apply("add", before, name) if type_.dtype is not BOOL else g.apply("xor", before, name)
    summed = [before, value] if type_.dtype is F32 and len(type_.shape) == 2 else []
    if type_.numel > 2 and g.chance(0.5):
        value = _moved(g, value)
    if g.chance(0.5):  # nothing reads what was there but the store, and sums
        del g.visible[outside:]
    for summand in summed:
        g.emit("reduce", (summand,), Type("f32", type_.shape[1:]), False, kind="sum", axis=0, keep_dims=False)
    mask = (g.mask(type_.shape),) if g.chance(0.5) else ()
    masked = {"mask_arg": 1} if mask else {}
    g.effect("store", (value, *mask), barrier=True, **place, **masked)
    _load(g, type_.elem, (), value in g.certain, **place)


def _moved(g: Builder, name: str) -> str:
    """The elements of a tensor in another order: those of the first half at even places."""
    type_ = g.types[name]
    halves = g.emit("reshape", (name,), Type(type_.elem, (2, type_.numel // 2)))
    turned = g.emit("trans", (halves,), Type(type_.elem, (type_.numel // 2, 2)), order=(1, 0))
    return g.emit("reshape", (turned,), type_)


def store(g: Builder, name: str) -> None:
    """Write a value to an output of its own: every program its tile, the tail or a computed mask left out."""
    type_ = g.types[name]
    shape, args, attrs = type_.shape, [name], {}
    count = g.programs * type_.numel
    if shape and g.chance(0.3):
        attrs["limit"] = g.scalar(max(1, count - g.rng.randrange(type_.numel)))
    if shape and g.chance(0.2):
        attrs["mask_arg"] = 1
        args.append(g.mask(shape))
    if len(shape) == 2 and g.chance(0.2):
        attrs |= _strided(g, shape)
        count = g.programs * shape[0] * attrs["stride"]
    buffer = g.buffer(type_.dtype, count, "poison")
    g.effect("store", args, **{"buffer": buffer.name, "mode": "tile", "shape": shape, **attrs})


def _strided(g: Builder, shape: tuple[int, ...]) -> dict[str, Any]:
    stride = shape[1] + g.rng.choice([0, 1, 5])
    attrs: dict[str, Any] = {"mode": "strided", "stride": stride, "stride_name": g.scalar(stride)}
    if g.chance(0.5):
        attrs["columns"] = g.scalar(g.rng.randrange(shape[1]) + 1)
    return attrs


# ---- atomics


def atomic(g: Builder) -> None:
    g.rng.choice([contended, contended, exchanged, swapped, float_sum])(g)


def contended(g: Builder) -> None:
    """Integers: many lanes and programs meet at few addresses; the order does not matter."""
    dtype = g.rng.choice(ATOMIC_INTEGERS)
    found = g.values(lambda t: t.dtype.is_int and t.shape != (), certain=True)
    value = g.cast(g.choose(found) if found else g.load(dtype, g.fitting_shape(1)), dtype)
    kind = g.rng.choice(["add", "max", "min", "and", "or", "xor"])
    _rmw(g, kind, value, g.rng.choice([1, 2, 8, 64]))


def _rmw(g: Builder, kind: str, value: str, size: int) -> None:
    type_ = g.types[value]
    index = g.index(type_.shape, size)
    buffer = g.buffer(type_.dtype, size, "plain")
    mask = (g.mask(type_.shape),) if g.chance(0.4) else ()
    attrs = {"kind": kind, "buffer": buffer.name, "mode": "index", "shape": type_.shape, "index_arg": 1}
    g.effect("atomic", (value, index, *mask), **attrs, **({"mask_arg": 2} if mask else {}))


def float_sum(g: Builder) -> None:
    """Float additions in any order."""
    dtype = g.dtype((F32, F64, F16, BF16))
    value = g.load(dtype, g.fitting_shape(1))
    _rmw(g, "add", tamed(g, value), g.rng.choice([1, 4, 32]))


def exchanged(g: Builder) -> None:
    """Addresses of their own: the old values are known."""
    dtype = g.rng.choice(ATOMIC_INTEGERS)
    shape = g.fitting_shape(1)
    value = g.operand((dtype,), shape, certain=True)
    value = value if value in g.certain else g.load(dtype, shape)
    buffer = g.buffer(dtype, g.programs * int(np.prod(shape)), "plain")
    kind = g.rng.choice(["xchg", "add", "max", "umin", "xor"]).removeprefix("u")
    attrs = {"kind": kind, "buffer": buffer.name, "mode": "tile", "shape": shape}
    old = g.fresh(Type(dtype.name, shape), True)
    g.body.append(Stmt("atomic", (value,), (old,), attrs))
    g.visible.append(old)


def swapped(g: Builder) -> None:
    """Compare and swap; about half the comparisons hold."""
    dtype = g.rng.choice(ATOMIC_INTEGERS)
    shape = g.fitting_shape(1)
    buffer = g.buffer(dtype, g.programs * int(np.prod(shape)), "small")
    pattern = g.buffer(dtype, max(1, int(np.prod(shape))), "small")
    compare = _load(g, dtype.name, (), True, buffer=pattern.name, mode="shared", shape=shape)
    value = g.load(dtype, shape)
    old = g.fresh(Type(dtype.name, shape), True)
    attrs = {"buffer": buffer.name, "mode": "tile", "shape": shape}
    g.body.append(Stmt("cas", (compare, value), (old,), attrs))
    g.visible.append(old)

"""Random statements on whole tensors: shapes, reductions, scans, dot, gather, sort, histogram."""

from __future__ import annotations

import numpy as np

from tests.cpu.fuzz import versions
from tests.cpu.fuzz.builder import MAX_NUMEL, Builder, random_shape
from tests.cpu.fuzz.dtypes import (
    BF16,
    BOOL,
    F16,
    F32,
    F64,
    FLOATS,
    I8,
    I16,
    I32,
    INTEGERS,
    U8,
    U16,
    U32,
    DType,
    compared,
    summed,
)
from tests.cpu.fuzz.program import Stmt, Type
from tests.cpu.fuzz.versions import HISTOGRAM_TYPES, holds

ANY = (*FLOATS, *INTEGERS, BOOL)

# ---- shapes


def shape(g: Builder) -> None:
    g.rng.choice([reshape, trans, expand_dims, broadcast, join, split, cat, flip])(g)


def _tensor(g: Builder, domain: tuple[DType, ...] = ANY, rank: int = 1) -> tuple[str, Type]:
    name = g.operand(domain, rank=rank)
    return name, g.types[name]


def reshape(g: Builder) -> None:
    name, type_ = _tensor(g)
    bits = type_.numel.bit_length() - 1
    cuts = sorted(g.rng.randrange(bits + 1) for _ in range(g.rng.randrange(3)))
    sizes = [1 << (b - a) for a, b in zip([0, *cuts], [*cuts, bits], strict=True)]
    g.emit("reshape", (name,), Type(type_.elem, tuple(sizes)))


def trans(g: Builder) -> None:
    name, type_ = _tensor(g, rank=2)
    order = list(range(len(type_.shape)))
    g.rng.shuffle(order)
    g.emit("trans", (name,), Type(type_.elem, tuple(type_.shape[d] for d in order)), order=tuple(order))


def expand_dims(g: Builder) -> None:
    name, type_ = _tensor(g)
    if len(type_.shape) < 3:
        axis = g.rng.randrange(len(type_.shape) + 1)
        g.emit("expand_dims", (name,), Type(type_.elem, (*type_.shape[:axis], 1, *type_.shape[axis:])), axis=axis)


def broadcast(g: Builder) -> None:
    name = g.operand(ANY)
    type_ = g.types[name]
    shape = tuple(g.rng.choice([1, 2, 4, 8]) if size == 1 else size for size in type_.shape) or g.fitting_shape(1)
    if np.prod(shape) <= MAX_NUMEL:
        g.emit("broadcast", (name,), Type(type_.elem, shape))


def join(g: Builder) -> None:
    name, type_ = _tensor(g)
    if len(type_.shape) < 3 and type_.numel < MAX_NUMEL:
        other = g.operand((type_.dtype,), type_.shape)
        joined = g.emit("join", (name, other), Type(type_.elem, (*type_.shape, 2)))
        if g.chance(0.4):
            g.emit("reshape", (joined,), Type(type_.elem, (*type_.shape[:-1], 2 * type_.shape[-1])))


def split(g: Builder) -> None:
    found = g.values(lambda t: len(t.shape) > 1 and t.shape[-1] == 2)
    if found:
        name = g.choose(found)
        type_ = g.types[name]
    else:
        source, type_ = _tensor(g)
        if type_.numel < 4:
            return
        type_ = Type(type_.elem, (type_.numel // 2, 2))
        name = g.emit("reshape", (source,), type_)
    part = Type(type_.elem, type_.shape[:-1])
    results = tuple(g.fresh(part, name in g.certain) for _ in range(2))
    g.body.append(Stmt("split", (name,), results))
    g.visible += results


def cat(g: Builder) -> None:
    found = g.values(lambda t: len(t.shape) == 1 and t.numel < MAX_NUMEL)
    name = g.choose(found) if found else g.load(g.dtype(), random_shape(g.rng, 1))
    type_ = g.types[name]
    other = g.operand((type_.dtype,), type_.shape)
    g.emit("cat", (name, other), Type(type_.elem, (2 * type_.numel,)))


def flip(g: Builder) -> None:
    name, type_ = _tensor(g, (*FLOATS, *INTEGERS))
    if type_.shape == (1,):
        return  # Triton's front end reshapes to [] and fails
    g.emit("flip", (name,), type_, axis=g.rng.randrange(len(type_.shape)))


# ---- reductions and scans


def tamed(g: Builder, name: str) -> str:
    """Floats without NaN, infinities and numbers whose sums overflow; anything else as it is."""
    dtype = g.types[name].dtype
    if not dtype.is_float:
        return name
    inside = g.apply("lt", g.apply("abs", name), g.const(dtype, 60.0 if dtype is F16 else 1e4))
    return g.select(inside, name, g.const(dtype, 0.5))


def _sometimes_tamed(g: Builder, name: str) -> str:
    return tamed(g, name) if g.special and g.chance(0.7) else name


def reduction(g: Builder) -> None:
    kind = g.rng.choice(["sum", "sum", "sum", "max", "min", "argmax", "argmin", "prod", "xor", "or"])
    name, type_ = _tensor(g, INTEGERS if kind in ("prod", "xor", "or") else (*FLOATS, *INTEGERS))
    if kind == "sum":
        name = _sometimes_tamed(g, name)
    if kind in ("argmax", "argmin"):
        name = _ordered(g, name)
    dtype, rank = type_.dtype, len(type_.shape)
    axis = None if g.chance(0.2) and kind not in ("prod", "or", "argmax", "argmin") else g.rng.randrange(rank)
    keep = axis is not None and g.chance(0.25)
    result = summed(dtype) if kind == "sum" else compared(dtype) if kind in ("max", "min") else dtype
    if kind in ("argmax", "argmin"):
        result = I32
    rest = () if axis is None else type_.shape[:axis] + ((1,) if keep else ()) + type_.shape[axis + 1 :]
    certain = name in g.certain and not (dtype.is_float and kind in ("sum", "max", "min"))
    g.emit("reduce", (name,), Type(result.name, rest), certain, kind=kind, axis=axis, keep_dims=keep)


def _ordered(g: Builder, name: str) -> str:
    """Values with one order: determined, without NaN."""
    type_ = g.types[name]
    if not type_.dtype.is_float:
        return name
    if name not in g.certain:
        name = g.load(type_.dtype, type_.shape)
    return g.select(g.apply("eq", name, name), name, g.const(type_.dtype, -2.5))


def _scanned(kind: str, dtype: DType) -> DType:
    """Type in which a scan runs: here maxima of bf16 do in f32, the rest is the front end's choice."""
    if kind == "max" or (kind == "sum" and holds(versions.BF16_WIDENS)):
        dtype = F32 if dtype is BF16 else dtype
    widens = kind == "sum" or (kind == "prod" and holds(versions.PRODUCTS_WIDEN))
    return summed(dtype) if widens else dtype


def scan(g: Builder) -> None:
    kind = g.rng.choice(["sum", "sum", "prod", "max", "affine"])
    name, type_ = _tensor(g, INTEGERS if kind in ("prod", "affine") else (*FLOATS, *INTEGERS))
    dtype, axis = type_.dtype, g.rng.randrange(len(type_.shape))
    if kind == "sum":
        name = _sometimes_tamed(g, name)
    result = _scanned(kind, dtype)
    if kind == "max":
        name = g.cast(name, result)
    args = (name, g.operand((dtype,), type_.shape)) if kind == "affine" else (name,)
    certain = all(a in g.certain for a in args) and not dtype.is_float
    attrs = {"kind": kind, "axis": axis, "reverse": g.chance(0.4)}
    g.emit("scan", args, Type(result.name, type_.shape), certain, **attrs)


# ---- dot and rearrangement


def dot(g: Builder) -> None:
    source = g.dtype((F32, BF16, F16, F64, I8))
    m, n, k = (g.rng.choice([1, 2, 4, 8, 16, 16, 32]) for _ in range(3))
    found = g.values(lambda t: t.dtype is source and len(t.shape) == 2 and max(t.shape) <= 64)
    batch: tuple[int, ...] = (2,) if g.chance(0.15) else ()
    if found and not batch and g.chance(0.6):
        left = g.choose(found)
        m, k = g.types[left].shape
    else:
        left = g.load(source, (*batch, m, k))
    if g.chance(0.3) and not batch:  # an operand that is a view of another
        flipped = g.load(source, (n, k))
        right = g.emit("trans", (flipped,), Type(source.name, (k, n)), order=(1, 0))
    else:
        right = g.operand((source,), (*batch, k, n))
    left, right = (_sometimes_tamed(g, name) for name in (left, right))
    target = {I8: I32, F64: F64, F16: g.rng.choice([F16, F32, F32])}.get(source, F32)
    acc = (g.operand((target,), (*batch, m, n)),) if g.chance(0.5) else ()
    certain = source is I8 and all(a in g.certain for a in (left, right, *acc))
    g.emit("dot", (left, right, *acc), Type(target.name, (*batch, m, n)), certain)


def rearrange(g: Builder) -> None:
    g.rng.choice([gather, sort, histogram])(g)


def gather(g: Builder) -> None:
    name, type_ = _tensor(g)
    axis = g.rng.randrange(len(type_.shape))
    shape = list(type_.shape)
    if g.chance(0.4):
        shape[axis] = g.rng.choice([1, 2, 8, 16])
    if np.prod(shape) > MAX_NUMEL:
        return
    index = g.index(tuple(shape), type_.shape[axis])
    g.emit("gather", (name, index), Type(type_.elem, tuple(shape)), axis=axis)


def sort(g: Builder) -> None:
    """tl.sort reshapes to one dimension per factor of two; two dimensions show that rows stay apart."""
    domain = (I8, I16, I32, U8, U16, U32, F32, F16)
    shape = (g.rng.choice([2, 8, 16, 32]),) if g.chance(0.6) else (g.rng.choice([2, 4]), g.rng.choice([4, 8]))
    found = g.values(lambda t: t.dtype in domain and t.shape == shape, certain=True)
    name = g.choose(found) if found else g.load(g.dtype(domain), shape)
    dtype = g.types[name].dtype
    if dtype.is_float:
        name = _ordered(g, name)
    certain = name in g.certain and not dtype.is_float
    g.emit("sort", (name,), Type(dtype.name, shape), certain, descending=g.chance(0.5))


def histogram(g: Builder) -> None:
    shape, bins = random_shape(g.rng, 1), g.rng.choice([2, 8, 16, 64])
    index = g.index(shape, bins)
    if g.types[index].dtype not in HISTOGRAM_TYPES:
        index = g.cast(index, I32)
    mask = (g.mask(shape),) if g.chance(0.4) else ()
    g.emit("histogram", (index, *mask), Type("i32", (bins,)), bins=bins)

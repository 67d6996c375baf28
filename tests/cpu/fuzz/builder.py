"""What generators of statements share: emitting typed statements, picking operands, loading fresh tensors.

`certain` names the values whose every element the oracle knows exactly. Only these may decide control flow, masks,
addresses and what atomics do: elsewhere an error merely makes elements unknown.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tests.cpu.fuzz.bounds import round_to
from tests.cpu.fuzz.dtypes import BOOL, F32, FLOATS, I32, INTEGERS, DType
from tests.cpu.fuzz.operations import OPERATIONS
from tests.cpu.fuzz.oracle_elementwise import FUNCTIONS
from tests.cpu.fuzz.program import Block, Buffer, Stmt, Type

MAX_NUMEL = 2048
#: Elementwise operations whose float results the oracle bounds, or whose zeros may have either sign.
APPROXIMATE = {*FUNCTIONS, "fma", "maximum", "minimum", "maximum_nan", "minimum_nan", "clamp"}


class Builder:
    """Statements of a program under construction. `shape` is the shape its tensors tend to have."""

    def __init__(self, rng: random.Random, grid: tuple[int, int], shape: tuple[int, ...], dtypes: list[DType]) -> None:
        self.rng, self.grid, self.shape, self.dtypes = rng, grid, shape, dtypes
        self.special = rng.random() < 0.65
        self.buffers: list[Buffer] = []
        self.scalars: dict[str, int] = {}
        self.types: dict[str, Type] = {}
        self.certain: set[str] = set()
        self.visible: list[str] = []
        self.body: list[Stmt] = []
        self.depth = 0

    # ---- emitting

    def fresh(self, type_: Type, certain: bool) -> str:
        name = f"v{len(self.types)}"
        self.types[name] = type_
        if certain:
            self.certain.add(name)
        return name

    def emit(self, op: str, args: Iterable[str], type_: Type, certain: bool | None = None, **attrs: Any) -> str:
        """Append a statement with one result; it is certain if its operands are, unless told otherwise."""
        args = tuple(args)
        settled = all(a in self.certain for a in args) if certain is None else certain
        name = self.fresh(type_, settled)
        self.body.append(Stmt(op, args, (name,), attrs))
        self.visible.append(name)
        return name

    def effect(self, op: str, args: Iterable[str], **attrs: Any) -> None:
        self.body.append(Stmt(op, tuple(args), (), attrs))

    def apply(self, op: str, *args: str) -> str:
        """An elementwise operation on given operands."""
        operation = OPERATIONS[op]
        dtypes = tuple(self.types[a].dtype for a in args)
        shape = np.broadcast_shapes(*(self.types[a].shape for a in args))
        approximate = op in APPROXIMATE and dtypes[0].is_float
        certain = all(a in self.certain for a in args) and not approximate
        return self.emit(op, args, Type(operation.result(dtypes).name, shape), certain)

    def const(self, dtype: DType, value: float, shape: tuple[int, ...] = ()) -> str:
        data = round_to(dtype, np.float64(value)) if dtype.is_float else np.asarray(value, dtype.storage)
        return self.emit("const", (), Type(dtype.name, shape), True, value=data.item())

    def cast(self, name: str, dtype: DType) -> str:
        """A conversion that is defined for every element: see `to_integer` for float to integer."""
        source, shape = self.types[name].dtype, self.types[name].shape
        if source is dtype:
            return name
        if source.is_float and dtype.is_int:
            name = self.in_range(name, dtype)
        return self.emit("cast", (name,), Type(dtype.name, shape))

    def in_range(self, name: str, target: DType) -> str:
        """`name` with what `target` cannot hold (NaN too) replaced by 0: C leaves such conversions undefined."""
        source = self.types[name].dtype
        high = min(2.0 ** (target.bits - (target.kind == "signed")) * 0.75, source.largest * 0.5)
        low = -high if target.kind == "signed" else 0.0
        above = self.apply("ge", name, self.const(source, low))
        below = self.apply("le", name, self.const(source, high))
        return self.select(self.apply("and", above, below), name, self.const(source, 0.0))

    def select(self, condition: str, a: str, b: str) -> str:
        shapes = [self.types[n].shape for n in (condition, a, b)]
        return self.emit("where", (condition, a, b), Type(self.types[a].elem, np.broadcast_shapes(*shapes)))

    def block(self, params: tuple[str, ...], fill: Callable[[], tuple[str, ...]]) -> Block:
        """A block whose statements `fill` emits; what it made is invisible afterwards."""
        outer, visible, self.body = self.body, len(self.visible), []
        self.visible += params
        self.depth += 1
        yields = fill()
        self.depth -= 1
        body, self.body = tuple(self.body), outer
        del self.visible[visible:]
        return Block(params, body, yields)

    # ---- picking

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def dtype(self, domain: Iterable[DType] | None = None) -> DType:
        """One of the program's own types if the domain has one."""
        domain = list(domain or (*FLOATS, *INTEGERS, BOOL))
        own = [d for d in self.dtypes if d in domain]
        return self.rng.choice(own if own and self.chance(0.85) else domain)

    def values(self, accept: Callable[[Type], bool], certain: bool = False) -> list[str]:
        return [n for n in self.visible if accept(self.types[n]) and (not certain or n in self.certain)]

    def choose(self, names: list[str]) -> str:
        """Later values more often."""
        return names[max(self.rng.randrange(len(names)), self.rng.randrange(len(names)))]

    def operand(
        self, domain: Iterable[DType], shape: tuple[int, ...] | None = None, certain: bool = False, rank: int = 0
    ) -> str:
        """A value of a type in `domain`, of `shape` if given, else of any shape with at least `rank` dimensions."""
        domain = tuple(domain)
        found = self.values(
            lambda t: t.dtype in domain and (t.shape == shape if shape is not None else len(t.shape) >= rank), certain
        )
        if found and self.chance(0.9):
            return self.choose(found)
        convertible = self.values(
            lambda t: t.shape == shape if shape is not None else len(t.shape) >= rank, certain=certain
        )
        if convertible and self.chance(0.4):
            return self.cast(self.choose(convertible), self.dtype(domain))
        return self.load(self.dtype(domain), self.fitting_shape(rank) if shape is None else shape)

    def partner(self, name: str, domain: Iterable[DType]) -> str:
        """An operand that broadcasts with `name`."""
        domain, shape = tuple(domain), self.types[name].shape
        found = self.values(lambda t: t.dtype in domain and broadcasts(t.shape, shape))
        if found and self.chance(0.85):
            return self.choose(found)
        if self.chance(0.3):
            return self.literal(self.dtype(domain))
        return self.load(self.dtype(domain), shape)

    def literal(self, dtype: DType) -> str:
        if dtype.is_float:
            return self.const(dtype, self.rng.choice([0.5, 2.0, -1.0, 3.0, 0.1, -0.75, 1.0, 0.0, 7.0, 100.0]))
        if dtype is BOOL:
            return self.const(dtype, self.chance(0.5))
        value = self.rng.choice([0, 1, 2, 3, 5, 7, 100, -1, -3, dtype.low, dtype.high])
        return self.const(dtype, min(max(value, dtype.low), dtype.high))

    def fitting_shape(self, rank: int) -> tuple[int, ...]:
        if len(self.shape) >= rank:
            return self.shape
        return random_shape(self.rng, rank)

    # ---- memory

    def buffer(self, dtype: DType, count: int, fill: str) -> Buffer:
        buffer = Buffer(f"{'y' if fill == 'poison' else 'x'}{len(self.buffers)}", dtype.name, count, fill)
        self.buffers.append(buffer)
        return buffer

    def scalar(self, value: int) -> str:
        """Name of a scalar argument."""
        name = f"n{len(self.scalars)}"
        self.scalars[name] = value
        return name

    @property
    def programs(self) -> int:
        return self.grid[0] * self.grid[1]

    def fill(self, dtype: DType) -> str:
        if not self.special:
            return "plain"
        return self.rng.choice(["plain", "special", "special", "bits"])

    def load(self, dtype: DType, shape: tuple[int, ...]) -> str:
        """An unmasked or tail-masked load of every program's own tile of a new buffer."""
        numel = int(np.prod(shape))
        count, attrs = self.programs * numel, {}
        if shape and self.chance(0.4):
            count -= self.rng.randrange(numel) if self.chance(0.8) else 0
            attrs = {"limit": self.scalar(count), "other": self.other(dtype)}
        buffer = self.buffer(dtype, max(count, 1), self.fill(dtype))
        return self.emit(
            "load", (), Type(dtype.name, shape), True, buffer=buffer.name, mode="tile", shape=shape, **attrs
        )

    def other(self, dtype: DType) -> float:
        if dtype is BOOL:
            return False
        return round_to(dtype, np.float64(self.rng.choice([0.0, 1.0, -1.5]))).item() if dtype.is_float else 1

    def index(self, shape: tuple[int, ...], size: int) -> str:
        """Certain integers in 0 .. size - 1; size is a power of two."""
        found = self.values(lambda t: t.dtype.is_int and t.shape == shape and t.dtype.high >= size - 1, certain=True)
        name = self.choose(found) if found else self.load(I32, shape)
        return self.apply("and", name, self.const(self.types[name].dtype, size - 1))

    def condition(self) -> str:
        """A certain scalar bool."""
        scalars = self.values(lambda t: t.shape == () and t.dtype.is_int, certain=True)
        name = self.choose(scalars) if scalars and self.chance(0.7) else self.load(self.dtype(INTEGERS), ())
        other = self.literal(self.types[name].dtype)
        return self.apply(self.rng.choice(["lt", "ge", "eq", "ne"]), name, other)

    def mask(self, shape: tuple[int, ...]) -> str:
        """A certain tensor of bools."""
        found = self.values(lambda t: t.dtype is BOOL and t.shape == shape, certain=True)
        if found:
            return self.choose(found)
        numbers = self.values(lambda t: t.dtype is not BOOL and t.shape == shape, certain=True)
        name = self.choose(numbers) if numbers else self.load(self.dtype((F32, *INTEGERS)), shape)
        return self.apply(self.rng.choice(["gt", "le", "ne"]), name, self.literal(self.types[name].dtype))


def broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    try:
        return int(np.prod(np.broadcast_shapes(a, b))) <= MAX_NUMEL
    except ValueError:
        return False


def random_shape(rng: random.Random, rank: int) -> tuple[int, ...]:
    """Powers of two, sometimes 1, at most MAX_NUMEL / 2 elements."""
    budget = MAX_NUMEL // 2
    shape = []
    for _ in range(rank):
        size = min(1 << rng.randrange(0, 8 if rank == 1 else 6 if rank == 2 else 5), budget)
        size = 1 if rng.random() < 0.1 else size
        shape.append(size)
        budget //= size
    rng.shuffle(shape)
    return tuple(shape)

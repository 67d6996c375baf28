"""Draws programs: a kind decides which statements are likely; everything follows from (seed, index)."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.cpu.fuzz.builder import Builder, random_shape
from tests.cpu.fuzz.dtypes import BF16, BOOL, F16, F32, F64, INTEGERS, DType
from tests.cpu.fuzz.generate_control import control
from tests.cpu.fuzz.generate_elementwise import conversion, elementwise, extreme, multiply_add, shift
from tests.cpu.fuzz.generate_memory import atomic, memory, store
from tests.cpu.fuzz.generate_tensor import dot, join, rearrange, reduction, scan, shape
from tests.cpu.fuzz.program import Program, Type

STEPS: dict[str, Callable[[Builder], None]] = {
    "elementwise": elementwise,
    "shape": shape,
    "reduce": reduction,
    "scan": scan,
    "dot": dot,
    "memory": memory,
    "atomic": atomic,
    "rearrange": rearrange,
    # parts of "elementwise" and "shape", for programs that are to have many of them
    "join": join,
    "shift": shift,
    "extreme": extreme,
    "multiply_add": multiply_add,
    "conversion": conversion,
    "control": lambda g: control(g, lambda inner: _step(inner, "control")),
}
#: Kinds of programs and how often each is drawn.
KINDS = {
    "elementwise": 6, "shape": 3, "reduce": 3, "scan": 2, "dot": 2, "control": 4, "memory": 3, "atomic": 1,
    "rearrange": 2,
}  # fmt: skip
#: Weights of statements in every program; its own kind gets OWN more.
COMMON = {"elementwise": 8, "shape": 3, "reduce": 2, "scan": 1, "memory": 2, "control": 1}
OWN = 12
GRIDS = [(1, 1), (2, 1), (3, 1), (1, 2), (4, 1), (2, 2), (3, 2)]


def generate(seed: int, index: int, kind: str = "", only: tuple[DType, ...] = ()) -> Program:
    """Program `index` of a seed; of a kind, and mostly on certain types, if these are given."""
    rng = random.Random(f"{seed}/{index}/{kind}")
    kind = kind or rng.choices(list(KINDS), list(KINDS.values()))[0]
    grid = rng.choice(GRIDS)
    dtypes = [rng.choice([F32, F64, BF16, F16, F32, BF16]), rng.choice(INTEGERS)]
    if rng.random() < 0.5:
        dtypes.append(rng.choice([F32, F64, BF16, F16, BOOL, *INTEGERS]))
    dtypes = list(only) or dtypes
    g = Builder(rng, grid, random_shape(rng, rng.choice([1, 2, 2, 3])), dtypes)
    _start(g)
    for _ in range(rng.randrange(4, 10)):
        _step(g, kind)
    _finish(g)
    program = Program(seed, index, kind, grid, tuple(g.buffers), g.scalars, tuple(g.body), g.types)
    return program.without_dead_code()


def _start(g: Builder) -> None:
    g.emit("pid", (), Type("i32", ()), True)
    for dtype in g.dtypes:
        g.load(dtype, g.shape)
    if g.chance(0.5):
        g.emit("arange", (), Type("i32", (g.shape[-1],)), True, range=(0, g.shape[-1]))


def _step(g: Builder, kind: str) -> None:
    weights = dict(COMMON)
    weights[kind] = weights.get(kind, 0) + OWN
    if kind == "control" and g.depth:
        weights["control"] = 2
        weights["dot"] = 2
    name = g.rng.choices(list(weights), list(weights.values()))[0]
    STEPS[name](g)


def _finish(g: Builder) -> None:
    """Store what no statement used, and some of the rest."""
    used = {name for stmt in g.body for name in stmt.args} | {
        name for stmt in g.body for block in stmt.blocks for name in block.yields
    }
    made = [name for stmt in g.body if stmt.op not in ("const", "pid") for name in stmt.results]
    leaves = [name for name in made if name not in used]
    others = [name for name in made if name in used]
    for name in [*leaves[-6:], *g.rng.sample(others, min(len(others), 2))]:
        store(g, name)

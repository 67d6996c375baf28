"""A random program as data: typed statements over named values, each assigned once.

Statements are plain data, so that `source` can print them, `oracle` can run them and `shrink` can drop them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from tests.cpu.fuzz.dtypes import DTYPES, DType


@dataclass(frozen=True)
class Type:
    """Element type by name and shape; () is a scalar."""

    elem: str
    shape: tuple[int, ...]

    @property
    def dtype(self) -> DType:
        return DTYPES[self.elem]

    @property
    def numel(self) -> int:
        return prod(self.shape)

    def __str__(self) -> str:
        return f"{self.elem} {list(self.shape)}" if self.shape else self.elem


@dataclass(frozen=True)
class Buffer:
    """A tensor argument of `count` elements. `fill`: how it is filled before the launch (see `data.fill`)."""

    name: str
    elem: str
    count: int
    fill: str

    @property
    def dtype(self) -> DType:
        return DTYPES[self.elem]


@dataclass(frozen=True)
class Block:
    """Body of an `if` arm or a loop. `params`: loop index and carried values; `yields`: what it hands on."""

    params: tuple[str, ...]
    body: tuple[Stmt, ...]
    yields: tuple[str, ...]


@dataclass(frozen=True)
class Stmt:
    """`results = op(args)`. What `attrs` holds depends on the operation; `if`, `for` and `while` have blocks."""

    op: str
    args: tuple[str, ...]
    results: tuple[str, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    blocks: tuple[Block, ...] = ()

    @property
    def result(self) -> str:
        return self.results[0]

    @property
    def has_effect(self) -> bool:
        return self.op in EFFECTS or any(stmt.has_effect for block in self.blocks for stmt in block.body)


EFFECTS = ("store", "atomic", "cas")


@dataclass(frozen=True)
class Program:
    """One kernel: what it is called with and what it does. `types` has every value; `tags` are for the summary."""

    seed: int
    index: int
    kind: str
    grid: tuple[int, int]
    buffers: tuple[Buffer, ...]
    scalars: dict[str, int]
    body: tuple[Stmt, ...]
    types: dict[str, Type]

    @property
    def programs(self) -> int:
        return self.grid[0] * self.grid[1]

    def buffer(self, name: str) -> Buffer:
        return next(buffer for buffer in self.buffers if buffer.name == name)

    def walk(self) -> Iterator[Stmt]:
        """Every statement, those inside blocks too."""
        yield from walk(self.body)

    def without_dead_code(self) -> Program:
        """Without pure statements that nothing needs, unused buffers and unused scalar arguments."""
        body, _ = _alive(self.body, set())
        used = {name for stmt in walk(body) for name in stmt.attrs.values() if isinstance(name, str)}
        buffers = tuple(buffer for buffer in self.buffers if buffer.name in used)
        return replace(self, body=body, buffers=buffers, scalars={k: v for k, v in self.scalars.items() if k in used})


def walk(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    for stmt in body:
        yield stmt
        for block in stmt.blocks:
            yield from walk(block.body)


def _alive(body: tuple[Stmt, ...], needed: set[str]) -> tuple[tuple[Stmt, ...], set[str]]:
    """Statements of `body` that have an effect or one of the `needed` names, and what they need in turn."""
    kept: list[Stmt] = []
    needed = set(needed)
    for stmt in reversed(body):
        if not stmt.has_effect and not needed.intersection(stmt.results):
            continue
        blocks = []
        for block in stmt.blocks:
            inner, wanted = _alive(block.body, set(block.yields))
            blocks.append(replace(block, body=inner))
            needed |= wanted.difference(block.params)
        needed |= set(stmt.args)
        kept.append(replace(stmt, blocks=tuple(blocks)))
    return tuple(reversed(kept)), needed

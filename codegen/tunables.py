"""What may be chosen about a kernel instance without changing what it computes. Declared beside its lowering."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

ROW_TILES = "row_tiles"
CODED = "coded"  # 1: weights in 12 bits an element (runtime/coding.py), 0: as stored
NUM_WARPS, NUM_STAGES, PREFETCH_BYTES = "num_warps", "num_stages", "prefetch_bytes"
OPTIONS = (NUM_WARPS, NUM_STAGES, PREFETCH_BYTES)  # of a launch; every other name is a constant of the kernel's text

Value = int | tuple[int, ...]


@dataclass(frozen=True)
class Tunable:
    """A choice of a kernel instance on one target.

    name: a constant (BLOCK_N), ROW_TILES or one of OPTIONS. values: all that are allowed, the default among them.
    changes_bits: whether another value may change a bit of a result: then it is part of the numerics, and nobody but
    `--numerics free` may touch it. lays_out: whether a weight buffer's layout follows it.
    """

    name: str
    default: Value
    values: tuple[Value, ...]
    changes_bits: bool
    lays_out: bool = False

    def __post_init__(self) -> None:
        assert self.default in self.values, f"{self.name}: the default {self.default} is not among {self.values}"

    def read(self, value: object) -> Value | None:
        """`value`, perhaps out of JSON, as one that is allowed, or None."""
        candidate = tuple(value) if isinstance(value, list) else value
        return next((v for v in self.values if v == candidate and type(v) is type(candidate)), None)


def among(default: Value, values: Iterable[Value]) -> tuple[Value, ...]:
    """`values` in order, and the default if it is not one of them."""
    found = tuple(dict.fromkeys(values))
    return found if default in found else (default, *found)


def plain(value: Value) -> Any:
    """A value as JSON has it."""
    return list(value) if isinstance(value, tuple) else value

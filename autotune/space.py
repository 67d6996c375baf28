"""What may be tried for a kernel, and what a roofline says of it before anything is compiled."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from autotune.scenes import Scene, timed_scenes
from codegen.launching import row_tile
from codegen.plan import Kernel, Plan
from codegen.tunables import CODED, ROW_TILES, Tunable, Value, plain
from codegen.tuned import FREE
from dsl.cost import INT4_GROUP

HOPELESS = 1.5  # of the untuned kernel's bound: a candidate whose own bound is worse is not tried
LAUNCH_SECONDS = 1e-6
PROGRAM_SECONDS = 1e-7  # to take up a program
NEXT_TO_NOTHING = 4096  # bytes
# Of an element; two of all other weights that lie in panels. A block of 128 in int4 has two multipliers.
WEIGHT_BYTES = {"kernels/draft_head.py.j2": 1, "kernels/draft_head_int4.py.j2": (2 + INT4_GROUP) / (2 * INT4_GROUP)}
CODED_BYTES = 1.5  # of one in codes
PER_PASS = 4.0  # a panel that is read again comes from a nearer cache, so much faster

Values = dict[str, Value]


@dataclass(frozen=True)
class Machine:
    """Bytes and fp operations per second that all threads, or multiprocessors, reach together."""

    bandwidth: float
    peak: float
    units: int


@dataclass(frozen=True)
class Order:
    """Candidates, to be tried in this order if nothing else is known; bounds relative to that of the untuned one."""

    candidates: tuple[Values, ...]
    bounds: Mapping[str, float]

    def __len__(self) -> int:
        return len(self.candidates)


@dataclass(frozen=True)
class Space:
    """All candidates of one kernel under a numerics mode. Values by name; the defaults are among them."""

    plan: Plan
    kernel: Kernel
    tunables: tuple[Tunable, ...]

    @property
    def default(self) -> Values:
        """What the kernel has untuned."""
        return {tunable.name: tunable.default for tunable in self.tunables}

    @property
    def text(self) -> str:
        """Names and values of the tunables: two spaces with the same text have the same candidates."""
        return json.dumps([(tunable.name, tunable.default, tunable.values) for tunable in self.tunables])

    def __len__(self) -> int:
        return math.prod(len(tunable.values) for tunable in self.tunables)

    def __iter__(self) -> Iterator[Values]:
        for values in product(*(tunable.values for tunable in self.tunables)):
            yield {tunable.name: value for tunable, value in zip(self.tunables, values, strict=True)}

    def read(self, changed: Mapping[str, Value]) -> Values | None:
        """All values of a candidate out of those that differ from the defaults; None if it is none of this space."""
        tunables = {tunable.name: tunable for tunable in self.tunables}
        if not all(name in tunables and tunables[name].read(value) is not None for name, value in changed.items()):
            return None
        return self.default | dict(changed)

    def changed(self, values: Mapping[str, Value]) -> Values:
        """What of `values` is not the default."""
        return {name: value for name, value in values.items() if value != self.default[name]}

    def promising(self, machine: Machine) -> Order:
        """Candidates that the roofline does not rule out: by how little they change, then by how little they cost."""
        scenes = timed_scenes(self.plan, self.kernel)
        costs = {key(values): self.bound(values, scenes, machine) for values in self}
        base = costs[key(self.default)]
        kept = [values for values in self if costs[key(values)] <= HOPELESS * base or values == self.default]
        kept.sort(key=lambda values: (len(self.changed(values)), costs[key(values)]))
        return Order(tuple(kept), {key(values): costs[key(values)] / base for values in kept})

    def bound(self, values: Values, scenes: list[Scene], machine: Machine) -> float:
        """Weighted geometric mean over scenes of the least seconds of a launch; only their ratio means something."""
        total = sum(scene.weight for scene in scenes)
        parts = (s.weight * math.log(_seconds(self.kernel, values, s, machine)) for s in scenes)
        return math.exp(sum(parts) / total)


def _seconds(kernel: Kernel, values: Values, scene: Scene, machine: Machine) -> float:
    """Work shared out over the units, in whole programs; weights are read again for every further tile of rows."""
    tiles = values.get(ROW_TILES, kernel.row_tiles)
    tile = (row_tile(tiles, scene.rows) if isinstance(tiles, tuple) else 0) or 1
    passes = -(-scene.rows // tile)
    programs, size, flops = _work(kernel, values, scene, passes * tile)
    share = -(-programs // machine.units) * machine.units / programs
    moved = size * (1 + (passes - 1) / PER_PASS) / machine.bandwidth
    taken_up = LAUNCH_SECONDS + programs * PROGRAM_SECONDS / machine.units
    return float(share * max(moved, flops / machine.peak) + taken_up)


def _work(kernel: Kernel, values: Values, scene: Scene, rows: int) -> tuple[int, float, int]:
    """Programs, bytes and operations of a launch, padding included. rows: padded ones."""
    held: dict[str, Any] = {**dict(kernel.constants), **values}
    if "BLOCK_K" in held:
        panels, steps = -(-held["N"] // held["BLOCK_N"]), -(-held["K"] // held["BLOCK_K"])
        elements = panels * held["BLOCK_N"] * steps * held["BLOCK_K"]
        size = CODED_BYTES if held.get(CODED) else WEIGHT_BYTES.get(kernel.template, 2)
        return panels, size * elements, 2 * rows * elements
    if "BLOCK_C" in held:
        return scene.bucket * -(-held["CHANNELS"] // held["BLOCK_C"]), 4 * held["CHANNELS"] * scene.rows, 0
    return scene.bucket, NEXT_TO_NOTHING, 0


def space_of(plan: Plan, kernel: Kernel, numerics: str) -> Space:
    """The candidates of a kernel: of tunables that change bits only where numerics are free."""
    tunables = tuple(t for t in kernel.tunables if len(t.values) > 1 and (numerics == FREE or not t.changes_bits))
    return Space(plan, kernel, tunables)


def key(values: Mapping[str, Value]) -> str:
    """Values as text, the same for the same values."""
    return json.dumps({name: plain(value) for name, value in values.items()}, sort_keys=True)

"""Timing that a shared machine does not decide: candidate and untuned kernel take turns, and only their ratio counts.

Every launch of a replay has weights, states and pages of its own, as many as a step has of other layers, or enough to
exceed the last-level cache by far: so a kernel finds them where a decode step does, in memory or in a cache.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from autotune.arena import PER_LAYER, Operands
from autotune.forge import Candidate
from autotune.proof import Expected, Judge
from codegen.plan import Buffer
from runtime.graphs import Graph, record

BURST_SECONDS = 2e-3  # a replay lasts about this long at least
LONGEST_SECONDS = 10e-3  # no more copies than fit in this, beyond two
MOST_COPIES, MOST_LAUNCHES = 64, 400
MOST_BYTES = 1 << 30
SPARE = 21  # sixteenths of a buffer: another layout pads N and K by an eighth each at most, together by 81/64
WARM_UPS = 3
CODED_LAYOUTS = frozenset(["coded_panel", "coded_escapes"])
NOTCH = 1.57  # of the interquartile range over the root of the number: half the confidence interval of a median


@dataclass
class Lane:
    """One kernel in one scene, ready to be timed: launches on `copies` sets of operands, in turn."""

    graph: Graph
    launches: int
    device: torch.device
    alive: Sequence[Operands]

    def seconds(self) -> float:
        """Seconds of a launch, of one replay."""
        start = time.perf_counter()
        self.graph.replay()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / self.launches


class Pool:
    """Memory that all candidates of a kernel share in one scene, so that none is faster for where its operands lie.

    `copies` sets of what the next layer has another of; the rest, scratch among it, is the same for all launches. A
    weight buffer is laid out for the untuned kernel: another one reads the same numbers in another order. Codes are no
    numbers, so weights that are coded for one of the two only, or in other panels, get memory of their own.
    """

    def __init__(self, expected: Expected, copies: int) -> None:
        self.expected, self.copies = expected, copies
        self._shared = expected.start.copy().tensors
        self._device = expected.arena.device
        self._own: list[dict[str, Tensor]] = [{} for _ in range(copies)]
        self._coded: list[dict[str, tuple[Buffer, Tensor]]] = [{} for _ in range(copies)]

    def operands(self, candidate: Candidate, index: int) -> Operands:
        """The operands of one launch of a candidate."""
        return self.expected.arena.operands(
            candidate.plan, candidate.kernel, lambda name, buffer: self._tensor(name, buffer, index)
        )

    def _tensor(self, name: str, buffer: Buffer, index: int) -> Tensor:
        if buffer.role not in PER_LAYER:
            return self._shared[name]
        usual = self.expected.start.buffers.get(name)
        if buffer != usual and (usual is None or CODED_LAYOUTS & {buffer.layout, usual.layout}):
            return self._laid_out(name, buffer, index)
        storage = self._own[index].get(name)
        if storage is None or storage.numel() < buffer.bytes:
            storage = self._own[index][name] = self._storage(name, buffer)
        return storage[: buffer.bytes].view(self._shared[name].dtype).view(buffer.shape)

    def _laid_out(self, name: str, buffer: Buffer, index: int) -> Tensor:
        """The weights as one candidate reads them, until another one has them in yet another way."""
        found = self._coded[index].get(name)
        if found is None or found[0] != buffer:
            first = self._coded[0].get(name)
            same = index > 0 and first is not None and first[0] == buffer
            tensor = first[1].clone() if same and first is not None else self.expected.arena.weights(buffer)
            found = self._coded[index][name] = buffer, tensor.to(self._device)
        return found[1]

    def _storage(self, name: str, buffer: Buffer) -> Tensor:
        """Bytes for the buffer in any layout, filled with its contents over and over."""
        flat = self._shared[name].flatten().view(torch.uint8)
        size = max(buffer.bytes, flat.numel()) * SPARE // 16
        return flat.repeat(-(-size // flat.numel()))[:size]


def lane(candidate: Candidate, pool: Pool, device: torch.device, launches: int) -> Lane:
    """Record `launches` launches over the sets of operands of a pool, in turn."""
    every = [pool.operands(candidate, index) for index in range(pool.copies)]

    def run() -> None:
        for index in range(launches):
            candidate.launch(every[index % pool.copies])

    made = Lane(record(run, nullcontext, device, eager=False), launches, device, every)
    for _ in range(WARM_UPS):
        made.seconds()
    return made


@dataclass(frozen=True)
class Timed:
    """Ratios of a candidate's time to the untuned kernel's, by scene and round, and seconds of both by scene."""

    weights: Mapping[str, float]
    ratios: Mapping[str, list[float]] = field(default_factory=dict)
    seconds: Mapping[str, list[tuple[float, float]]] = field(default_factory=dict)

    def add(self, scene: str, tuned: float, untuned: float) -> None:
        """One round of one scene."""
        self.ratios[scene].append(tuned / untuned)
        self.seconds[scene].append((tuned, untuned))

    @property
    def logarithms(self) -> list[float]:
        """By round, the weighted mean over scenes of the logarithm of the ratio."""
        total = sum(self.weights.values())
        rounds = zip(*(self.ratios[scene] for scene in self.weights), strict=True)
        return [sum(w * math.log(r) for w, r in zip(self.weights.values(), row, strict=True)) / total for row in rounds]

    @property
    def ratio(self) -> float:
        """Weighted geometric mean over scenes of the median ratio."""
        total = sum(self.weights.values())
        parts = (w * math.log(statistics.median(self.ratios[scene])) for scene, w in self.weights.items())
        return math.exp(sum(parts) / total)

    @property
    def noise(self) -> float:
        """Half the confidence interval of the ratio, relative; infinite of fewer than three rounds."""
        found = self.logarithms
        if len(found) < 3:
            return math.inf
        low, _, high = statistics.quantiles(found, n=4)
        return NOTCH * (high - low) / math.sqrt(len(found))

    @property
    def worst(self) -> tuple[str, float]:
        """The scene in which the candidate does worst, and the ratio there that three rounds of four exceed."""
        found = {scene: statistics.quantiles(values, n=4)[0] for scene, values in self.ratios.items()}
        return max(found.items(), key=lambda item: item[1])

    def plain(self) -> dict[str, dict[str, float]]:
        """Median seconds of a launch and the ratio, by scene."""
        return {
            scene: {
                "tuned": statistics.median(tuned for tuned, _ in pairs),
                "untuned": statistics.median(untuned for _, untuned in pairs),
                "ratio": statistics.median(self.ratios[scene]),
            }
            for scene, pairs in self.seconds.items()
        }


class Contest:
    """Races candidates of one kernel against the untuned one. working_set: bytes that pass between two of its turns."""

    def __init__(self, judge: Judge, working_set: int) -> None:
        self.judge, self.working_set = judge, working_set

    @cached_property
    def _tracks(self) -> dict[str, tuple[Pool, int]]:
        """Operands and number of launches of a replay, by scene."""
        return {expected.scene.name: self._track(expected) for expected in self.judge.timed}

    @cached_property
    def _untuned(self) -> dict[str, Lane]:
        return self._lanes(self.judge.untuned)

    def _lanes(self, candidate: Candidate) -> dict[str, Lane]:
        tracks = self._tracks.items()
        return {name: lane(candidate, pool, self.judge.device, launches) for name, (pool, launches) in tracks}

    def _track(self, expected: Expected) -> tuple[Pool, int]:
        """Enough copies for the working set, enough launches for a burst."""
        unread = sum(b.bytes for b in expected.start.buffers.values() if b.layout == "coded_escapes")
        own = max(1, expected.start.bytes(PER_LAYER) - unread)
        once = lane(self.judge.untuned, Pool(expected, 1), self.judge.device, 1)
        seconds = min(once.seconds() for _ in range(2))
        fitting = max(2, min(int(LONGEST_SECONDS / seconds), MOST_BYTES // own, MOST_COPIES))
        copies = min(fitting, max(1, round(self.working_set / own)))
        launches = max(copies, min(MOST_LAUNCHES, int(BURST_SECONDS / seconds)))
        return Pool(expected, copies), -(-launches // copies) * copies

    def race(self, candidate: Candidate, rounds: int) -> Iterator[Timed]:
        """Time the candidate; yields what is known after each round.

        A round of a scene is five replays: the first is dropped, then the candidate runs first and last, the untuned
        kernel twice between; the next round is the other way round. Of two rounds, each of them has three replays
        after the other and one after itself.
        """
        untuned, lanes = self._untuned, self._lanes(candidate)
        names = {expected.scene.name: expected.scene.weight for expected in self.judge.timed}
        timed = Timed(names, {name: [] for name in names}, {name: [] for name in names})
        for index in range(rounds):
            for name in names:
                one, other = (lanes[name], untuned[name]) if index % 2 == 0 else (untuned[name], lanes[name])
                other.seconds()
                outer, inner, again, last = (entry.seconds() for entry in (one, other, other, one))
                pair = ((outer + last) / 2, (inner + again) / 2)
                timed.add(name, *(pair if index % 2 == 0 else pair[::-1]))
            yield timed

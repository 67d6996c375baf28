"""Which launch of a step does not do in its graph what it does by itself. Slow: for when it is known that one does not.

Where a prefix of the graph can be replayed (host graphs), graph and launches are run from one snapshot, ever shorter,
to the first launch after which any buffer differs, scratch included. Elsewhere, and for a fault that does not repeat,
the answer is of the buffers that differ the one that is complete first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from runtime.buffers import Buffers
from runtime.drafter import Drafter
from runtime.graphs import Graph, HostGraph
from runtime.observe.footprint import Footprint, Kept, bits, differing
from runtime.package import Package
from runtime.traffic import Moved, Shape, step_launches

# Written by several launches, for the next.
ROW_LAYOUT = ("row_slot", "row_pos", "row_token", "row_first", "row_count", "targets")
Launch = Callable[[], None]
Around = Callable[[int, dict[str, Any], Launch], None]


@dataclass(frozen=True)
class Difference:
    """Where a graph and its launches part.

    launch: its number in the step, from 1, out of `launches`; kernel, layer: of that launch.
    buffer: the first that differs; count: values that do; index: of the first one; replayed, eager: its two values.
    repeats: whether the graph still differed when it was run again.
    """

    launch: int
    launches: int
    kernel: str
    layer: str
    buffer: str
    count: int
    index: tuple[int, ...]
    replayed: float
    eager: float
    repeats: bool

    def __str__(self) -> str:
        often = "" if self.repeats else "; repeated, they agreed: suspect the memory, or another writer"
        return (
            f"{self.buffer} of {self.layer}, launch {self.launch} of {self.launches}, {self.kernel}: "
            f"{self.count} values differ, first {list(self.index)}: {self.replayed:g} instead of {self.eager:g}{often}"
        )


@dataclass(frozen=True)
class StepCall:
    """The section call that a step graph was recorded from."""

    package: Package
    buffers: Buffers
    drafter: Drafter
    bucket: int
    verify_drafts: int
    next_drafts: int

    def __call__(self) -> None:
        """Make its launches; be inside `package.compiling()`."""
        self.package.step.step(self.buffers.b, self.bucket, self.drafter, self.verify_drafts, self.next_drafts)

    def launches(self) -> list[Moved]:
        """What the plan wants launched, in order."""
        shape = Shape(self.bucket, self.verify_drafts, self.next_drafts, context=0, drafter=self.drafter)
        return list(step_launches(self.package.plan, shape))


class Culprit:
    """One step, run again and again from `before`, which `footprint` took of it.

    Leaves the step half done: the caller puts back what it wants to keep.
    """

    def __init__(self, step: StepCall, footprint: Footprint, before: Kept) -> None:
        self._step, self._launches = step, step.launches()
        self._footprint = footprint.with_scratch()
        self._before = _poisoned(self._footprint.take()) | before

    def find(self, graph: Graph, replayed: Kept, eager: Kept) -> Difference:
        """replayed, eager: what graph and launches left in the footprint; at least one copy differs."""
        self._learn()
        again = self._after(graph.replay)
        repeats = bool(differing(again, self._after(self._eagerly)))
        if repeats and isinstance(graph, HostGraph):
            return self._narrow(graph)
        names = differing(replayed, eager)
        lasting = [name for name in names if name not in ROW_LAYOUT] or names
        name = min(lasting, key=self._last_writer)
        return self._difference(self._last_writer(name), name, replayed[name], eager[name], repeats)

    def _narrow(self, graph: HostGraph) -> Difference:
        low, high = 0, max(graph.num_launches, len(self._arguments))
        parted = self._parted(graph, high)
        while high - low > 1:
            middle = (low + high) // 2
            found = self._parted(graph, middle)
            low, high, parted = (low, middle, found) if found[2] else (middle, high, parted)
        replayed, eager, names = parted
        last = min(high, len(self._arguments)) - 1
        buffer = next((name for name in self._arguments[last] if name in names), names[0])
        return self._difference(last, buffer, replayed[buffer], eager[buffer], repeats=True)

    def _parted(self, graph: HostGraph, count: int) -> tuple[Kept, Kept, list[str]]:
        """What the first `count` launches leave, from the graph and one by one, and the names that differ."""
        replayed = self._after(lambda: graph.replay_first(count))
        eager = self._after(lambda: self._eagerly(lambda i, _, launch: launch() if i < count else None))
        return replayed, eager, differing(replayed, eager)

    def _after(self, run: Launch) -> Kept:
        self._footprint.put(self._before)
        run()
        return self._footprint.take()

    def _eagerly(self, around: Around = lambda i, args, launch: launch()) -> None:
        with self._step.package.compiling(), tapped(self._step.package, around):
            self._step()

    def _learn(self) -> None:
        """The buffers that each launch is given, and the last launch that changes each buffer."""
        names = {self._step.buffers[name].data_ptr(): name for name in self._before}
        self._arguments: list[list[str]] = []
        self._changed: dict[str, int] = {}

        def watch(index: int, args: dict[str, Any], launch: Launch) -> None:
            given = [value.data_ptr() for value in args.values() if isinstance(value, Tensor)]
            mine = [names[at] for at in given if at in names]
            self._arguments.append(mine)
            part = self._footprint.only(mine)
            before = part.take()
            launch()
            for name in differing(before, part.take()):
                self._changed[name] = index

        self._after(lambda: self._eagerly(watch))

    def _last_writer(self, name: str) -> int:
        """Of a buffer that no launch is seen to change: the last launch that is given it."""
        given = (i for i in reversed(range(len(self._arguments))) if name in self._arguments[i])
        return self._changed.get(name, next(given, len(self._arguments) - 1))

    def _difference(self, launch: int, name: str, replayed: Tensor, eager: Tensor, repeats: bool) -> Difference:
        moved = self._launches[min(launch, len(self._launches) - 1)]
        apart = bits(replayed) != bits(eager)
        index = tuple(int(i[0]) for i in torch.nonzero(apart, as_tuple=True))
        return Difference(
            launch=launch + 1,
            launches=len(self._launches),
            kernel=moved.kernel,
            layer=moved.layer,
            buffer=name,
            count=int(apart.sum()),
            index=self._footprint.index(name, index),
            replayed=replayed[index].item(),
            eager=eager[index].item(),
            repeats=repeats,
        )


def _poisoned(kept: Kept) -> Kept:
    """NaN for numbers: what is left of an earlier run may be just what a launch failed to write."""
    return {name: value.fill_(torch.nan) if value.is_floating_point() else value for name, value in kept.items()}


@contextmanager
def tapped(package: Package, around: Around) -> Iterator[None]:
    """Inside, each launch of the step module goes through `around(index, args, launch)`, which may make it.

    The module is every engine's of this package: be inside `package.compiling()`, where threads take turns.
    """
    module = vars(package.step)
    kernels = {name: module[name] for name in package.plan.kernels if name in module}
    made = 0

    def through(kernel: Any, grid: tuple[int, ...], args: dict[str, Any]) -> None:
        nonlocal made
        made += 1
        around(made - 1, args, lambda: kernel[grid](**args))

    module.update({name: _Tapped(kernel, through) for name, kernel in kernels.items()})
    try:
        yield
    finally:
        module.update(kernels)


class _Tapped:
    """Stands for a kernel: `kernel[grid](**args)`."""

    def __init__(self, kernel: Any, through: Callable[[Any, tuple[int, ...], dict[str, Any]], None]) -> None:
        self._kernel, self._through = kernel, through

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda **args: self._through(self._kernel, grid, args)

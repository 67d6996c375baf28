"""Faults, planted in the runtime of a run's engines (never in the cold ones), which the runs have to find."""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from runtime.checkpoints.checkpoint import Checkpoint, Emission
from runtime.engine import Engine
from runtime.executor import Executor, Phase
from runtime.graphs import Graph
from runtime.package import Package, open_package
from runtime.plan import PAD_SLOT_ID
from runtime.request import Request
from runtime.seats import Seat
from tests.cpu.verify.mutants import copy_package, edit
from tests.state.bits import Bits
from tests.state.subject import Subject


@dataclass(frozen=True)
class Fault:
    """plant: into an engine; package: a faulty copy of one, in a folder.

    seen_as: pattern of the difference that it is found by, where only some oracles can tell; in_text: whether answers
    differ too, so that comparing them would do.
    """

    name: str
    seen_as: str
    in_text: bool
    plant: Callable[[Engine], None] | None = None
    package: Callable[[Package, Path], Package] | None = None

    def __str__(self) -> str:
        return self.name


@contextmanager
def planted(fault: Fault, subject: Subject) -> Iterator[Subject]:
    """The subject with the fault; it shares the cold answers, which are right."""
    with tempfile.TemporaryDirectory(prefix="stepforge-fault-") as folder:
        faulty = replace(subject, plant=fault.plant)
        faulty.cold = subject.cold
        if fault.package is not None:
            faulty.package = fault.package(subject.package, Path(folder) / "package")
        yield faulty


def around(owner: object, name: str, faulty: Callable[..., Any]) -> None:
    """Have `faulty(method, ...)` called in the place of a method of this one object."""
    method = getattr(owner, name)
    vars(owner)[name] = lambda *arguments, **options: faulty(method, *arguments, **options)


def phase_of(executor: Executor, graph: Graph) -> Phase:
    """What a graph does."""
    return next(key[0] for key, known in executor.graphs.items() if known is graph)


# What is kept


def prompt_end_dropped(engine: Engine) -> None:
    """Without a grid, the end of a prompt is not kept."""
    emitter, cache = engine.scheduler.emitter, engine.scheduler.cache

    def rows(method: Callable[..., Any], seat: Seat, end: int) -> list[Emission]:
        found = method(seat, end)
        dropped = [e for e in found if emitter.interval == 0 and e.position == seat.request.prompt_len]
        for emission in dropped:
            cache.release(emission.row)
        return [emission for emission in found if emission not in dropped]

    around(emitter, "rows", rows)


def junction_lost_on_split(engine: Engine) -> None:
    """A junction within an edge of the tree, which would have to be split, is not seen."""
    cache = engine.scheduler.cache

    def junction(method: Callable[..., Any], tokens: Any, near: object, end: int) -> object:
        found = method(tokens, near, end)
        ends = [node.end for node in cache.tree.match(tokens[:end]).nodes]
        return found if found is not None and found[0] in ends else None

    around(cache, "junction", junction)


def pinned_evicted(engine: Engine) -> None:
    """Pins are not looked at when room is made."""
    cache = engine.scheduler.cache

    def may_go(_: Callable[..., Any], checkpoint: Checkpoint, protected: object = None) -> bool:
        return not (checkpoint.busy or checkpoint.holders or checkpoint.key == protected)

    around(cache, "may_go", may_go)


# What is resumed


def restored_a_token_further(engine: Engine) -> None:
    """A slot goes on one token after the position of its checkpoint."""
    scheduler, views = engine.scheduler, engine.scheduler.executor.views

    def seated(method: Callable[..., Any], request: Request) -> None:
        method(request)
        seat = scheduler.seats.of(request)
        if 0 < seat.committed_len < len(seat.text) - 1:
            seat.committed_len = seat.state_len = seat.committed_len + 1
            views["committed_len"][seat.slot] = views["state_len"][seat.slot] = seat.committed_len

    around(scheduler.admission, "seat", seated)


def page_shared_on_write(engine: Engine) -> None:
    """The page that a resuming slot will write is the checkpoint's own, not a copy."""
    cache, writing = engine.scheduler.cache, []

    @contextmanager
    def in_use(method: Callable[..., Any], checkpoint: Checkpoint) -> Iterator[None]:
        writing[:] = checkpoint.pages[checkpoint.shared_pages :]
        with method(checkpoint):
            yield
        writing.clear()

    def take_page(method: Callable[..., Any], *protected: object) -> int:
        if not writing:
            return method(*protected)
        cache.pages.share(writing)
        return writing[0]

    around(cache, "in_use", in_use)
    around(cache, "take_page", take_page)


def partial_page_shared(engine: Engine) -> None:
    """What comes from the host pool shares all pages of the checkpoint above it, the partial one too."""
    cache = engine.scheduler.cache

    def shareable(_: Callable[..., Any], tokens: Any, position: int) -> tuple[int, ...]:
        above = [c for node in cache.tree.match(tokens[:position]).nodes if (c := node.checkpoint) is not None]
        on_device = [c for c in above if c.index is not None and c.position < position]
        return on_device[-1].pages if on_device else ()

    around(cache, "shareable", shareable)


def stale_seed(engine: Engine) -> None:
    """A slot keeps the seed of the one that had it before."""
    seeds = engine.scheduler.executor.views["seed"]

    def admit(method: Callable[..., Any], slot: int, *how: object) -> None:
        before = seeds[slot]
        method(slot, *how)
        seeds[slot] = before

    around(engine.scheduler.executor, "admit", admit)


# What the kernels are told


def padded_with_zero(engine: Engine) -> None:
    """Empty seats of a bucket carry slot 0."""

    def slot_row(method: Callable[..., Any], slots: Any) -> object:
        row = method(slots)
        return type(row)("i", [0 if slot == PAD_SLOT_ID else slot for slot in row])

    around(engine.scheduler.executor, "slot_row", slot_row)


def sentinel_reused(engine: Engine) -> None:
    """Rows of a prompt without a checkpoint carry checkpoint row 0."""
    executor = engine.scheduler.executor
    views = executor.views

    def replay(method: Callable[..., Any], graph: Graph) -> None:
        if phase_of(executor, graph) is Phase.PREFILL:
            rows = views["row_checkpoint"].tolist()
            views["row_checkpoint"][:] = array("i", [max(0, row) for row in rows])
        method(graph)

    around(executor, "replay", replay)


def recorded_on_live_state(engine: Engine) -> None:
    """A step is recorded by running it on the slots that it is for."""
    executor = engine.scheduler.executor

    def graph(method: Callable[..., Any], phase: Phase, size: int, *drafts: int, **options: object) -> Graph:
        known = len(executor.graphs)
        found = method(phase, size, *drafts, **options)
        if phase is Phase.STEP and len(executor.graphs) > known:
            executor.seat_slots([seat.slot for seat in engine.scheduler.seats.decoding])
            with executor.package.compiling():
                executor.package.step.step(engine.buffers.b, size, executor.drafter, *drafts)
        return found

    around(executor, "graph", graph)


def ring_clamped(package: Package, folder: Path) -> Package:
    """The ring of records does not wrap: beyond its end, all go into its last entry."""
    copy_package(package.path, folder)
    wrapped, clamped = "tl.store(records + (here & (RING - 1))", "tl.store(records + tl.minimum(here, RING - 1)"
    edit(folder, "cpu/kernels/mamba2_conv_step_*.py", (wrapped, clamped))
    return open_package(folder)


def drafter_kv_kept(engine: Engine) -> None:
    """After a rejection, the KV of accepted rows stays what the drafter wrote when it guessed."""
    bits, scheduler = Bits(engine), engine.scheduler
    views = scheduler.executor.views

    def replay(method: Callable[..., Any], graph: Graph) -> None:
        verified = scheduler.drafted
        if phase_of(scheduler.executor, graph) is not Phase.STEP or verified < 2:
            method(graph)
            return
        before = {name: np.array(bits.caches[name]) for name in bits.of_drafter}
        starts = {seat.slot: seat.committed_len for seat in scheduler.seats.decoding}
        method(graph)
        for seat in scheduler.seats.decoding:
            start, count = starts[seat.slot], views["num_accepted"][seat.slot]
            if count <= verified:
                _put_back(bits, seat, before, range(start, start + min(verified - 1, count)))

    around(scheduler.executor, "replay", replay)


def _put_back(bits: Bits, seat: Seat, before: dict[str, np.ndarray], entries: range) -> None:
    size = bits.plan.limits.page_size
    for entry in entries:
        page, order = seat.pages[entry // size], entry % size
        for name in bits.of_drafter:
            at = bits.order[name][order]
            bits.caches[name][page, at] = before[name][page, at]


FAULTS = (
    Fault("prompt end dropped at interval 0", "not published, and should be", False, prompt_end_dropped),
    Fault("restored at the wrong count", "", True, restored_a_token_further),
    Fault("shared page written, no copy on write", "", True, page_shared_on_write),
    Fault("ring cursor clamped", "", True, package=ring_clamped),
    Fault("padding row writes slot 0", "", True, padded_with_zero),
    Fault("sentinel reused as checkpoint row 0", "", True, sentinel_reused),
    Fault("stale seed of the last owner", "", True, stale_seed),
    Fault("junction lost on a split", "not published, and should be", False, junction_lost_on_split),
    Fault("recorded on live state", "", True, recorded_on_live_state),
    Fault("drafter KV kept after a rejection", "(KV|drafts) of slot|has changed, or is not", False, drafter_kv_kept),
    Fault("partial page shared without copy", "", True, partial_page_shared),
    Fault("pinned checkpoint evicted", "pin|evicted", False, pinned_evicted),
)

"""The canary: what is wrong with a step graph is found, named and healed; nothing else is ever said to be wrong."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

import pytest
import torch

from runtime.drafter import Drafter
from runtime.engine import Engine
from runtime.errors import BadOption
from runtime.executor import GraphKey, Phase
from runtime.graphs import EagerGraph, Graph, HostGraph
from runtime.observe.canary import Canary, CanaryDiffered
from runtime.observe.culprit import StepCall
from tests.cpu.engine.toys import Ask, drain, draw_ask, poison_free

PROMPT = tuple(b"the quick brown fox jumps over the lazy dog")
LIVE = ("state", "ring", "kv", "checkpoint", "weight")


class Watched:
    """An executor whose decode steps go through a canary; the rest is the executor's own."""

    def __init__(self, engine: Engine, canary: Canary) -> None:
        self.scheduler, self.canary, self.executor = engine.scheduler, canary, canary.executor

    def __getattr__(self, name: str) -> object:
        return getattr(self.executor, name)

    def key(self) -> GraphKey:
        """Of the step that the scheduler is about to make."""
        bucket = self.executor.limits.bucket(len(self.scheduler.seats.decoding))
        return (Phase.STEP, bucket, self.scheduler.drafted, self.scheduler.drafts)

    def replay(self, graph: Graph) -> None:
        """What the scheduler calls for a decode step."""
        slots = [seat.slot for seat in self.scheduler.seats.decoding]
        if self.canary.replay(graph, self.key(), slots):
            self.scheduler._step_key = None


def watched(engine: Engine, rate: float, seed: int = 0) -> Canary:
    """Put a canary into an engine, in the place of one that may be there."""
    executor = engine.scheduler.executor
    canary = Canary(executor.executor if isinstance(executor, Watched) else executor, rate, seed)
    engine.scheduler.executor = Watched(engine, canary)
    return canary


@dataclass(frozen=True)
class Fault:
    """What is wrong in the arguments of one recorded launch: an address, or a number that is one too small."""

    launch: int
    argument: str

    def plant(self, engine: Engine, graph: HostGraph) -> None:
        """Weights are read, states written in a copy that nothing else knows; the copy of a weight is another one."""
        recorded = graph.recording.launches[self.launch]
        plan, words = engine.package.plan, memoryview(graph.recording._packed[self.launch]).cast("B").cast("q")
        scalars = dict(recorded.scalars)
        if self.argument in scalars:
            where = [i for i, word in enumerate(words) if word == scalars[self.argument]]
            words[where[-1]] -= 1
            return
        at = dict(recorded.tensors)[self.argument]
        name = next(name for name in plan.buffers if engine.buffers[name].data_ptr() == at)
        copy = engine.buffers[name].clone()
        if plan.buffers[name].role == "weight":
            copy.mul_(-8).add_(1)
        graph.recording._alive.append((copy,))
        words[words.tolist().index(at)] = copy.data_ptr()


def faults(engine: Engine, graph: HostGraph) -> Iterator[Fault]:
    """One for every weight, state, cache, checkpoint buffer and number of every launch that can matter."""
    buffers = engine.package.plan.buffers.values()
    roles = {engine.buffers[b.name].data_ptr(): b.role for b in buffers}
    escapes = [engine.buffers[b.name] for b in buffers if b.layout == "coded_escapes"]
    never_read = {tensor.data_ptr() for tensor in escapes if not tensor.any()}  # no row escapes its codes
    for i, launch in enumerate(graph.recording.launches):
        for name, at in launch.tensors:
            if roles[at] in LIVE and at not in never_read:
                yield Fault(i, name)
        for name, value in launch.scalars:
            if value:
                yield Fault(i, name)


def step_graph(engine: Engine, key: GraphKey) -> HostGraph:
    graph = engine.scheduler.executor.graph(*key)
    assert isinstance(graph, HostGraph)
    return graph


def keep_busy(engine: Engine, rng: Random, asked: list, slots: int = 2) -> None:
    """Submit until `slots` requests run or wait."""
    while len(engine.scheduler.unfinished()) < slots:
        ask = draw_ask(rng)
        asked.append((ask, ask.submit(engine)))


def check(oracle, asked: list) -> None:
    """All answers are those of cold engines, as far as they have come."""
    for ask, request in asked:
        assert request.output == oracle(ask)[0][: len(request.output)]
        assert not request.finished or request.finish_reason == oracle(ask)[1]


def test_every_fault_in_a_graph_is_found_and_healed(package, weights, oracle):
    """Each is planted in a graph of its own, while the engine goes on; the answers stay right.

    But for the first launch's, which lets later ones write where no step may: that is found, not undone.
    """
    rng, asked, key = Random(1), [], (Phase.STEP, 2, 3, 3)
    engine = Engine(package, weights, drafts=3, slots=2)
    keep_busy(engine, rng, asked)
    engine.step()
    planted = list(faults(engine, step_graph(engine, key)))
    assert len(planted) > 145
    for fault in planted[1:]:
        found_by_canary(engine, key, fault, lambda: keep_busy(engine, rng, asked))
    drain(engine)
    check(oracle, asked)
    found_by_canary(engine, key, planted[0], lambda: keep_busy(engine, rng, asked))


def found_by_canary(engine: Engine, key: GraphKey, fault: Fault, submit: Callable[[], None]) -> None:
    """Plant a fault in a graph just recorded; a canary must name exactly that launch."""
    canary = watched(engine, 1)
    canary.go_eager()
    canary.executor.eager, engine.scheduler._step_key = False, None
    fault.plant(engine, step_graph(engine, key))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CanaryDiffered)
        for _ in range(200):
            submit()
            engine.step()
            if canary.reports:
                break
    (difference,) = [report.difference for report in canary.reports]
    launch = StepCall(engine.package, engine.buffers, Drafter.MTP, *key[1:]).launches()[fault.launch]
    assert (difference.launch, difference.kernel, difference.layer) == (fault.launch + 1, launch.kernel, launch.layer)
    assert difference.repeats


def test_no_false_alarm_and_no_other_token(package, weights, oracle):
    """2000 steps, all run twice: K from 0 to 7 and the batch change, slots and pages are reused, free memory is NaN."""
    rng, asked = Random(2), []
    engine = Engine(package, weights, drafts=3)
    canary = watched(engine, 1)
    while canary.steps < 2000:
        if rng.random() < 0.2:
            engine.set_drafts(rng.randint(0, 7))
        keep_busy(engine, rng, asked, rng.choice((1, 2, 4)))
        poison_free(engine)
        engine.step()
    drain(engine)
    assert canary.checked == canary.steps and not canary.reports and canary.agreed
    check(oracle, asked)
    assert engine.stats().checkpoint_counts.written > 100


def test_a_difference_says_what_to_do_and_ends_the_graphs(package, weights):
    engine = Engine(package, weights, drafts=3, slots=1)
    canary = watched(engine, 1)
    request = Ask(PROMPT, 60).submit(engine)
    while len(request.output) < 10:
        engine.step()
    graph = step_graph(engine, (Phase.STEP, 1, 3, 3))
    scan = next(i for i, launch in enumerate(graph.recording.launches) if launch.name.startswith("mamba2_scan_step"))
    Fault(scan, "a_log").plant(engine, graph)
    with pytest.warns(CanaryDiffered) as caught:
        while canary.agreed:
            engine.step()
    (report,), (warning,) = canary.reports, caught
    assert report.step == canary.steps - 1 and report.agreed == report.step - 1 and report.key == (Phase.STEP, 1, 3, 3)
    text = str(warning.message)
    assert "\n" not in text and "codegen verify" in text and "restart the engine" in text
    assert "mixed_16 of layers.0 mamba, launch 7 of" in text or "state of layers.0 mamba, launch 7 of" in text
    assert canary.executor.eager and not canary.executor.graphs and canary.agreed is False
    checked = canary.checked
    drain(engine)
    assert isinstance(engine.scheduler._step_graph, EagerGraph) and canary.checked == checked
    with Engine(package, weights, drafts=3) as other:
        assert request.output == list(other.generate(list(PROMPT), max_new_tokens=60, stop_at_eos=False).tokens)


class Opaque:
    """A graph of which no part can be replayed, as on CUDA. once: of its replays, the one after which memory flips."""

    num_launches = 0

    def __init__(self, graph: Graph, buffer: torch.Tensor | None = None) -> None:
        self.graph, self.buffer = graph, buffer

    def replay(self) -> None:
        self.graph.replay()
        if self.buffer is not None:
            self.buffer.view(-1)[3] += 1
            self.buffer = None


WRITERS = {
    "layers_0_state": ("mamba2_scan_step", "layers.0 mamba"),
    "layers_1_k_cache": ("rope_append", "layers.1 attention"),
    "layers_2_record_ring": ("mamba2_conv_step", "layers.2 mamba"),
    "committed_len": ("accept_drafts", "accept"),
    "tokens": ("draft_sample", "mtp head"),
}


def writer(graph: HostGraph, tensor: torch.Tensor, kernel: str) -> Fault:
    """The last launch of a kernel that is given a buffer, writing into another one."""
    for i, launch in reversed(list(enumerate(graph.recording.launches))):
        for argument, at in launch.tensors:
            if launch.name.startswith(kernel) and at == tensor.data_ptr():
                return Fault(i, argument)
    raise AssertionError(kernel)


@pytest.mark.parametrize("transient", [False, True])
@pytest.mark.parametrize("buffer", WRITERS)
def test_without_prefixes_the_buffer_that_is_complete_first_is_named(package, weights, buffer, transient):
    engine = Engine(package, weights, drafts=3, slots=1)
    canary = watched(engine, 1)
    request = Ask(PROMPT[:5], 60).submit(engine)
    while not request.output:
        engine.step()
    key, live = engine.scheduler.executor.key(), engine.buffers[buffer]
    graph, (kernel, layer) = step_graph(engine, key), WRITERS[buffer]
    if not transient:
        writer(graph, live, kernel).plant(engine, graph)
    elif buffer.endswith("cache"):
        live = live[engine.buffers["page_table"][0, int(engine.buffers["committed_len"][0]) // 8]]
    canary.executor.graphs[key] = Opaque(graph, live if transient else None)
    engine.scheduler._step_key = None
    with pytest.warns(CanaryDiffered, match="repeated, they agreed" if transient else buffer):
        while not canary.reports:
            engine.step()
    difference = canary.reports[0].difference
    assert (difference.buffer, difference.layer) == (buffer, layer) and difference.kernel.startswith(kernel)
    assert difference.repeats is not transient and (difference.count == 1 or not transient)


def test_a_graph_of_another_key_is_found(package, weights):
    engine = Engine(package, weights, drafts=3, slots=1)
    canary = watched(engine, 1)
    request = Ask(PROMPT, 60).submit(engine)
    while not request.output:
        engine.step()
    executor = canary.executor
    executor.graphs[Phase.STEP, 1, 3, 3] = executor.graph(Phase.STEP, 1, 3, 1)
    engine.scheduler._step_key = None
    with pytest.warns(CanaryDiffered):
        while not canary.reports:
            engine.step()
    difference = canary.reports[0].difference
    assert (difference.launch, difference.launches, difference.kernel) == (47, 74, "drafter_next_row")


@pytest.mark.parametrize("rate", [1.0, 0.5, 0.3, 0.01, 0.0])
def test_exactly_the_wanted_share_is_checked_and_the_same_ones_again(package, weights, rate):
    def checked(seed: int) -> list[int]:
        engine = Engine(package, weights, drafts=3, slots=1)
        canary, steps = watched(engine, rate, seed), []
        while canary.steps < 300:
            before, at = canary.checked, canary.steps
            keep_busy(engine, Random(0), [], 1)
            engine.step()
            steps += [at] * (canary.checked - before)
        return steps

    first = checked(1)
    assert abs(len([step for step in first if step < 300]) - 300 * rate) <= 1
    assert checked(1) == first
    assert rate in (0, 1) or checked(2) != first


@pytest.mark.parametrize("rate", [-0.1, 1.5, float("nan"), True, "1"])
def test_a_rate_is_a_share(package, weights, rate):
    with Engine(package, weights) as engine, pytest.raises(BadOption, match="canary"):
        Canary(engine.scheduler.executor, rate)


def test_a_rate_may_be_as_small_as_a_float(package, weights):
    engine = Engine(package, weights, drafts=3)
    canary = watched(engine, 5e-324)
    engine.generate(list(PROMPT), max_new_tokens=8)
    assert canary.steps and not canary.checked


def test_nothing_is_checked_twice_without_graphs(package, weights):
    engine = Engine(package, weights, drafts=3, eager=True)
    canary = watched(engine, 1)
    engine.generate(list(PROMPT), max_new_tokens=8)
    assert canary.steps and not canary.checked and canary.agreed is None

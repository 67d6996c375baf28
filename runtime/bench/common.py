"""What the scenarios share: text, engines, a cold engine to compare with, and a quiet clock."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any, NamedTuple

from runtime.assemble import resolve_drafts
from runtime.engine import Engine
from runtime.executor import Phase
from runtime.graphs import Graph
from runtime.observe.stats import percentile
from runtime.package import Package
from runtime.request import Request

Progress = Callable[[str], None]

TEXT = (
    "A state space model keeps a state of fixed size and updates it with every token it reads. Attention keeps all "
    "tokens and looks at them again. Hybrid models mix both: most layers fold the past into a state, a few look back. "
    "To decode fast, a small module drafts the next tokens and the model verifies them in one pass; what it rejects "
    "must leave no trace, so the state is written only once a token is known to count. "
)
WARM_TOKENS = 8


@dataclass(frozen=True)
class Ask:
    """One request: prompt ids and the options of `submit` that decide its tokens."""

    prompt: tuple[int, ...]
    max_new_tokens: int
    temperature: float = 0.0
    seed: int = 0
    stop_at_eos: bool = True

    def submit(self, engine: Engine, **options: Any) -> Request:
        """Queue it. options: of `submit`, that change when it is answered, not what."""
        return engine.submit(
            list(self.prompt),
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
            seed=self.seed,
            stop_at_eos=self.stop_at_eos,
            **options,
        )


@dataclass(frozen=True)
class Model:
    """What a scenario makes its engines of. threads: CPU threads of all of them."""

    package: Package
    weights: Any
    drafts: int | None = None
    threads: int | None = None

    @property
    def num_drafts(self) -> int:
        """Tokens that its engines draft per step."""
        return resolve_drafts(self.package.plan, self.drafts, None)[0]

    def engine(self, **options: Any) -> Engine:
        """An engine whose graphs are recorded and have run once. options: of Engine, before those of the model."""
        chosen = {"drafts": self.drafts, "threads": self.threads} | options
        engine = Engine(self.package, self.weights, **chosen)
        warm_up(engine)
        return engine


@dataclass
class Cold:
    """The answers of an engine without a past: alone, no drafts, prompts token by token, no checkpoints. Kept."""

    model: Model
    engine: Engine = field(init=False)
    known: dict[Ask, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.engine = self.model.engine(drafts=0, prefill_chunk=1, slots=1, checkpoints=False)

    def __call__(self, ask: Ask) -> list[int]:
        """Output tokens."""
        if ask not in self.known:
            request = ask.submit(self.engine)
            drain(self.engine)
            self.known[ask] = request.output
        return self.known[ask]


def drain(engine: Engine) -> None:
    """Run until nothing is left."""
    while engine.busy:
        engine.step()


def warm_up(engine: Engine) -> None:
    """Record every graph that may be needed and run them, so that no step that is timed waits for it.

    Leaves no checkpoints. What was processed stays known, so its prompts begin with an id that no text begins with.
    """
    engine.warm_up()
    limits, prefill = engine.scheduler.limits, engine.scheduler.prefill
    for rows in limits.prefill_rows:
        if rows <= min(prefill.chunk, prefill.budget or prefill.chunk, limits.max_context - 1):
            engine.submit([limits.vocab_size - 1] * rows, max_new_tokens=1)
            drain(engine)
            engine.cache.clear()
    slots, longest = engine.scheduler.seats.slots, limits.max_context - WARM_TOKENS * (limits.max_slots + 1)
    for number in range(slots):
        prompt = [limits.vocab_size - 1] * max(1, min(longest, limits.prefill_chunk + number))
        engine.submit(prompt, max_new_tokens=WARM_TOKENS * (number + 1), stop_at_eos=False)
    drain(engine)
    engine.cache.clear()


class Replay(NamedTuple):
    """One replay of a graph, from its first to its last nanosecond."""

    graph: Graph
    begun: int
    ended: int


class ReplayClock:
    """Notes every replay of one engine in `log`: wraps `replay` of its executor, and nothing else knows of it."""

    def __init__(self, engine: Engine) -> None:
        self.log: list[Replay] = []
        self._executor = engine.scheduler.executor
        replay = self._executor.replay

        def noted(graph: Graph) -> None:
            begun = perf_counter_ns()
            replay(graph)
            self.log.append(Replay(graph, begun, perf_counter_ns()))

        self._executor.replay = noted  # type: ignore[method-assign]

    def of(self, phase: Phase) -> list[Replay]:
        """What was noted of one phase."""
        graphs = {id(graph) for key, graph in self._executor.graphs.items() if key[0] is phase}
        return [replay for replay in self.log if id(replay.graph) in graphs]


@contextmanager
def quiet() -> Iterator[None]:
    """No garbage collection inside."""
    before = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p90, p99 and the largest; nan of nothing."""
    found = {name: percentile(list(values), share) for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))}
    return found | {"max": percentile(list(values), 1.0)}

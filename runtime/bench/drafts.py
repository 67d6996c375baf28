"""Scenario drafts: decode speed without a drafter, with every fixed number of drafts, and with "auto"."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from random import Random
from statistics import median
from time import perf_counter
from typing import Any

from runtime.assemble import AUTO
from runtime.bench.common import TEXT, Model, Progress, quiet
from runtime.engine import Engine
from runtime.errors import BenchUnavailable

SHORTFALL = 0.05  # of the best fixed number, at most
CODE = """
class Stack:
    def __init__(self, items=()):
        self.items = list(items)

    def push(self, item):
        self.items.append(item)
        return self

    def pop(self):
        if not self.items:
            raise IndexError("pop from an empty stack")
        return self.items.pop()
"""


@dataclass(frozen=True)
class DraftsOptions:
    """prompt_tokens, new_tokens: of a request; requests: of each kind of text per round, one after the other."""

    prompt_tokens: int = 256
    new_tokens: int = 256
    requests: int = 2
    rounds: int = 11
    temperature: float = 0.8
    seed: int = 0


def run_drafts(model: Model, options: DraftsOptions, progress: Progress = print) -> dict[str, Any]:
    """All figures as JSON-ready data. Raises BenchUnavailable where there is nothing to draft."""
    limits = model.package.plan.limits
    if not limits.max_drafts:
        raise BenchUnavailable(what="drafts", detail="engine.max_drafts is 0")
    if options.prompt_tokens + options.new_tokens > limits.max_context:
        raise BenchUnavailable(what="drafts", detail="prompt and answer must fit max_context")
    engines = dict(_engines(model))
    texts = _texts(options)
    for name, engine in engines.items():
        progress(f"warming up {name}")
        for prompt in texts.values():
            _tokens_per_s(engine, prompt, options, 0)
    speeds: dict[str, dict[str, list[float]]] = {text: {name: [] for name in engines} for text in texts}
    with quiet():
        for number in range(options.rounds):
            for text, prompt in texts.items():
                progress(f"round {number + 1} of {options.rounds}: {text}")
                for name, engine in engines.items():
                    speeds[text][name].append(_tokens_per_s(engine, prompt, options, number))
    figures = {text: _row(found) for text, found in speeds.items()}
    return {
        "scenario": "drafts",
        "options": asdict(options),
        "tokens_per_s": figures,
        "checks": {
            f"{text}: auto within {SHORTFALL:.0%} of the best fixed number": row["auto_to_best"] >= 1 - SHORTFALL
            for text, row in figures.items()
        },
    }


def _engines(model: Model) -> Iterator[tuple[str, Engine]]:
    options = {"threads": model.threads, "checkpoints": False}
    yield "no drafter", Engine(model.package, model.weights, drafts=0, **options)
    for drafts in range(1, model.package.plan.limits.max_drafts + 1):
        yield str(drafts), Engine(model.package, model.weights, drafts=drafts, **options)
    auto = Engine(model.package, model.weights, drafts=AUTO, **options)
    auto.warm_up()
    yield AUTO, auto


def _texts(options: DraftsOptions) -> Mapping[str, bytes]:
    """The same number of bytes of each kind."""

    def cut(text: bytes) -> bytes:
        return (text * (options.prompt_tokens // len(text) + 1))[: options.prompt_tokens]

    noise = Random(options.seed).randbytes(options.prompt_tokens)
    return {"code": cut(CODE.encode()), "prose": cut(TEXT.encode()), "random bytes": noise}


def _tokens_per_s(engine: Engine, prompt: bytes, options: DraftsOptions, number: int) -> float:
    """Of some requests one after the other, from their first tokens on; the same ones in every engine."""
    seconds, tokens = 0.0, 0
    for request_number in range(options.requests):
        request = engine.submit(
            list(prompt),
            max_new_tokens=options.new_tokens,
            temperature=options.temperature,
            seed=Random(f"{options.seed} {number} {request_number}").getrandbits(31),
            stop_at_eos=False,
        )
        while not request.output:
            engine.step()
        first, begun = len(request.output), perf_counter()
        while engine.busy:
            engine.step()
        seconds += perf_counter() - begun
        tokens += len(request.output) - first
    return tokens / seconds


def _row(speeds: dict[str, list[float]]) -> dict[str, Any]:
    """Medians over rounds. auto_to_best: the median ratio within a round, to the fixed number where that is lowest."""
    ratios = {
        name: median(auto / fixed for auto, fixed in zip(speeds[AUTO], runs, strict=True))
        for name, runs in speeds.items()
        if name != AUTO
    }
    best = min(ratios, key=ratios.__getitem__)
    return {**{name: median(runs) for name, runs in speeds.items()}, "best": best, "auto_to_best": ratios[best]}

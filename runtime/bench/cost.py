"""Scenario cost: what a checkpoint costs the step that writes it, beside a memcpy; how soon a resumed prompt decodes.

Steps of one answer write a checkpoint or do not, by a coin, and after some of them the same bytes are copied by memcpy:
the same buffers, one call each, from the slot's own state, which the step has just written, to any row that is free.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from random import Random
from statistics import median
from time import perf_counter_ns
from typing import Any

from torch import Tensor

from runtime.bench.common import TEXT, Model, Progress, Replay, ReplayClock, drain, percentiles, quiet
from runtime.checkpoints.retention import NEVER
from runtime.engine import Engine
from runtime.errors import BenchUnavailable
from runtime.executor import Phase
from runtime.request import Request
from runtime.seats import Seat

MEMCPY_RATIO = 1.5
RESUME_MS = 2.0
NS_PER_US = 1e3


@dataclass(frozen=True)
class CostOptions:
    """steps: of each answer; contexts: their prompts' lengths; resumes: per prompt and batch; prompts: lengths."""

    steps: int = 900
    contexts: tuple[int, ...] = (64, 1024)
    resumes: int = 60
    batches: int = 5
    prompts: tuple[int, ...] = (256, 1500)


@dataclass(frozen=True, slots=True)
class Step:
    """Microseconds of a step and of its replay. emits: whether it wrote a checkpoint."""

    emits: bool
    whole: float
    replay: float


@dataclass(frozen=True, slots=True)
class Resume:
    """Microseconds from submit to the first decode step's replay, and its parts. restore: admission, with the copy."""

    total: float
    submit: float
    restore: float
    begin: float
    rest: float


def run_cost(model: Model, options: CostOptions, progress: Progress = print) -> dict[str, Any]:
    """All figures as JSON-ready data. Resumes without drafts, and with those of the model. Raises BenchUnavailable."""
    _check(model, options)
    emissions, resumes = {}, {}
    for context in options.contexts:
        progress(f"{options.steps} steps from {context} tokens")
        with model.engine(drafts=0, interval=1) as engine, quiet():
            emissions[context] = _emission_figures(engine, *_steps(engine, context, options.steps))
    for drafts in sorted({0, model.num_drafts}):
        with model.engine(drafts=drafts) as engine, quiet():
            clock = ReplayClock(engine)
            for length in options.prompts:
                progress(f"{options.batches} x {options.resumes} resumes of {length} tokens, {drafts} drafts")
                batches = [list(_resumes(engine, clock, length, options.resumes)) for _ in range(options.batches)]
                resumes[f"{length} tokens, K={drafts}"] = _resume_figures(batches)
    return {
        "scenario": "cost",
        "options": asdict(options),
        "emission": {str(context): row for context, row in emissions.items()},
        "resume": resumes,
        "checks": {**_emission_checks(emissions), **_resume_checks(resumes)},
    }


def _emission_checks(emissions: dict[int, dict[str, Any]]) -> dict[str, bool]:
    checks = {}
    for context, row in emissions.items():
        name = f"from token {context}: an emission costs at most {MEMCPY_RATIO} x a memcpy"
        checks[f"{name}, in kernels"] = row["kernels_ratio"] <= MEMCPY_RATIO
        checks[f"{name}, in all"] = row["ratio"] <= MEMCPY_RATIO
    return checks


def _resume_checks(resumes: dict[str, dict[str, Any]]) -> dict[str, bool]:
    checks = {}
    for name, row in resumes.items():
        checks[f"{name}: the median resume decodes within {RESUME_MS:.0f} ms"] = row["ms"]["p50"] <= RESUME_MS
        checks[f"{name}: the slowest of the quietest batch too"] = row["slowest_ms"] <= RESUME_MS
    return checks


def _check(model: Model, options: CostOptions) -> None:
    limits = model.package.plan.limits
    if model.package.device.type != "cpu":
        raise BenchUnavailable(what="the cost of a checkpoint", detail="kernels and host do not share their memory")
    longest = max(max(options.contexts) + options.steps + 4, max(options.prompts) + limits.max_rows)
    if longest > limits.max_context:
        detail = f"{longest} tokens must fit max_context {limits.max_context}"
        raise BenchUnavailable(what="the cost of a checkpoint", detail=detail)


def _prompt(engine: Engine, tokens: int) -> list[int]:
    return engine.tokenizer.encode(TEXT * (tokens // len(TEXT) + 1))[:tokens]


# Emission


def _steps(engine: Engine, context: int, steps: int) -> tuple[list[Step], dict[str, list[float]]]:
    """Steps of one answer, and microseconds of each kind of copy. Rows never run out: before, all are given up."""
    clock, cache, coin = ReplayClock(engine), engine.scheduler.cache, Random(context)
    engine.submit(_prompt(engine, context), max_new_tokens=steps + 4, stop_at_eos=False)
    while not engine.scheduler.seats.decoding:
        engine.step()
    engine.step()  # past the prompt end, which is kept already
    (seat,) = engine.scheduler.seats.decoding
    found: list[Step] = []
    copies: dict[str, list[float]] = {name: [] for name in COPIES}
    for _ in range(steps):
        if cache.rows_free < 2:
            engine.cache.clear()
        found.append(_timed_step(engine, seat, clock, emits=coin.random() < 0.5))
        if coin.random() < 0.25:
            name = coin.choice(list(COPIES))
            copies[name].append(_memcpy(engine, seat, coin.choice(cache.free_rows()), COPIES[name]))
    return found, copies


def _timed_step(engine: Engine, seat: Seat, clock: ReplayClock, emits: bool) -> Step:
    """One step that writes all that the seat has processed, or nothing."""
    free = engine.scheduler.cache.rows_free
    seat.next_due = seat.committed_len if emits else NEVER
    clock.log.clear()
    begun = perf_counter_ns()
    engine.step()
    ended = perf_counter_ns()
    assert free - engine.scheduler.cache.rows_free == emits
    replays = sum(replay.ended - replay.begun for replay in clock.log)
    return Step(emits, (ended - begun) / NS_PER_US, replays / NS_PER_US)


def _memcpy(engine: Engine, seat: Seat, row: int, copy: Callable[[Tensor, Tensor], Any]) -> float:
    """Microseconds to copy what a checkpoint holds, one call per buffer."""
    b, buffers = engine.buffers, []
    for part in engine.package.plan.checkpoint_parts:
        kept, live = b[part.checkpoint][row], b[part.live][seat.slot]
        buffers.append((kept, live.view(-1)[: kept.numel()].view_as(kept)))
    begun = perf_counter_ns()
    for kept, live in buffers:
        copy(kept, live)
    return (perf_counter_ns() - begun) / NS_PER_US


def _memmove(kept: Tensor, live: Tensor) -> None:
    ctypes.memmove(kept.data_ptr(), live.data_ptr(), kept.numel() * kept.element_size())


COPIES: dict[str, Callable[[Tensor, Tensor], Any]] = {"memmove": _memmove, "torch": Tensor.copy_}


def _emission_figures(engine: Engine, steps: Sequence[Step], copies: dict[str, list[float]]) -> dict[str, Any]:
    """Differences of medians. host_us: reserving, arming and publishing, in Python.

    ratio: all that a step takes longer, host included, to the faster copy.
    """
    parts = [engine.buffers[part.checkpoint][0] for part in engine.package.plan.checkpoint_parts]
    plain, emitting = ([step for step in steps if step.emits is emits] for emits in (False, True))
    step_us, emitting_us = (median(step.whole for step in found) for found in (plain, emitting))
    kernels = median(step.replay for step in emitting) - median(step.replay for step in plain)
    memcpy = {name: median(found) for name, found in copies.items()}
    return {
        "bytes": sum(part.numel() * part.element_size() for part in parts),
        "buffers": len(parts),
        "step_us": step_us,
        "emitting_step_us": emitting_us,
        "kernels_us": kernels,
        "host_us": emitting_us - step_us - kernels,
        "total_us": emitting_us - step_us,
        "memcpy_us": memcpy,
        "ratio": (emitting_us - step_us) / min(memcpy.values()),
        "kernels_ratio": kernels / min(memcpy.values()),
    }


# Resume


def _resumes(engine: Engine, clock: ReplayClock, tokens: int, count: int) -> Iterator[Resume]:
    """The same prompt again and again; the first time, which prefills it, does not count."""
    prompt = _prompt(engine, tokens)
    for number in range(count + 1):
        clock.log.clear()
        begun = perf_counter_ns()
        request = engine.submit(prompt, max_new_tokens=2 + engine.scheduler.drafts, stop_at_eos=False)
        submitted = perf_counter_ns()
        drain(engine)
        if number:
            yield _resume(request, begun, submitted, clock)


def _resume(request: Request, begun: int, submitted: int, clock: ReplayClock) -> Resume:
    assert request.restored_position == request.prompt_len
    begin: Replay = clock.of(Phase.BEGIN)[0]
    step: Replay = clock.of(Phase.STEP)[0]
    times = (
        step.begun - begun,
        submitted - begun,
        begin.begun - submitted,
        begin.ended - begin.begun,
        step.begun - begin.ended,
    )
    return Resume(*(nanoseconds / NS_PER_US for nanoseconds in times))


def _resume_figures(batches: Sequence[Sequence[Resume]]) -> dict[str, Any]:
    """slowest_ms: of the batch that other work on the machine disturbed least."""
    found = [resume for batch in batches for resume in batch]
    parts = ("submit", "restore", "begin", "rest")
    return {
        "ms": percentiles([resume.total / 1e3 for resume in found]),
        "slowest_ms": min(max(resume.total for resume in batch) for batch in batches) / 1e3,
        "parts_us": {part: median(getattr(resume, part) for resume in found) for part in parts},
    }

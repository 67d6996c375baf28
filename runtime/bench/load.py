"""Scenario load: random requests through all slots, with cancellations, priorities and deadlines.

What is answered, what is left behind, and how long steps take that prefill under a budget. The same traffic runs once
per budget and round on a fresh engine. Deadlines count in the first round only, which is not timed: without them every
round takes the same steps, and the time of a step is its median over rounds, which other work on the machine disturbs
little. Budgets take turns, so that it disturbs them alike.

A step with prefill decodes too. What that alone would take is the median of steps of the same run that decode as many
slots and do nothing else; so that there are some right beside, of the same requests at the same lengths, prefill pauses
every few steps. What is left of a step with prefill is held against its budget's tokens at the speed of a run without a
budget, which packs them into launches as large as the package has.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from random import Random
from statistics import median
from time import perf_counter_ns
from typing import Any

from runtime.assemble import MOST, in_range
from runtime.bench.common import TEXT, Ask, Cold, Model, Progress, ReplayClock, percentiles, quiet
from runtime.engine import Engine
from runtime.errors import BadOption, BenchUnavailable
from runtime.executor import Phase
from runtime.request import ANSWERED, Request
from runtime.request import Progress as Where
from runtime.tokenizer import ByteTokenizer

STEP_RATIO = 3.0  # p99 / p50 of steps that only decode
BUDGET_TOLERANCE = 2.0  # p90 of steps with prefill to the time of so many tokens: within a step prompts end and begin
THROUGHPUT_SHARE = 0.7  # of prefill without a budget
TIMES = ("microseconds", "replay_us")
HEADS = 4
PAUSE = 8  # every so many steps prefill nothing


@dataclass(frozen=True)
class LoadOptions:
    """budgets: prompt tokens per step, None for no budget, which must be among them; tokens are ranges, ends included.

    rounds: timed ones; gap: mean steps between arrivals, few enough to fill the slots; cancelled, urgent: shares of the
    requests that are given up, and that go first; deadlines: how many have one.
    """

    requests: int = 200
    budgets: tuple[int | None, ...] = (None, 128, 64, 16)
    rounds: int = 5
    gap: float = 2.0
    prompt_tokens: tuple[int, int] = (1, 400)
    answer_tokens: tuple[int, int] = (16, 128)
    head_tokens: int = 96
    cancelled: float = 0.12
    urgent: float = 0.1
    deadlines: int = 6
    seed: int = 0


@dataclass(frozen=True)
class Arrival:
    """A request that comes at step `at`. cancel_at: the step at which it is given up; deadline: seconds."""

    at: int
    ask: Ask
    priority: int
    client: str
    deadline: float | None
    cancel_at: int | None


@dataclass(frozen=True, slots=True)
class Step:
    """One iteration. replay_us: of it, in graphs; slots: that decoded; begins: first tokens sampled; paused: it was not
    allowed to prefill.
    """

    microseconds: float
    replay_us: float
    slots: int
    tokens: int
    chunks: int
    begins: int
    paused: bool = False

    @property
    def decodes_only(self) -> bool:
        """Whether it did nothing else."""
        return bool(self.slots) and not self.chunks and not self.begins


@dataclass
class Run:
    """The traffic through one engine. waits: seconds until a slot was given first; prefill_us: of all its chunks.

    alone: microseconds of steps of the whole budget with nothing beside them, once the traffic is over.
    """

    budget: int | None
    requests: list[tuple[Arrival, Request]] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    prefill_us: float = 0.0
    prefilled: int = 0
    restored: int = 0
    preemptions: int = 0
    leaks: list[str] = field(default_factory=list)
    alone: list[float] = field(default_factory=list)


def run_load(model: Model, options: LoadOptions, progress: Progress = print) -> dict[str, Any]:
    """All figures as JSON-ready data. Raises BenchUnavailable if a request does not fit max_context."""
    if None not in options.budgets:
        raise BadOption(
            option="budgets", value=options.budgets, allowed="with None, which the others are compared with"
        )
    for name, value in (("requests", options.requests), ("rounds", options.rounds)):
        in_range(name, value, 1, MOST)
    for name, (least, most) in (("prompt_tokens", options.prompt_tokens), ("new_tokens", options.answer_tokens)):
        in_range(name, least, 1, MOST)
        in_range(name, most, least, MOST)
    for budget in options.budgets:
        in_range("budgets", 1 if budget is None else budget, 1, MOST)
    arrivals = list(_traffic(model, options))
    untimed, timed = [], []
    for number in range(options.rounds + 1):
        for budget in options.budgets:
            progress(f"round {number} of {options.rounds}: {options.requests} requests, prefill budget {budget}")
            (timed if number else untimed).append(_serve(model, arrivals, budget, deadlines=not number))
    progress("the same, cold")
    wrong = _wrong(Cold(model), untimed + timed)
    leaking = sorted({leak for run in untimed + timed for leak in run.leaks})
    steps = {budget: _steady([run for run in timed if run.budget == budget]) for budget in options.budgets}
    decode = _decode_figures([step for found in steps.values() for step in found], timed)
    free_us = _prefill_us_per_token([run for run in timed if run.budget is None])
    budgets = {
        str(budget): _budget_figures(
            [r for r in timed if r.budget == budget], found, decode["p50_by_slots"] | _by_slots(found), free_us
        )
        for budget, found in steps.items()
    }
    return {
        "scenario": "load",
        "options": asdict(options),
        "drafts": model.num_drafts,
        "slots": model.package.plan.limits.max_slots,
        "decode_step_us": decode,
        "budgets": budgets,
        "with_deadlines": {str(run.budget): _ends([run]) for run in untimed},
        "wrong": wrong,
        "leaks": leaking,
        "checks": {
            "finished answers are those of a cold engine, others their beginning": not wrong,
            "nothing leaks": not leaking,
            f"p99 of steps that only decode below {STEP_RATIO:.0f} x their median": decode["p99_to_p50"] < STEP_RATIO,
            **_budget_checks(budgets),
        },
    }


def _budget_checks(budgets: dict[str, dict[str, Any]]) -> dict[str, bool]:
    checks = {}
    for budget, row in budgets.items():
        if budget != "None":
            name = f"budget {budget}: p90 of steps with prefill within {BUDGET_TOLERANCE} x the time of its tokens"
            checks[name] = row["budget_share"]["p90"] <= BUDGET_TOLERANCE
            name = f"budget {budget}: at least {THROUGHPUT_SHARE:.0%} of the prefill throughput without one"
            checks[name] = row["throughput_share"] >= THROUGHPUT_SHARE
    return checks


# Traffic


def _traffic(model: Model, options: LoadOptions) -> Iterator[Arrival]:
    """Arrivals in order: gaps are exponential, half of the prompts begin like others, one in four is sampled."""
    longest = options.head_tokens + options.prompt_tokens[1] + options.answer_tokens[1]
    if longest > model.package.plan.limits.max_context:
        raise BenchUnavailable(what="load", detail=f"{longest} tokens must fit max_context")
    rng, at = Random(options.seed), 0.0
    start = tuple(ByteTokenizer(model.package.plan.specials).encode(b""))
    heads = [start + _words(rng, options.head_tokens) for _ in range(HEADS)]
    in_haste = set(rng.sample(range(options.requests), min(options.deadlines, options.requests)))
    for number in range(options.requests):
        at += rng.expovariate(1 / options.gap)
        head = rng.choice(heads) if rng.random() < 0.5 else start
        prompt = head + _words(rng, rng.randint(*options.prompt_tokens))
        ask = Ask(prompt, rng.randint(*options.answer_tokens), rng.choice((0.0, 0.0, 0.0, 0.8)), rng.getrandbits(32))
        yield Arrival(
            at=int(at),
            ask=ask,
            priority=rng.choice((1, 2)) if rng.random() < options.urgent else 0,
            client=rng.choice("abc"),
            deadline=rng.uniform(0.02, 0.3) if number in in_haste else None,
            cancel_at=int(at) + rng.randint(1, 60) if rng.random() < options.cancelled else None,
        )


def _words(rng: Random, tokens: int) -> tuple[int, ...]:
    """Words of the text in any order, so that prompts differ."""
    words, found = TEXT.split(), b""
    while len(found) < tokens:
        found += rng.choice(words).encode() + b" "
    return tuple(found[:tokens])


# Serving


def _serve(model: Model, arrivals: Sequence[Arrival], budget: int | None, deadlines: bool) -> Run:
    """All arrivals through a fresh engine."""
    run = Run(budget)
    with model.engine(prefill_budget=budget) as engine, quiet():
        counters, before = engine.scheduler.counters, engine.scheduler.counters.prefill_ns
        prefilled, restored = counters.prefilled_tokens, counters.restored_tokens
        _run(engine, arrivals if deadlines else [replace(arrival, deadline=None) for arrival in arrivals], run)
        run.prefill_us = (counters.prefill_ns - before) / 1e3
        run.prefilled, run.restored = counters.prefilled_tokens - prefilled, counters.restored_tokens - restored
        run.preemptions = counters.preemptions
        run.leaks = list(leaks(engine))
        if budget is not None:
            run.alone = list(_alone(engine, budget))
    return run


def _run(engine: Engine, arrivals: Sequence[Arrival], run: Run) -> None:
    clock, coming = ReplayClock(engine), deque(arrivals)
    waiting: dict[int, Request] = {}
    going: list[tuple[int, Request]] = []
    now = 0
    while coming or engine.busy:
        if not engine.busy:
            now = max(now, coming[0].at)
        while coming and coming[0].at <= now:
            arrival = coming.popleft()
            request = _submit(engine, arrival)
            run.requests.append((arrival, request))
            waiting[request.id] = request
            if arrival.cancel_at is not None:
                going.append((arrival.cancel_at, request))
        for _, request in [entry for entry in going if entry[0] <= now]:
            engine.cancel(request)
        going = [entry for entry in going if entry[0] > now]
        prefill, paused = engine.scheduler.prefill, now % PAUSE == PAUSE - 1
        prefill.budget = 0 if paused else run.budget
        run.steps.append(replace(_step(engine, clock), paused=paused))
        prefill.budget = run.budget
        for request in [request for request in waiting.values() if request.progress is not Where.WAITING]:
            del waiting[request.id]
            if request.admitted_at is not None:
                run.waits.append(request.admitted_at - request.submitted_at)
        now += 1


def _submit(engine: Engine, arrival: Arrival) -> Request:
    return arrival.ask.submit(engine, priority=arrival.priority, client=arrival.client, deadline=arrival.deadline)


def _step(engine: Engine, clock: ReplayClock) -> Step:
    """One iteration, timed. Every slot that decoded has one more entry among the counts of accepted tokens."""
    counters = engine.scheduler.counters
    tokens, slots = counters.prefilled_tokens, _decoded(engine)
    clock.log.clear()
    begun = perf_counter_ns()
    engine.step()
    elapsed = perf_counter_ns() - begun
    return Step(
        microseconds=elapsed / 1e3,
        replay_us=sum(replay.ended - replay.begun for replay in clock.log) / 1e3,
        slots=_decoded(engine) - slots,
        tokens=counters.prefilled_tokens - tokens,
        chunks=len(clock.of(Phase.PREFILL)),
        begins=len(clock.of(Phase.BEGIN)),
    )


def _decoded(engine: Engine) -> int:
    return sum(map(sum, engine.scheduler.counters.accepted.values()))


def _alone(engine: Engine, budget: int) -> Iterator[float]:
    """Steps that prefill exactly `budget` tokens of one prompt and do nothing else, once nothing is kept any more."""
    clock, limits = ReplayClock(engine), engine.scheduler.executor.limits
    start = tuple(ByteTokenizer(engine.package.plan.specials).encode(b""))
    engine.submit(list(start + _words(Random(budget), limits.max_context // 2)), max_new_tokens=1)
    while engine.busy:
        step = _step(engine, clock)
        if step.tokens == budget and not step.begins:
            yield step.microseconds


def leaks(engine: Engine) -> Iterator[str]:
    """What an idle engine holds and should not: first beside its checkpoints, then after giving those up."""
    scheduler, cache = engine.scheduler, engine.scheduler.cache
    kept = [checkpoint for checkpoint in cache.all() if checkpoint.index is not None]
    pages = {page for checkpoint in kept for page in checkpoint.pages}
    if scheduler.seats.active or scheduler.busy or len(scheduler.queue):
        yield "a request"
    if cache.rows_free + len(kept) != cache.capacity:
        yield "a checkpoint row"
    if cache.pages.in_use != len(pages):
        yield "a page"
    if any(checkpoint.holders or checkpoint.busy or not checkpoint.published for checkpoint in cache.all()):
        yield "a held checkpoint"
    engine.cache.clear()
    if cache.rows_free != cache.capacity or cache.pages.in_use or cache.all():
        yield "a checkpoint that was given up"


# Figures


def _wrong(cold: Cold, runs: Sequence[Run]) -> list[str]:
    """Requests whose tokens are not those of a cold engine."""
    found = []
    for run in runs:
        for number, (arrival, request) in enumerate(run.requests):
            expected, whole = cold(arrival.ask), request.finish_reason in ANSWERED
            if request.output != (expected if whole else expected[: len(request.output)]):
                found.append(f"budget {run.budget}: request {number}, {request.finish_reason}")
    return found


def _steady(runs: Sequence[Run]) -> list[Step]:
    """The steps of one budget, each with its median time over rounds. Rounds take the same steps: nothing else may
    depend on time.
    """
    same = zip(*(run.steps for run in runs), strict=True)
    return [replace(step[0], **{name: median(getattr(s, name) for s in step) for name in TIMES}) for step in same]


def _decode_figures(steps: Sequence[Step], runs: Sequence[Run]) -> dict[str, Any]:
    """Steps that only decode, all budgets together, without those in which prefill paused: they are not of the traffic.
    raw: without the median over rounds.
    """
    alone = [step for step in steps if step.decodes_only and not step.paused]
    by_slots = _by_slots(alone)
    found = percentiles([step.microseconds for step in alone])
    relative = percentiles([step.microseconds / by_slots[step.slots] for step in alone])
    return {
        **found,
        "steps": len(alone),
        "p99_to_p50": found["p99"] / found["p50"],
        "p50_by_slots": by_slots,
        "p99_to_p50_of_as_many_slots": relative["p99"],
        "raw": percentiles([s.microseconds for run in runs for s in run.steps if s.decodes_only and not s.paused]),
    }


def _by_slots(steps: Sequence[Step]) -> dict[int, float]:
    """Median microseconds of the steps that only decode, by how many slots."""
    alone = [step for step in steps if step.decodes_only]
    counts = sorted({step.slots for step in alone})
    return {slots: median(step.microseconds for step in alone if step.slots == slots) for slots in counts}


def _prefill_us_per_token(runs: Sequence[Run]) -> float:
    return median(run.prefill_us / run.prefilled for run in runs)


def _budget_figures(
    runs: Sequence[Run], steps: Sequence[Step], decode_us: dict[int, float], free_us: float
) -> dict[str, Any]:
    """One budget. budget_us: its tokens at free_us each, the speed without a budget; decode_us: of a step that only
    decodes, by slots; extra_us: a step with prefill, less that of as many slots; budget_share: extra_us / budget_us;
    alone_us: a step of its tokens with nothing beside them, alone_share: extra_us / the median of that; host_us: of
    steps with prefill, without graphs.
    """
    us_per_token = _prefill_us_per_token(runs)
    alone = percentiles([microseconds for run in runs for microseconds in run.alone])
    budget_us = math.nan if runs[0].budget is None else runs[0].budget * free_us
    prefilling = [step for step in steps if step.chunks]
    extra = [step.microseconds - decode_us.get(step.slots, 0.0) for step in prefilling]
    firsts = [1e3 * (r.first_token_at - r.submitted_at) for run in runs for _, r in run.requests if r.first_token_at]
    return {
        "budget_us": budget_us,
        "steps": len(steps),
        "steps_with_prefill": len(prefilling),
        "steps_that_only_decode": sum(step.decodes_only for step in steps),
        "decode_us": {slots: decode_us[slots] for slots in sorted(decode_us)},
        "extra_us": percentiles(extra),
        "budget_share": percentiles([microseconds / budget_us for microseconds in extra]),
        "alone_us": alone,
        "alone_share": percentiles([microseconds / alone["p50"] for microseconds in extra]),
        "host_us": percentiles([step.microseconds - step.replay_us for step in prefilling]),
        "prefill_tokens_per_s": 1e6 / us_per_token,
        "throughput_share": free_us / us_per_token,
        "prefilled_tokens": runs[0].prefilled,
        "restored_tokens": runs[0].restored,
        "queue_ms": percentiles([1e3 * wait for run in runs for wait in run.waits]),
        "first_token_ms": percentiles(firsts),
        "preemptions": runs[0].preemptions,
        "finished": _ends(runs[:1]),
    }


def _ends(runs: Sequence[Run]) -> dict[str, int]:
    """Requests by what ended them."""
    ends = [request.finish_reason or "" for run in runs for _, request in run.requests]
    return {reason: ends.count(reason) for reason in sorted(set(ends))}

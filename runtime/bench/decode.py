"""Scenario decode: speed of prefill and decode, the host's share, acceptance, each launch against the bandwidth."""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from runtime.bandwidth import read_bandwidth
from runtime.bench.common import TEXT, Progress, quiet
from runtime.engine import Engine
from runtime.errors import BadOption, BenchUnavailable
from runtime.executor import Phase
from runtime.graphs import HostGraph
from runtime.observe.stats import percentile, tokens_per_step
from runtime.plan import Plan
from runtime.request import Request, acceptance
from runtime.traffic import Moved, Shape, step_launches, weight_bytes, working_set

WARM_TOKENS = 24
MIN_NEW_TOKENS = 16  # fewer have no median step
PROFILE_REPEATS = 50


@dataclass(frozen=True)
class BenchOptions:
    """What to measure. Tokens per request; batch: requests at once; profile: also time every launch."""

    prompt_tokens: int = 256
    new_tokens: int = 256
    batch: int = 1
    temperature: float = 0.0
    seed: int = 0
    profile: bool = True


@dataclass(frozen=True)
class LaunchTime:
    """A kernel of the step, all its launches together. bound_share: bytes at the bandwidth bound / measured time."""

    kernel: str
    launches: int
    microseconds: float
    bytes: int
    bound_share: float


def run_bench(engine: Engine, options: BenchOptions, text: bytes = b"", progress: Progress = print) -> dict[str, Any]:
    """All figures as JSON-ready data. The engine must be idle; checkpoints should be off, or prompts are resumed."""
    _check(engine, options)
    prompts = list(_prompts(engine, options, text or TEXT.encode()))
    progress("compiling and recording")
    for _ in _run(engine, options, prompts, WARM_TOKENS):
        pass
    progress(f"{options.batch} x ({options.prompt_tokens} prompt + {options.new_tokens} new) tokens")
    figures = _measure(engine, options, prompts)
    plan, shape = engine.package.plan, _shape(engine, options)
    figures |= _sizes(engine, plan, shape)
    if options.profile and engine.package.device.type == "cpu":
        progress("read bandwidth and launches")
        figures |= _profile(engine, plan, shape, figures["step_us"]["p50"])
    return figures


def _check(engine: Engine, options: BenchOptions) -> None:
    limits = engine.package.plan.limits
    room = limits.max_context - options.new_tokens
    if not MIN_NEW_TOKENS <= options.new_tokens < limits.max_context:
        allowed = f"{MIN_NEW_TOKENS} to {limits.max_context - 1}"
        raise BadOption(option="new_tokens", value=options.new_tokens, allowed=allowed)
    if not 1 <= options.prompt_tokens <= room:
        allowed = f"1 to {room}: with the new tokens it must fit max_context {limits.max_context}"
        raise BadOption(option="prompt_tokens", value=options.prompt_tokens, allowed=allowed)
    if not 1 <= options.batch <= engine.scheduler.seats.slots:
        raise BadOption(option="batch", value=options.batch, allowed=f"1 to {engine.scheduler.seats.slots}")


def _prompts(engine: Engine, options: BenchOptions, text: bytes) -> Iterator[list[int]]:
    """Prompts of exactly the wanted length, each from another place of the text, repeated as needed."""
    for number in range(options.batch):
        start = number * 97 % len(text)
        repeated = (text[start:] + text * (options.prompt_tokens // len(text) + 1))[: options.prompt_tokens]
        yield engine.tokenizer.encode(repeated)[: options.prompt_tokens]


def _run(
    engine: Engine, options: BenchOptions, prompts: Sequence[list[int]], new_tokens: int
) -> Iterator[list[tuple[Request, list[int]]]]:
    """Submit all prompts, then step until they are done; yields what each step emitted."""
    room = engine.package.plan.limits.max_context - options.prompt_tokens
    for number, prompt in enumerate(prompts):
        engine.submit(
            prompt,
            max_new_tokens=min(new_tokens, room),
            temperature=options.temperature,
            seed=options.seed + number,
            stop_at_eos=False,
        )
    while engine.busy:
        yield engine.step()


def _measure(engine: Engine, options: BenchOptions, prompts: Sequence[list[int]]) -> dict[str, Any]:
    counters = engine.scheduler.counters
    counters.timeline.clear()
    prefill_before = counters.prefill_ns
    requests: dict[int, Request] = {}
    with quiet():
        begun = time.perf_counter()
        for emitted in _run(engine, options, prompts, options.new_tokens):
            for request, _ in emitted:
                requests[request.id] = request
        ended = time.perf_counter()
    done = list(requests.values())
    first = max(_first_token(request) for request in done)
    accepted = _merged(done)
    decoded = sum(len(request.output) - 1 for request in done)
    prefill_seconds = (counters.prefill_ns - prefill_before) / 1e9
    return {
        "batch": options.batch,
        "prompt_tokens": options.prompt_tokens,
        "new_tokens": options.new_tokens,
        "drafts": engine.scheduler.drafts,
        "seconds": ended - begun,
        "prefill_tokens_per_s": options.batch * options.prompt_tokens / prefill_seconds,
        "first_token_ms": {
            "p50": 1e3 * percentile([_first_token(request) - request.submitted_at for request in done], 0.5),
            "max": 1e3 * max(_first_token(request) - request.submitted_at for request in done),
        },
        "decode_tokens_per_s": decoded / (ended - first) if ended > first else math.nan,
        "tokens_per_step": tokens_per_step(accepted),
        "acceptance": [a / p if p else math.nan for a, p in acceptance(accepted)],
        "host_us": _percentiles([gap / 1e3 for gap, _ in counters.timeline]),
        "replay_us": _percentiles([replay / 1e3 for _, replay in counters.timeline]),
        "step_us": _percentiles([(gap + replay) / 1e3 for gap, replay in counters.timeline]),
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _first_token(request: Request) -> float:
    assert request.first_token_at is not None
    return request.first_token_at


def _merged(requests: Sequence[Request]) -> dict[int, list[int]]:
    merged: dict[int, list[int]] = {}
    for request in requests:
        for drafts, counts in request.accepted.items():
            sums = merged.setdefault(drafts, [0] * len(counts))
            merged[drafts] = [a + b for a, b in zip(sums, counts, strict=True)]
    return merged


def _percentiles(values: list[float]) -> dict[str, float]:
    return {name: percentile(values, share) for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))}


def _shape(engine: Engine, options: BenchOptions) -> Shape:
    """The step in the middle of the run."""
    drafts = engine.scheduler.drafts
    context = options.prompt_tokens + options.new_tokens // 2
    return Shape(options.batch, drafts, drafts, context, engine.scheduler.executor.drafter)


def _step_graph(engine: Engine, shape: Shape) -> Any:
    bucket = engine.scheduler.executor.limits.bucket(shape.slots)
    return engine.scheduler.executor.graph(Phase.STEP, bucket, shape.verify_drafts, shape.next_drafts)


def _sizes(engine: Engine, plan: Plan, shape: Shape) -> dict[str, Any]:
    launches = list(step_launches(plan, shape))
    return {
        "launches": _step_graph(engine, shape).num_launches or len(launches),
        "bytes_per_step": sum(launch.bytes for launch in launches),
        "working_set_bytes": working_set(plan, shape),
        "weight_bytes": weight_bytes(plan),
        "memory": engine.buffers.memory,
    }


def _profile(engine: Engine, plan: Plan, shape: Shape, step_us: float) -> dict[str, Any]:
    """Time of every launch, by kernel, beside the bound of reading the step's bytes."""
    from runtime.cpu import get_num_threads

    try:
        rate = read_bandwidth(working_set(plan, shape), get_num_threads())
    except BenchUnavailable as error:
        return {"bound": {"unavailable": str(error)}}
    launches = list(step_launches(plan, shape))
    bound_us = 1e6 * sum(launch.bytes for launch in launches) / rate
    figures: dict[str, Any] = {
        "bound": {
            "read_bandwidth_gb_per_s": rate / 1e9,
            "threads": get_num_threads(),
            "step_us": bound_us,
            "share_of_p50": bound_us / step_us,
        }
    }
    graph = _step_graph(engine, shape)
    if isinstance(graph, HostGraph):
        times = _live_profile(engine, shape, graph)
        figures["kernels"] = [asdict(row) for row in _by_kernel(launches, times, rate)]
    return figures


def _live_profile(engine: Engine, shape: Shape, graph: HostGraph) -> list[float]:
    """Microseconds of each launch over live slots in the middle of their answers."""
    prompt = engine.tokenizer.encode(TEXT * (shape.context // len(TEXT) + 1))[: shape.context]
    requests = [engine.submit(prompt, max_new_tokens=1 << 20, stop_at_eos=False) for _ in range(shape.slots)]
    while engine.scheduler.queue or engine.scheduler.seats.prefilling:
        engine.step()
    room = engine.package.plan.limits.max_context - shape.context - shape.slots * (shape.verify_drafts + 1)
    per_replay = shape.verify_drafts + 1
    repeats = min(PROFILE_REPEATS, max(1, room // (2 * per_replay)))
    for seat in engine.scheduler.seats.decoding:
        engine.scheduler.admission.make_room(seat, shape.context + (2 * repeats + 2) * per_replay + shape.next_drafts)
    times = [1e6 * seconds for _, seconds in graph.profile(repeats)]
    for request in requests:
        engine.cancel(request)
    return times


def _by_kernel(launches: Sequence[Moved], times: Sequence[float], rate: float) -> list[LaunchTime]:
    """Launches grouped by kernel, the slowest first."""
    rows: dict[str, list[float]] = {}
    for launch, microseconds in zip(launches, times, strict=True):
        row = rows.setdefault(launch.kernel, [0, 0.0, 0])
        row[0], row[1], row[2] = row[0] + 1, row[1] + microseconds, row[2] + launch.bytes
    table = [LaunchTime(k, int(n), us, int(size), 1e6 * size / rate / us) for k, (n, us, size) in rows.items() if us]
    return sorted(table, key=lambda row: -row.microseconds)

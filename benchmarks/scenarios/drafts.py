"""What a step that verifies three drafts costs, and what perfect drafts gain, on the shape of mamba2-130m."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from statistics import median
from typing import Any

from benchmarks import prepared
from dsl import load_spec
from runtime.bench.common import quiet
from runtime.drafter import Drafter
from runtime.engine import Engine
from runtime.package import open_package
from runtime.traffic import Shape, step_launches

from .perfect_drafts import perfect_drafts
from .steps import Promise, answer, prompt, spec_path

DRAFTS, PROMPT, NEW, MTP_NEW = 3, 64, 65, 129
VERIFY_RATIO, MTP_RATIO = 1.4, 2.3


class DraftsNotPerfect(Exception):
    """A draft was refused, or drafts changed the answer: the ratio would mean nothing."""


def measure(rounds: int, threads: int, details: dict[str, Any]) -> Iterator[Promise]:
    """Both promises; figures behind them go into `details`."""
    yield verify_cost(rounds, threads, details)
    yield mtp_gain(rounds, threads, details)


def verify_cost(rounds: int, threads: int, details: dict[str, Any]) -> Promise:
    """Time of a step that verifies DRAFTS drafts, in steps that verify none: median of rounds.

    mamba2-130m has no MTP module: drafts come from its text, by one small kernel; random text refuses most of them.
    """
    folder = prepared.package(spec_path("mamba2-130m"))
    weights = prepared.random_weights(folder)
    with (
        Engine(folder, weights, drafts=DRAFTS, drafter="lookup", threads=threads, checkpoints=False) as engine,
        quiet(),
    ):
        steps: dict[int, list[float]] = {0: [], DRAFTS: []}
        for number in range(-1, rounds):
            for drafts in (0, DRAFTS) if number % 2 else (DRAFTS, 0):
                engine.set_drafts(drafts)
                timed = answer(engine, prompt(number, PROMPT), NEW)
                if number >= 0:
                    steps[drafts].append(median(timed.steps))
    ratio = median(verifying / plain for plain, verifying in zip(steps[0], steps[DRAFTS], strict=True))
    details["verify_step_ms"] = {str(drafts): 1e3 * median(times) for drafts, times in steps.items()}
    return Promise(
        f"a step of K = {DRAFTS} without the drafter, in steps of K = 0", ratio, VERIFY_RATIO, at_least=False
    )


def mtp_gain(rounds: int, threads: int, details: dict[str, Any]) -> Promise:
    """Tokens per second with DRAFTS perfect drafts over those of an engine that never drafts: median of rounds."""
    path = spec_path("mamba2-130m-mtp")
    package = open_package(prepared.package(path))
    mtp = load_spec(path).mtp
    assert mtp is not None
    weights = perfect_drafts(package.plan, mtp.concat)
    with ExitStack() as stack:
        plain, drafting = (
            stack.enter_context(Engine(package, weights, drafts=drafts, threads=threads, checkpoints=False))
            for drafts in (0, DRAFTS)
        )
        stack.enter_context(quiet())
        speeds: dict[int, list[float]] = {0: [], DRAFTS: []}
        for number in range(-1, rounds):
            ids = prompt(number, PROMPT)
            one, other = answer(plain, ids, MTP_NEW), answer(drafting, ids, MTP_NEW)
            if one.output != other.output or other.acceptance < 1.0:
                raise DraftsNotPerfect(
                    f"{other.acceptance:.1%} of the drafts were accepted; answers equal: {one.output == other.output}"
                )
            if number >= 0:
                speeds[0].append(one.tokens_per_second)
                speeds[DRAFTS].append(other.tokens_per_second)
    moved = [_step_bytes(package.plan, 0, Drafter.NONE), _step_bytes(package.plan, DRAFTS, Drafter.MTP)]
    details["mtp_tokens_per_s"] = {str(drafts): median(found) for drafts, found in speeds.items()}
    details["mtp_step_bytes"] = dict(zip(("0", str(DRAFTS)), moved, strict=True))
    details["mtp_gain_by_bytes"] = (DRAFTS + 1) * moved[0] / moved[1]
    ratio = median(fast / slow for slow, fast in zip(speeds[0], speeds[DRAFTS], strict=True))
    return Promise(f"tokens/s with {DRAFTS} perfect drafts, in those without", ratio, MTP_RATIO, at_least=True)


def _step_bytes(plan: Any, drafts: int, drafter: Drafter) -> int:
    shape = Shape(1, drafts, drafts, PROMPT + MTP_NEW // 2, drafter)
    return sum(launch.bytes for launch in step_launches(plan, shape))

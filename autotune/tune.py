"""The search over one kernel: trials until the time is up or nothing is left, then the best against the untuned."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from optuna.trial import Trial, TrialState

from autotune.measure import GivenUp, Report, Verdict
from autotune.proof import Rejected
from autotune.space import Space, Values, key
from autotune.study import DETAIL, REJECTED, Search, ratio_of
from codegen.tunables import Value, plain
from codegen.tuned import Identity, Result

FINALISTS = 3


class Evaluator(Protocol):
    """Judges candidates: on a device (autotune.measure.Bench), or by a model of one (autotune.predict.Model)."""

    kind: str

    def evaluate(self, values: Mapping[str, Value], report: Report) -> Verdict:
        """What is known of a candidate after a short look. Raises Rejected or GivenUp."""

    def decide(self, values: Mapping[str, Value]) -> Verdict:
        """The same after a long look. Raises Rejected."""


@dataclass(frozen=True)
class Attempt:
    """One trial that is done. state: "complete", "slow" (given up), "rejected". ratio: None if it was rejected."""

    values: Values
    state: str
    ratio: float | None
    why: str = ""

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "values": {name: plain(value) for name, value in self.values.items()}}


OnTrial = Callable[[Attempt], None]


def run_trials(
    search: Search,
    space: Space,
    evaluator: Evaluator,
    until: float = math.inf,
    on_trial: OnTrial = lambda attempt: None,
    most: int | None = None,
) -> bool:
    """At most `most` trials until `until` (of time.monotonic) is over. Returns whether every candidate is tried."""
    done = 0
    while time.monotonic() < until and (most is None or done < most):
        drawn = search.next()
        if drawn is None:
            return True
        on_trial(_try(search, space, evaluator, *drawn))
        done += 1
    return search.order.keys() <= search.tried().keys()


def _try(search: Search, space: Space, evaluator: Evaluator, trial: Trial, values: Values) -> Attempt:
    def report(ratio: float, step: int) -> bool:
        trial.report(ratio, step)
        return trial.should_prune()

    try:
        verdict = evaluator.evaluate(space.changed(values), report)
    except Rejected as error:
        trial.set_user_attr(REJECTED, str(error))
        search.study.tell(trial, state=TrialState.FAIL)
        return Attempt(values, "rejected", None, str(error))
    except GivenUp as error:
        search.study.tell(trial, state=TrialState.PRUNED)
        return Attempt(values, "slow", None, str(error))
    trial.set_user_attr(DETAIL, {**verdict.detail, "noise": min(verdict.noise, 10.0)})
    search.study.tell(trial, verdict.ratio)
    return Attempt(values, "complete", verdict.ratio)


def attempts(search: Search) -> Iterator[Attempt]:
    """Everything that anybody has tried, in order."""
    for trial in search.tried().values():
        values = search.values(trial)
        if values is None or trial.state is TrialState.RUNNING:
            continue
        if REJECTED in trial.user_attrs:
            yield Attempt(values, "rejected", None, trial.user_attrs[REJECTED])
        elif trial.state is TrialState.PRUNED:
            yield Attempt(values, "slow", ratio_of(trial))
        else:
            yield Attempt(values, "complete", trial.value)


def conclude(
    search: Search, space: Space, evaluator: Evaluator, identity: Identity, about: Mapping[str, Any]
) -> Result:
    """The result of a study: the best of its finalists, if one beats the untuned kernel by more than the noise."""
    done = list(attempts(search))
    finalists = sorted((a for a in done if a.ratio is not None and a.state == "complete"), key=lambda a: a.ratio or 1)
    finalists = [attempt for attempt in finalists if space.changed(attempt.values)][:FINALISTS]
    verdicts: list[tuple[Verdict, Values]] = []
    lost: list[Attempt] = []
    for attempt in finalists:
        if attempt.ratio is not None and attempt.ratio >= 1:
            continue
        try:
            verdicts.append((evaluator.decide(space.changed(attempt.values)), space.changed(attempt.values)))
        except Rejected as error:
            lost.append(Attempt(attempt.values, "rejected", None, str(error)))
    best = min(((v, values) for v, values in verdicts if v.wins), key=lambda item: item[0].ratio, default=None)
    replaced = {key(attempt.values) for attempt in lost}
    every = [attempt for attempt in done if key(attempt.values) not in replaced] + lost
    detail = {**about, "trials": [attempt.plain() for attempt in every], "candidates": len(search.order)}
    detail |= {"space": len(space), "explored": len(every)}
    if best is None:
        return Result(identity, {}, 1.0, evaluator.kind, {**detail, **_untuned(evaluator)})
    verdict, values = best
    return Result(identity, values, verdict.ratio, verdict.kind, {**detail, **verdict.detail, "noise": verdict.noise})


def _untuned(evaluator: Evaluator) -> dict[str, Any]:
    """Times of the untuned kernel against itself: how far the noise reaches."""
    verdict = evaluator.decide({})
    return {**verdict.detail, "noise": verdict.noise}

"""The search over one kernel: trials until the time is up or nothing is left, then the best against the untuned."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from optuna.trial import Trial, TrialState

from autotune.faults import brief, is_the_machines
from autotune.measure import GivenUp, Report, Verdict
from autotune.proof import Rejected, untuned
from autotune.space import Space, Values, key
from autotune.study import DETAIL, REJECTED, Search, ratio_of
from codegen.errors import TuneInterrupted
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
        why = brief(error)
        trial.set_user_attr(REJECTED, why)
        search.study.tell(trial, state=TrialState.FAIL)
        return Attempt(values, "rejected", None, why)
    except GivenUp as error:
        search.study.tell(trial, state=TrialState.PRUNED)
        return Attempt(values, "slow", None, str(error))
    except Exception as error:
        if not is_the_machines(error):
            raise
        with contextlib.suppress(Exception):  # the study may lie where there is no room either: it is an orphan then
            search.study.tell(trial, state=TrialState.FAIL)
        raise TuneInterrupted(kernel=space.kernel.name, detail=brief(error)) from error
    trial.set_user_attr(DETAIL, {**verdict.detail, "noise": min(verdict.noise, 10.0)})
    search.study.tell(trial, verdict.ratio)
    return Attempt(values, "complete", verdict.ratio)


def attempts(search: Search) -> Iterator[Attempt]:
    """Everything that anybody has tried, in order."""
    refused = search.refused()
    for trial in search.tried().values():
        values = search.values(trial)
        if values is None or trial.state is TrialState.RUNNING:
            continue
        if key(values) in refused:
            yield Attempt(values, "rejected", None, refused[key(values)])
        elif REJECTED in trial.user_attrs:
            yield Attempt(values, "rejected", None, trial.user_attrs[REJECTED])
        elif trial.state is TrialState.PRUNED:
            yield Attempt(values, "slow", ratio_of(trial))
        else:
            yield Attempt(values, "complete", trial.value)


def conclude(
    search: Search,
    space: Space,
    evaluator: Evaluator,
    identity: Identity,
    about: Mapping[str, Any],
    stored: Result | None = None,
) -> Result:
    """The result of a study: the best of its finalists, if one beats the untuned kernel by more than the noise.

    stored: the result so far, perhaps of another machine of this kind. Its values are among the finalists, and it is
    the result still if nothing was tried since. Raises TuneInterrupted.
    """
    done = list(attempts(search))
    if stored is not None and stored.detail.get("trials") == [attempt.plain() for attempt in done]:
        return stored
    try:
        best = _best(_verdicts(search, space, evaluator, _ranked(done, space, stored)))
        verdict, values = best or (_untuned(evaluator, space), {})
    except Exception as error:
        if not is_the_machines(error):
            raise
        raise TuneInterrupted(kernel=space.kernel.name, detail=brief(error)) from error
    trials = [attempt.plain() for attempt in attempts(search)]
    detail = {**about, "trials": trials, "candidates": len(search.order), "space": len(space), "explored": len(trials)}
    detail |= {**verdict.detail, "noise": verdict.noise}
    return Result(identity, values, verdict.ratio if values else 1.0, verdict.kind, detail)


def _ranked(done: list[Attempt], space: Space, stored: Result | None) -> Iterator[Values]:
    """What differs from the defaults in candidates that may win: the stored one, then others, the best first."""
    before = space.read(stored.values) if stored else None
    refused = {key(attempt.values) for attempt in done if attempt.state == "rejected"}
    if before is not None and key(before) not in refused and space.changed(before):
        yield space.changed(before)
    faster = [(a.ratio, a.values) for a in done if a.state == "complete" and a.ratio is not None and a.ratio < 1]
    for _, values in sorted(faster, key=lambda entry: entry[0]):
        if values != before and space.changed(values):
            yield space.changed(values)


def _verdicts(
    search: Search, space: Space, evaluator: Evaluator, ranked: Iterator[Values]
) -> Iterator[tuple[Verdict, Values]]:
    """The first FINALISTS of a ranking that are right; who is refused makes room for the next, and is known to all."""
    given = 0
    for values in ranked:
        if given == FINALISTS:
            return
        try:
            yield evaluator.decide(values), values
            given += 1
        except Rejected as error:
            search.refuse(space.default | values, brief(error))


def _untuned(evaluator: Evaluator, space: Space) -> Verdict:
    """The untuned kernel against itself: how far the noise reaches. Raises UntunedWrong."""
    with untuned(space.kernel.name):
        return evaluator.decide({})


def _best(verdicts: Iterator[tuple[Verdict, Values]]) -> tuple[Verdict, Values] | None:
    winners = [(verdict, values) for verdict, values in verdicts if verdict.wins]
    return min(winners, key=lambda entry: entry[0].ratio, default=None)

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
from autotune.proof import Rejected
from autotune.space import Space, Values, key
from autotune.study import DETAIL, REJECTED, Search, State, ratio_of
from codegen.errors import TuneInterrupted
from codegen.tunables import Value, plain


class Evaluator(Protocol):
    """Judges candidates: on a device (autotune.measure.Bench), or by a model of one (autotune.predict.Model)."""

    kind: str

    def evaluate(self, values: Mapping[str, Value], report: Report) -> Verdict:
        """What is known of a candidate after a short look. Raises Rejected or GivenUp."""

    def decide(self, values: Mapping[str, Value]) -> Verdict:
        """The same after a long look. Raises Rejected, GivenUp, or Disturbed if others were at work meanwhile."""


@dataclass(frozen=True)
class Attempt:
    """One trial that is done. ratio: None of one that is rejected."""

    values: Values
    state: State
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
        return Attempt(values, State.REJECTED, None, why)
    except GivenUp as error:
        search.study.tell(trial, state=TrialState.PRUNED)
        return Attempt(values, State.SLOW, None, str(error))
    except Exception as error:
        if not is_the_machines(error):
            raise
        with contextlib.suppress(Exception):  # the study may lie where there is no room either: it is an orphan then
            search.study.tell(trial, state=TrialState.FAIL)
        raise TuneInterrupted(kernel=space.kernel.name, detail=brief(error)) from error
    trial.set_user_attr(DETAIL, {**verdict.detail, "noise": min(verdict.noise, 10.0)})
    search.study.tell(trial, verdict.ratio)
    return Attempt(values, State.COMPLETE, verdict.ratio)


def attempts(search: Search) -> Iterator[Attempt]:
    """Everything that anybody has tried, in order. Raises StudyDamaged."""
    with search.reading():
        yield from list(_attempts(search))


def _attempts(search: Search) -> Iterator[Attempt]:
    refused = search.refused()
    for trial in search.tried().values():
        values = search.values(trial)
        if values is None or trial.state is TrialState.RUNNING:
            continue
        if key(values) in refused:
            state, why = refused[key(values)]
            yield Attempt(values, state, trial.value if state is State.SLOW else None, why)
        elif REJECTED in trial.user_attrs:
            yield Attempt(values, State.REJECTED, None, trial.user_attrs[REJECTED])
        elif trial.state is TrialState.PRUNED:
            yield Attempt(values, State.SLOW, ratio_of(trial))
        else:
            yield Attempt(values, State.COMPLETE, trial.value)

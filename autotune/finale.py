"""How a study ends: the best candidates are looked at for longer, and one wins if it does so in two races of its own.

Who is refused makes room for the next. A result that is there already is only given up for what is better founded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from autotune.faults import brief, is_the_machines
from autotune.measure import GivenUp, Verdict
from autotune.proof import Rejected, untuned
from autotune.space import Space, Values, key
from autotune.study import Search, State
from autotune.tune import Attempt, Evaluator, attempts
from codegen.errors import TuneInterrupted
from codegen.tuned import Identity, Result

FINALISTS = 3


def conclude(
    search: Search,
    space: Space,
    evaluator: Evaluator,
    identity: Identity,
    about: Mapping[str, Any],
    stored: Result | None = None,
) -> Result:
    """The result of a study: the best of its finalists, if it beats the untuned kernel by more than the noise, twice.

    stored: the result so far, perhaps of another machine of this kind. It is the result still if nothing was tried
    since. Raises TuneInterrupted, UntunedWrong, StudyDamaged, or Disturbed if others were at work meanwhile.
    """
    done = list(attempts(search))
    if stored is not None and stored.detail.get("trials") == [attempt.plain() for attempt in done]:
        return stored
    try:
        values, ratio, kind, found = Finale(search, space, evaluator, stored).outcome(done)
    except Exception as error:
        if not is_the_machines(error):
            raise
        raise TuneInterrupted(kernel=space.kernel.name, detail=brief(error)) from error
    trials = [attempt.plain() for attempt in attempts(search)]
    detail = {**about, "trials": trials, "candidates": len(search.order), "space": len(space), "explored": len(trials)}
    return Result(identity, values, ratio, kind, {**detail, **found})


Outcome = tuple[Values, float, str, dict[str, Any]]  # values, ratio, kind, and what belongs to these in the detail


@dataclass(frozen=True)
class Finale:
    """The last races of one kernel."""

    search: Search
    space: Space
    evaluator: Evaluator
    stored: Result | None

    def outcome(self, done: list[Attempt]) -> Outcome:
        """What is to be stored."""
        before = self._before(done)
        first = dict(self._finalists(done, before))
        winners = sorted((v.ratio, name) for name, (v, _) in first.items() if v.wins)
        for _, name in winners:
            values = first[name][1]
            again = self._raced(values, values == before)
            if again is not None and again.wins:
                return self._better_founded(again, values)
        if before and self._holds(first.get(key(before)), before):
            return self._kept()
        with untuned(self.space.kernel.name):
            return self._better_founded(self.evaluator.decide({}), {})

    def _before(self, done: list[Attempt]) -> Values:
        """What the stored result differs from the defaults in, if it may win at all."""
        values = self.space.read(self.stored.values) if self.stored else None
        out = {key(attempt.values) for attempt in done if attempt.state is State.REJECTED} | set(self.search.refused())
        return {} if values is None or key(values) in out else self.space.changed(values)

    def _finalists(self, done: list[Attempt], before: Values) -> Iterator[tuple[str, tuple[Verdict, Values]]]:
        """Verdicts of a first race, by key: the stored values', and those of the first FINALISTS that are right."""
        if before and (verdict := self._raced(before, True)) is not None:
            yield key(before), (verdict, before)
        faster = [
            (a.ratio, a.values) for a in done if a.state is State.COMPLETE and a.ratio is not None and a.ratio < 1
        ]
        given = 0
        for _, full in sorted(faster, key=lambda entry: entry[0]):
            values = self.space.changed(full)
            if given == FINALISTS:
                return
            if values in ({}, before) or (verdict := self._raced(values, False)) is None:
                continue
            given += 1
            yield key(values), (verdict, values)

    def _raced(self, values: Values, won_before: bool) -> Verdict | None:
        """A race; None for who is refused, for good, but one that has won before is not for being slow once."""
        try:
            return self.evaluator.decide(values)
        except Rejected as error:
            self.search.refuse(self.space.default | values, State.REJECTED, brief(error))
        except GivenUp as error:
            if not won_before:
                self.search.refuse(self.space.default | values, State.SLOW, brief(error))
        return None

    def _holds(self, first: tuple[Verdict, Values] | None, before: Values) -> bool:
        """Whether a stored win holds in one of two races: noise takes nothing away that was won."""
        if key(self.space.default | before) in self.search.refused():
            return False
        if first is not None and first[0].wins:
            return True
        again = self._raced(before, True)
        return again is not None and again.wins

    def _better_founded(self, verdict: Verdict, values: Values) -> Outcome:
        """Of two results with the same values, the one with less noise."""
        if self.stored and dict(self.stored.values) == values and self.stored.detail.get("noise", 10.0) < verdict.noise:
            return self._kept()
        found = {**verdict.detail, "noise": verdict.noise}
        return values, verdict.ratio if values else 1.0, verdict.kind, found

    def _kept(self) -> Outcome:
        """The stored result's figures."""
        assert self.stored is not None
        kept = {n: v for n, v in self.stored.detail.items() if n in ("scenes", "noise", "resources", "device")}
        return dict(self.stored.values), self.stored.ratio, self.stored.kind, kept

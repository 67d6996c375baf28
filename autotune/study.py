"""Studies of optuna, shared by processes and machines, and whole after a kill.

A study is a journal in a folder that all may write, or lies in any storage that optuna knows by URL. A trial that
nobody works on any more, its process being gone, is given up and its values are tried again.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, Trial, TrialState

from autotune.faults import brief, is_the_machines
from autotune.journal import journal, open_journal
from autotune.space import Order, Space, Values, key
from autotune.surrogate import Surrogate
from codegen.errors import StudyDamaged, StudyUnusable
from codegen.tunables import plain

OWNER, REJECTED, DETAIL = "owner", "rejected", "detail"  # attributes of trials
REFUSED = "refused "  # of a study, before the key of a candidate: a finalist that was rejected
WORKER = "worker "  # of a study: who has joined it
STALE = timedelta(minutes=15)  # of a trial on another machine, or one that nobody has claimed
REPEATS = 6  # asked for something new before the next one in order is taken
TRIED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)


class State(StrEnum):
    """What came of a candidate: SLOW is right but given up, REJECTED is wrong."""

    COMPLETE = "complete"
    SLOW = "slow"
    REJECTED = "rejected"


def open_study(place: str, name: str, seed: int = 0) -> optuna.Study:
    """The study `name` in a folder of journals or a database URL, made if it is new.

    Raises StudyUnusable, or StudyDamaged for a journal that is none.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=8, constant_liar=True)
        pruner = optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=1)
        storage = RDBStorage(place) if is_database(place) else open_journal(journal(Path(place), name))
        return optuna.create_study(
            storage=storage, study_name=name, load_if_exists=True, sampler=sampler, pruner=pruner
        )
    except Exception as error:
        if is_database(place) or is_the_machines(error):
            raise StudyUnusable(place=place, detail=brief(error)) from error
        raise StudyDamaged(path=journal(Path(place), name), detail=brief(error)) from error


def is_database(place: str) -> bool:
    """Whether studies lie in a database, and not in a folder."""
    return "://" in place


class Search:
    """Draws candidates of a space that nobody has tried. order: what to take first, and what there is at all."""

    def __init__(self, study: optuna.Study, space: Space, order: Order, where: object = "in memory") -> None:
        """Give up trials of processes that are gone, and queue the untuned kernel of a new study.

        where: the study lies. Raises StudyDamaged, as everything does that reads it.
        """
        self._where = where
        self.study, self.order = study, {key(values): values for values in order.candidates}
        self._surrogate, self._turn = Surrogate(order.candidates, order.bounds), 0
        self._singles = [values for values in order.candidates if len(space.changed(values)) == 1]
        self._distributions: dict[str, CategoricalDistribution] = {
            t.name: CategoricalDistribution([json.dumps(plain(value)) for value in t.values]) for t in space.tunables
        }
        with self.reading():
            for trial in study.get_trials(deepcopy=False):
                self._check(trial)
            self._adopt_orphans()
        if not study.get_trials(deepcopy=False):
            self._enqueue(space.default)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Inside, what cannot come of a study that somebody's runs have written raises StudyDamaged."""
        try:
            yield
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            if is_the_machines(error):
                raise
            raise StudyDamaged(path=self._where, detail=brief(error)) from error

    def _check(self, trial: FrozenTrial) -> None:
        """Raise ValueError or TypeError for a trial that no run can have made: a journal is a file like any other."""
        drawn = [trial.params, trial.system_attrs.get("fixed_params", {})]
        strange = any(value not in self._distributions[name].choices for each in drawn for name, value in each.items())
        known = [*trial.intermediate_values.values(), *([] if trial.values is None else trial.values)]
        if trial.state is TrialState.COMPLETE:
            known.append(trial.value)
        steps = all(type(step) is int for step in trial.intermediate_values)
        words = all(isinstance(trial.user_attrs.get(name, ""), str) for name in (OWNER, REJECTED))
        if strange or not steps or not words or not all(type(r) in (int, float) and 0 < r < math.inf for r in known):
            raise ValueError(f"trial {trial.number} is none of this kernel's")

    def _enqueue(self, values: Values) -> None:
        self.study.enqueue_trial({name: json.dumps(plain(value)) for name, value in values.items()})

    def _adopt_orphans(self) -> None:
        """Give up trials that nobody works on, and queue their values.

        A process may be killed before it has said that a trial is its own: such a trial is an orphan once every other
        process that has ever joined the study is gone.
        """
        others = [str(name) for name in self.study.user_attrs if name.startswith(WORKER) and name != WORKER + owner()]
        unclaimed = any(_is_alive(name.removeprefix(WORKER)) for name in others)
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            claimed = trial.user_attrs.get(OWNER)
            recent = trial.datetime_start is not None and datetime.now() - trial.datetime_start < STALE
            here = claimed is not None and _is_here(claimed)
            alive = (unclaimed if claimed is None else _is_alive(claimed)) and (here or recent)
            if not alive:
                with contextlib.suppress(Exception):  # another process may have been faster
                    self.study.tell(trial.number, state=TrialState.FAIL)
                    if trial.params.keys() == self._distributions.keys():  # else it was killed while drawing them
                        self.study.enqueue_trial(trial.params)
        self.study.set_user_attr(WORKER + owner(), True)

    def tried(self) -> dict[str, FrozenTrial]:
        """Trials that are done or under way, by their values; a rejected candidate counts as done."""
        found = self.study.get_trials(deepcopy=False)
        done = (t for t in found if t.params and (t.state in TRIED or REJECTED in t.user_attrs))
        return {self._key(trial): trial for trial in done}

    def _key(self, trial: FrozenTrial | Trial) -> str:
        return key({name: json.loads(value) for name, value in trial.params.items()})

    def next(self) -> tuple[Trial, Values] | None:
        """A trial and its values, or None if nothing is left.

        First each tunable is moved alone, two times of three; then the surrogate's favourite and
        optuna's take turns. Raises StudyDamaged.
        """
        with self.reading():
            return self._next()

    def _next(self) -> tuple[Trial, Values] | None:
        tried = self.tried()
        left = {name: values for name, values in self.order.items() if name not in tried}
        if not left:
            return None
        self._turn += 1
        waiting = any(t.state is TrialState.WAITING for t in self.study.get_trials(deepcopy=False))
        if not waiting and (guess := self._guess(tried, left)) is not None:
            self._enqueue(guess)
        for _ in range(REPEATS):
            trial = self.study.ask(dict(self._distributions))
            name = self._key(trial)
            if name in left:
                trial.set_user_attr(OWNER, owner())
                return trial, left[name]
            self.study.tell(trial, state=TrialState.FAIL)
        self._enqueue(next(iter(left.values())))
        return self._next()

    def _guess(self, tried: Mapping[str, FrozenTrial], left: Mapping[str, Values]) -> Values | None:
        """What to try next, or None where optuna is to say."""
        singles = [values for values in self._singles if key(values) in left]
        if singles and self._turn % 3:
            return singles[0]
        if self._turn % 2:
            return None
        ratios = {name: ratio for name, trial in tried.items() if (ratio := ratio_of(trial)) is not None}
        return next(values for values in self._surrogate.ranked(ratios) if key(values) in left)

    def refuse(self, values: Values, state: State, why: str) -> None:
        """Tell everybody that a candidate whose trial was fine was found wrong or slow in a longer look."""
        self.study.set_user_attr(REFUSED + key(values), [state, why])

    def refused(self) -> dict[str, tuple[State, str]]:
        """State and reason of candidates that were refused, by their values."""
        named = self.study.user_attrs.items()
        told = {name.removeprefix(REFUSED): entry for name, entry in named if name.startswith(REFUSED)}
        found = {name: (State(state), why) for name, (state, why) in told.items()}
        if not all(state is not State.COMPLETE and isinstance(why, str) for state, why in found.values()):
            raise ValueError("a candidate is refused for what is no reason")
        return found

    def values(self, trial: FrozenTrial) -> Values | None:
        """The values of a trial, if they are of this space."""
        return self.order.get(self._key(trial))


def ratio_of(trial: FrozenTrial) -> float | None:
    """What is known of a trial's ratio: in the end, or when it was given up."""
    if trial.state is TrialState.COMPLETE:
        return trial.value
    return max(trial.intermediate_values.items(), default=(0, None))[1]


def owner() -> str:
    """This process, so that others can tell whether it is still there."""
    return f"{socket.gethostname()}:{os.getpid()}:{_started(os.getpid())}"


def _is_here(owner_name: str) -> bool:
    return owner_name.partition(":")[0] == socket.gethostname()


def _is_alive(owner_name: str) -> bool:
    """Whether a process is still there, as far as this machine can tell."""
    pid, _, started = owner_name.partition(":")[2].partition(":")
    return not _is_here(owner_name) or (pid.isdigit() and _started(int(pid)) == started)


def _started(pid: int) -> str:
    """When a process of this machine started, in ticks; nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""

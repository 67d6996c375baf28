"""Judging a candidate on the device that is here: proof, then a race against the untuned kernel, then the checker."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from autotune.contest import Contest, Timed
from autotune.faults import brief, is_the_machines
from autotune.forge import Candidate, Forge
from autotune.proof import Judge, Rejected
from codegen.tunables import Value
from codegen.tuned import MEASURED
from runtime.bench.usage import UsageClock

ROUNDS, FINAL_ROUNDS = 6, 14
LEAST_ROUNDS = 2  # before a candidate may be given up
SLOW = 1.15  # so much slower than untuned after LEAST_ROUNDS: given up
REGRESSION = 1.05  # of one scene, in three rounds of four, whatever is won in others
LEAST_GAIN = 0.02
QUIET_TRIES = 3  # races of a finalist, until others leave the machine alone

Report = Callable[[float, int], bool]  # (ratio, round) -> whether to give up


@dataclass(frozen=True)
class Verdict:
    """What is known of a candidate. ratio: of its time to the untuned kernel's; noise: relative, of that ratio."""

    ratio: float
    noise: float
    detail: Mapping[str, Any]
    kind: str

    @property
    def wins(self) -> bool:
        """Whether it is faster by twice the noise, and by more than next to nothing: several were tried."""
        return self.ratio * (1 + max(2 * self.noise, LEAST_GAIN)) < 1


class GivenUp(Exception):
    """A candidate that is right, and slower than others: before all its rounds are run, or in one scene after them."""


class Disturbed(Exception):
    """Others were at work while finalists were raced, whenever that was tried: nothing can be decided now."""


class Bench:
    """Evaluates candidates of one kernel.

    measuring: held while something is timed, so that processes take turns. busy: cores that others may use on average
    while a finalist is raced.
    """

    kind = MEASURED

    def __init__(
        self, forge: Forge, kernel: str, device: torch.device, *, working_set: int, numerics: str,
        measuring: AbstractContextManager[Any], busy: float = math.inf,
    ) -> None:  # fmt: skip
        self.forge, self.kernel, self.measuring, self.busy = forge, kernel, measuring, busy
        self.judge = Judge(forge, kernel, device, numerics)
        self.contest = Contest(self.judge, working_set)

    def evaluate(self, values: Mapping[str, Value], report: Report) -> Verdict:
        """Prove and time a candidate. Raises Rejected or GivenUp."""
        candidate = self._proven(values)
        with self.measuring:
            for index, timed in enumerate(self.contest.race(candidate, ROUNDS)):
                hopeless = index + 1 >= LEAST_ROUNDS and timed.ratio > SLOW
                if report(timed.ratio, index) or hopeless:
                    raise GivenUp(f"{timed.ratio:.2f} of the untuned time after {index + 1} rounds")
        if values and timed.ratio < 1:
            self.judge.check_races(candidate)
        return _verdict(timed)

    def decide(self, values: Mapping[str, Value]) -> Verdict:
        """Time a candidate at length. Raises Rejected if it is wrong, GivenUp if it is slower where it matters, or
        Disturbed.
        """
        candidate = self._proven(values)
        if values:  # the judge has checked the untuned kernel
            self.judge.check_races(candidate)
        timed = self._undisturbed(candidate)
        scene, worst = timed.worst
        if values and worst > REGRESSION:
            raise GivenUp(f"{worst:.2f} of the untuned time or more in {scene}")
        return _verdict(timed)

    def _undisturbed(self, candidate: Candidate) -> Timed:
        """A long race during which others used next to nothing of the processor. Raises Disturbed."""
        others: list[float] = []
        for _ in range(QUIET_TRIES):
            with self.measuring:
                clock = UsageClock((), None)
                *_, timed = self.contest.race(candidate, FINAL_ROUNDS)
                used = clock.read()
            if used is None or used.others <= self.busy:
                return timed
            others.append(used.others)
        said = f"others used {min(others):.2f} cores or more while it was raced {QUIET_TRIES} times"
        raise Disturbed(f"{said}, {self.busy:g} are allowed")

    def _proven(self, values: Mapping[str, Value]) -> Candidate:
        """A candidate that is right. Raises Rejected, or what the machine is at fault for."""
        try:
            candidate = self.forge.candidate(self.kernel, values)
            self.judge.prove(candidate)
        except Rejected:
            raise
        except Exception as error:
            if is_the_machines(error):
                raise
            raise Rejected(f"it cannot be compiled or launched: {brief(error)}") from error
        return candidate


def _verdict(timed: Timed) -> Verdict:
    return Verdict(timed.ratio, timed.noise, {"scenes": timed.plain()}, MEASURED)

"""A small run of `python -m tests.fuzz` in the gate: the long one is a command."""

from pathlib import Path

import pytest

from tests.fuzz.corpus import Subject, subjects
from tests.fuzz.trace import Fuzz

TRACES = 25
FOLDER = Path(__file__).resolve().parents[2] / "build" / "fuzz"


@pytest.fixture(scope="module")
def drawn() -> list[Subject]:
    return list(subjects(2, 11, FOLDER))


@pytest.mark.parametrize("number", range(2))
def test_every_answer_equals_its_cold_run_and_every_step_the_simulator(drawn: list[Subject], number: int) -> None:
    fuzz = Fuzz(drawn[number], seed=number)
    for _ in range(TRACES):
        fuzz.trace()
    assert fuzz.tally.traces == TRACES
    assert fuzz.tally.tokens > TRACES
    tally = fuzz.tally
    assert min(tally.steps, tally.saves, tally.restored, tally.preempted, tally.promoted, tally.scored) > 0

"""`pytest -m nightly`: many specs, many traces. What it compared is printed at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.corpus import subjects
from tests.fuzz.trace import Fuzz

SPECS, TRACES = 24, 300
FOLDER = Path(__file__).resolve().parents[2] / "build" / "fuzz"


@pytest.mark.nightly
def test_many_traces_of_many_specs(capsys) -> None:
    total = {"specs": 0, "traces": 0, "requests": 0, "tokens": 0, "steps": 0}
    for number, subject in enumerate(subjects(SPECS, 2026, FOLDER)):
        fuzz = Fuzz(subject, seed=number)
        for _ in range(TRACES):
            fuzz.trace()
        total["specs"] += 1
        for name in ("traces", "requests", "tokens", "steps"):
            total[name] += getattr(fuzz.tally, name)
        with capsys.disabled():
            print(f"\n{total} after {subject.spec.pattern}", end="", flush=True)
    assert total["specs"] == SPECS and total["traces"] == SPECS * TRACES
    assert total["tokens"] > total["traces"]

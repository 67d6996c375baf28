"""The history of ratios: what a run is compared with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import history


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "history.jsonl"


def test_a_run_is_compared_with_the_median_of_the_last_ones(file: Path) -> None:
    for ratio in (9.0, 1.0, 2.0, 3.0, 4.0, 5.0):
        history.append(file, "speed", {"step": ratio}, 0.0)
    (change,) = history.compare(file, "speed", {"step": 3.0, "new": 1.0})
    assert (change.before, change.entries) == (3.0, history.LAST)


@pytest.mark.parametrize(("now", "regressed"), [(0.91, False), (0.89, True), (1.5, False)])
def test_a_tenth_less_is_a_regression(file: Path, now: float, regressed: bool) -> None:
    history.append(file, "speed", {"step": 1.0}, 0.0)
    (change,) = history.compare(file, "speed", {"step": now})
    assert change.regressed is regressed


def test_other_kinds_other_machines_and_busy_runs_are_left_alone(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history.append(file, "peers", {"step": 9.0}, 0.0)
    history.append(file, "speed", {"step": 9.0}, history.BUSY_CORES + 0.01)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(history, "machine", lambda: "another")
        history.append(file, "speed", {"step": 9.0}, 0.0)
    assert history.compare(file, "speed", {"step": 1.0}) == []


@pytest.mark.parametrize("line", ['{"kind": "speed", "rat', "[]", "1", '{"kind": "speed"}', ""])
def test_a_line_that_is_no_run_is_passed_over(file: Path, line: str) -> None:
    history.append(file, "speed", {"step": 2.0}, 0.0)
    with file.open("a") as stream:
        stream.write(line + "\n")
    history.append(file, "speed", {"step": 2.0}, 0.0)
    assert [change.entries for change in history.compare(file, "speed", {"step": 1.0})] == [2]


def test_runs_are_one_line_each_and_hold_ratios_only(file: Path) -> None:
    history.append(file, "speed", {"step": 2.0}, 0.0, threads=2)
    (line,) = file.read_text().splitlines()
    assert json.loads(line) == {
        "kind": "speed",
        "machine": history.machine(),
        "others": 0.0,
        "ratios": {"step": 2.0},
        "threads": 2,
    }


def test_the_option_goes_before_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(history.VARIABLE, raising=False)
    assert history.path_of(None) == history.DEFAULT
    monkeypatch.setenv(history.VARIABLE, str(tmp_path / "variable"))
    assert history.path_of(None) == tmp_path / "variable"
    assert history.path_of(tmp_path / "option") == tmp_path / "option"

"""Studies: shared by processes, whole after a kill, and never twice at the same candidate."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from optuna.distributions import CategoricalDistribution
from optuna.trial import TrialState

from autotune.finale import conclude
from autotune.space import Space, key
from autotune.study import OWNER, Search, open_study
from autotune.tune import attempts, run_trials
from codegen.errors import StudyUnusable
from codegen.plan import Plan
from codegen.tuned import identity
from tests.autotune.searching import WRONG, Landscape, everything, made_up, ratio

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def space(toy_plan: Plan) -> Space:
    return made_up(toy_plan)


def searching(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.autotune.searching", str(folder), "study", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


def search_in(folder: Path, space: Space) -> Search:
    return Search(open_study(str(folder), "study"), space, everything(space))


def test_two_processes_share_one_study(tmp_path: Path, space: Space) -> None:
    """Between them every candidate is tried, each by one of them but for what both drew in the same moment."""
    processes = [searching(tmp_path, "0.03") for _ in range(2)]
    tried = [process.communicate(timeout=60)[0].split("\n")[:-1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert min(map(len, tried)) >= 5, "one of them did nothing"
    counts = Counter(name for names in tried for name in names)
    assert set(counts) == {key(values) for values in space}
    assert sum(counts.values()) - len(counts) <= 4
    search = search_in(tmp_path, space)
    owners = {trial.user_attrs[OWNER] for trial in search.tried().values()}
    assert len(owners) == 2
    assert search.next() is None


def test_a_killed_search_loses_at_most_the_trial_in_flight(tmp_path: Path, space: Space) -> None:
    process = searching(tmp_path, "0.05")
    assert process.stdout is not None
    before = [process.stdout.readline().strip() for _ in range(7)]
    time.sleep(0.02)  # into the next trial
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    with (tmp_path / "study.journal").open("ab") as journal:
        journal.write(b'{"op_code": 6, "worker_id": "cut off in the mid')
    study = open_study(str(tmp_path), "study")
    running = [trial for trial in study.trials if trial.state is TrialState.RUNNING]
    assert len(running) <= 1
    search = Search(study, space, everything(space))
    assert set(before) <= set(search.tried())
    assert not [trial for trial in search.study.trials if trial.state is TrialState.RUNNING]
    again: list[str] = []
    assert run_trials(search, space, Landscape(space), on_trial=lambda a: again.append(key(a.values)))
    assert not set(before) & set(again), "something was tried twice"
    assert set(search.tried()) == {key(values) for values in space}
    for trial in [trial for trial in running if len(trial.params) == len(space.tunables)]:
        assert key({t.name: v for t, v in zip(space.tunables, values_of(trial.params, space), strict=True)}) in again


def values_of(params: dict[str, str], space: Space) -> list[object]:
    return [tunable.read(json.loads(params[tunable.name])) for tunable in space.tunables]


def test_a_trial_that_was_never_claimed_is_an_orphan_once_nobody_is_left(tmp_path: Path, space: Space) -> None:
    """A process that is killed in the moment between drawing a trial and saying whose it is."""
    drawn = {t.name: json.dumps(t.default) for t in space.tunables}
    study = open_study(str(tmp_path), "study")
    study.set_user_attr("worker elsewhere:1:1", True)
    study.enqueue_trial(drawn)
    unclaimed = study.ask({t.name: CategoricalDistribution([json.dumps(v) for v in t.values]) for t in space.tunables})
    search = search_in(tmp_path, space)
    assert search.study.trials[unclaimed.number].state is TrialState.RUNNING, "a process elsewhere may be at it"
    gone = open_study(str(tmp_path), "other study")
    gone.set_user_attr(f"worker {socket.gethostname()}:999999999:1", True)
    gone.enqueue_trial(drawn)
    unclaimed = gone.ask({t.name: CategoricalDistribution([json.dumps(v) for v in t.values]) for t in space.tunables})
    adopted = Search(gone, space, everything(space))
    assert gone.trials[unclaimed.number].state is TrialState.FAIL
    again = adopted.next()
    assert again is not None
    assert again[1] == space.default


def test_a_trial_of_a_living_process_is_left_to_it(tmp_path: Path, space: Space) -> None:
    mine = search_in(tmp_path, space)
    drawn = mine.next()
    assert drawn is not None
    other = search_in(tmp_path, space)
    running = [trial.number for trial in other.study.trials if trial.state is TrialState.RUNNING]
    assert running == [drawn[0].number]
    assert key(drawn[1]) in other.tried()


def test_a_third_of_the_trials_find_the_best(tmp_path: Path, space: Space) -> None:
    search, landscape = search_in(tmp_path, space), Landscape(space)
    run_trials(search, space, landscape, most=len(space) // 3)
    found = conclude(search, space, landscape, identity(space.plan, space.kernel), {})
    right = [values for values in space if not all(values[name] == value for name, value in WRONG.items())]
    best = min(map(ratio, right))
    assert len(search.tried()) <= len(space) // 3
    assert best / found.ratio >= 0.95
    assert found.values == space.changed(space.default | dict(found.values))


def test_what_was_rejected_is_known_to_everybody_and_never_the_result(tmp_path: Path, space: Space) -> None:
    search, landscape = search_in(tmp_path, space), Landscape(space)
    assert run_trials(search, space, landscape)
    states = Counter(attempt.state for attempt in attempts(search_in(tmp_path, space)))
    assert states["rejected"] == 4
    assert sum(states.values()) == len(space)
    found = conclude(search, space, landscape, identity(space.plan, space.kernel), {})
    assert found.detail["explored"] == len(space)
    rejected = [trial for trial in found.detail["trials"] if trial["state"] == "rejected"]
    assert {trial["why"] for trial in rejected} == {"y[0] is 1.0, not 2.0"}


def test_a_place_that_cannot_hold_studies_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StudyUnusable, match="file"):
        open_study(str(tmp_path / "file" / "below"), "study")
    with pytest.raises(StudyUnusable, match="nosuchdb://here"):
        open_study("nosuchdb://here", "study")


def test_a_study_may_lie_in_a_database(tmp_path: Path, space: Space) -> None:
    url = f"sqlite:///{tmp_path}/studies.sqlite"
    search = Search(open_study(url, "study"), space, everything(space))
    run_trials(search, space, Landscape(space), most=1)
    assert len(Search(open_study(url, "study"), space, everything(space)).tried()) == 1

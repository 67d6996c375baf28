"""A whole run: its time, what is left when that is over, further processes, and what they say when they fail."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from autotune import run as running
from autotune.cli import app
from autotune.measure import Verdict
from autotune.run import Progress, Task, help_with, run
from autotune.space import Order
from autotune.study import OWNER, Search
from autotune.tune import run_trials
from codegen import catalogue
from codegen.errors import CodegenError, StudyUnusable
from codegen.tuned import KEEP, MEASURED, Result, identity
from codegen.tuned_store import Results
from codegen.verify.errors import RefusedByRuntime
from dsl import ModelSpec
from runtime.cpu.errors import CpuBackendError
from runtime.errors import RuntimeStateError
from tests.autotune.searching import Landscape

SMALL, OTHER = "mamba2_conv_step_32x4_50", "lookup_drafts"


@pytest.fixture
def task(toy: ModelSpec, tmp_path: Path) -> Task:
    return Task(toy, "cpu", tmp_path, str(tmp_path / "studies"), kernels=(SMALL, OTHER))


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Nothing is compiled or timed: every candidate takes 30 ms and is no faster. Yields names of kernels, as begun."""
    begun: list[str] = []

    class Slow(Landscape):
        def evaluate(self, values, report):  # type: ignore[no-untyped-def]
            time.sleep(0.03)
            return self.decide(values)

        def decide(self, values):  # type: ignore[no-untyped-def]
            return Verdict(1.0, 0.001, {"scenes": {}}, MEASURED)

    def evaluator(self: running.Session, kernel: str) -> Slow:
        begun.append(kernel)
        return Slow(self.space(kernel))

    monkeypatch.setattr(running.Session, "evaluator", evaluator)
    yield begun


def test_kernels_that_the_time_does_not_reach_are_named_and_keep_their_results(
    task: Task, made_up: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even those that something is known of: nothing is raced again when the time is over."""
    assert len(list(run(task, 60.0))) == 2
    results = Results(task.folder / "results")
    better = [Result(found.identity, {"BLOCK_T": 64}, 0.5, MEASURED, {"noise": 0.0}) for found in results.all()]
    for found in better:
        results.write(found)
    made_up.clear()
    missed: list[str] = []
    assert list(run(task, 0.0, Progress(missed=missed.append))) == []
    assert sorted(missed) == sorted((SMALL, OTHER))
    assert made_up == []
    assert results.all() == better


def test_a_run_that_tries_nothing_new_stores_nothing_new(task: Task, made_up: list[str]) -> None:
    first = list(run(task, 60.0))
    times = {path: path.stat().st_mtime_ns for path in (task.folder / "results").iterdir()}
    assert list(run(task, 60.0)) == first
    assert {path: path.stat().st_mtime_ns for path in (task.folder / "results").iterdir()} == times


def test_a_better_result_of_another_machine_of_this_kind_is_raced_and_not_just_replaced(
    task: Task, toy: ModelSpec, made_up: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from codegen.lower import lower

    plan = lower(toy, "cpu")
    stored = Result(identity(plan, plan.kernel(OTHER)), {"BLOCK_T": 32}, 0.5, MEASURED, {})
    decided = []
    whole = running.conclude

    def watched(search, space, evaluator, about, detail, before):  # type: ignore[no-untyped-def]
        decided.append(before)
        return whole(search, space, evaluator, about, detail, before)

    monkeypatch.setattr(running, "conclude", watched)
    Results(task.folder / "results").write(stored)
    list(run(task, 60.0))
    assert stored in decided


def test_the_command_says_which_kernels_were_not_reached(
    toy: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = tmp_path / "toy.yaml"
    spec.write_text(yaml.safe_dump(json.loads(json.dumps(toy.model_dump())), sort_keys=False))
    monkeypatch.setattr(running, "_tune", None)  # nobody gets there
    kernels = ("--kernel", SMALL, "--kernel", OTHER)
    command = ["run", str(spec), "--budget", "0.000001s", *kernels, "--folder", str(tmp_path)]
    said = CliRunner().invoke(app, command).stdout
    assert "2 kernels were not reached: run again" in said
    assert SMALL in said and OTHER in said
    assert sorted(json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)["not_reached"]) == [OTHER, SMALL]


def test_two_processes_tune_one_kernel(toy: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both of them: the study has two owners, and nothing is tried twice but what both drew in the same moment."""
    task, seen = (
        Task(toy, "cpu", tmp_path, str(tmp_path / "studies"), jobs=2, kernels=(SMALL,), busy=99.0),
        list[Search](),
    )

    def after_the_helper(search: Search, *arguments: Any) -> bool:
        seen.append(search)
        end = time.monotonic() + 60
        while not owners(search) and time.monotonic() < end:
            time.sleep(0.05)
        return run_trials(search, *arguments)

    monkeypatch.setattr(running, "run_trials", after_the_helper)
    (found,) = list(run(task, 120.0))
    assert found.kind == "measured"
    assert found.detail["explored"] == found.detail["candidates"]
    assert len(owners(seen[0])) == 2
    assert sum(OWNER in trial.user_attrs for trial in seen[0].study.trials) <= found.detail["candidates"] + 1


def owners(search: Search) -> set[str]:
    """Processes that have taken trials."""
    return {trial.user_attrs[OWNER] for trial in search.study.trials if OWNER in trial.user_attrs}


def test_what_stops_a_helper_is_told_as_it_is(toy: ModelSpec, tmp_path: Path) -> None:
    """Not as a process that died: the error comes from one that could not open its study."""
    (tmp_path / "file").write_text("")
    task = Task(toy, "cpu", tmp_path, str(tmp_path / "file" / "studies"), jobs=2, kernels=(SMALL,))
    with running._helpers(task) as helpers:
        (future,) = helpers(SMALL, Order((), {}), time.monotonic() + 60)
        with pytest.raises(StudyUnusable, match=r"file/studies cannot be used: .* \[tune-storage\]"):
            future.result()


@pytest.mark.parametrize("base", [CodegenError, RuntimeStateError, CpuBackendError])
def test_every_error_that_a_process_tells_another_arrives_as_it_is(base: type[Exception]) -> None:
    count = 0
    for cls in catalogue.subclasses(base):
        template = getattr(cls, "template", getattr(cls, "message", ""))
        if cls is RefusedByRuntime:
            continue  # it is made of another error, where the command ends
        error = cls(**{name: f"some {name}" for name in catalogue.fields(template)})
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.args) == (cls, str(error), error.args)
        assert again.fields == error.fields  # type: ignore[attr-defined]
        count += 1
    assert count > 10


def test_a_helper_keeps_its_plan_from_kernel_to_kernel(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    lowered = []
    whole = running.lower
    monkeypatch.setattr(running, "lower", lambda *arguments: lowered.append(arguments) or whole(*arguments))
    monkeypatch.setattr(running, "_sessions", {})
    monkeypatch.setattr(running, "run_trials", lambda *arguments, **options: None)
    monkeypatch.setattr(running.Session, "evaluator", lambda self, kernel: None)
    for kernel in (SMALL, OTHER, SMALL):
        order = running.Session.space(running._session(task), kernel).promising(running.Machine(1e9, 1e9, 2))
        help_with(task, kernel, order, 1.0)
    assert len(lowered) == 1
    assert task.numerics == KEEP

"""Results are per device: a GPU by its name, a prediction by none, and none of them stands in for another."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from autotune import run
from autotune.cli import app
from autotune.run import Session, Task
from codegen import machine
from codegen.lower import lower
from codegen.machine import gpu
from codegen.plan import Plan
from codegen.predict.accelerators import by_driver_name
from codegen.tuned import MEASURED, PREDICTED, Result, choose, devices, identity
from codegen.tuned_format import read_result
from codegen.tuned_store import ResultFile, Results, export
from dsl import ModelSpec

TARGET, NAME = "cuda:90", "matmul_256x1160"
H100, H200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200"
DRIVER = """
#include <string.h>
int cuInit(unsigned flags) { return %(init)d; }
int cuDeviceGet(int *device, int ordinal) { *device = 7; return ordinal; }
int cuDeviceGetName(char *name, int length, int device) { strncpy(name, "%(name)s", length); return device != 7; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == 75 ? %(major)d : attribute == 76 ? %(minor)d : -1;
  return device != 7;
}
"""


@pytest.fixture(scope="module")
def plan(tiny: ModelSpec) -> Plan:
    return lower(tiny, TARGET)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    gpu.cache_clear()


def driver(folder: Path, **facts: object) -> str:
    """A library that answers as CUDA's driver does, on a machine with one GPU."""
    facts = {"init": 0, "name": H200, "major": 9, "minor": 0} | facts
    source, library = folder / "cuda.c", folder / "libcuda.so.1"
    source.write_text(DRIVER % facts)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return str(library)


def test_a_gpu_is_known_by_the_drivers_name_if_it_runs_the_target(tmp_path: Path) -> None:
    library = driver(tmp_path)
    assert gpu("cuda:90", library) == H200
    assert gpu("cuda:80", library) is None


def test_without_a_driver_or_without_its_blessing_there_is_no_gpu(tmp_path: Path) -> None:
    assert gpu("cuda:90", str(tmp_path / "libcuda.so.1")) is None
    gpu.cache_clear()
    assert gpu("cuda:90", driver(tmp_path, init=100)) is None


def on(monkeypatch: pytest.MonkeyPatch, name: str | None) -> None:
    """Make this a machine with a GPU for TARGET, or without one."""
    monkeypatch.setattr(machine, "gpu", lambda target: name if target == TARGET else None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: name is not None)


def test_a_measured_a_predicted_and_another_gpus_result_have_nothing_in_common(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for name in (None, H100, H200):
        on(monkeypatch, name)
        assert devices(TARGET) == ((PREDICTED,) if name is None else (name, PREDICTED))
        found.append(identity(plan, plan.kernel(NAME)))
    assert [about.device for about in found] == [PREDICTED, H100, H200]
    assert len({about.digest for about in found}) == 3


def test_a_run_with_the_gpu_shares_no_study_with_one_without(
    tiny: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the candidates of the one would be tried already for the other."""
    studies, seen = [], []
    monkeypatch.setattr(run, "open_study", lambda place, name, seed: studies.append(name))
    monkeypatch.setattr(run, "Search", lambda study, space, order, where: None)
    for name in (None, H100, H200):
        on(monkeypatch, name)
        session = Session(Task(tiny, TARGET, tmp_path, str(tmp_path)))
        session.search(NAME, None)  # type: ignore[arg-type]
        seen.append((session.device, session.identity(NAME).device, session.machine.bandwidth))
    assert len(set(studies)) == 3
    gpu_here = torch.device("cuda")
    assert seen == [(None, PREDICTED, 3.35e12), (gpu_here, H100, 3.35e12), (gpu_here, H200, 4.8e12)]


def test_a_gpu_that_torch_cannot_use_is_predicted(
    tiny: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(monkeypatch, H100)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    session = Session(Task(tiny, TARGET, tmp_path, str(tmp_path)))
    assert (session.device, session.identity(NAME).device) == (None, PREDICTED)


def result(plan: Plan, device: str, ratio: float, stages: int) -> Result:
    kind = PREDICTED if device == PREDICTED else MEASURED
    return Result(identity(plan, plan.kernel(NAME), where=device), {"num_stages": stages}, ratio, kind)


def test_an_import_puts_nothing_predicted_in_place_of_what_was_measured(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(monkeypatch, H100)
    results = Results(tmp_path / "results")
    results.write(measured := result(plan, H100, 0.9, 2))
    file = tmp_path / "file.json"
    file.write_text(export([result(plan, PREDICTED, 0.4, 5), result(plan, H200, 0.5, 4)]))
    ran = CliRunner().invoke(app, ["import", str(file), "--folder", str(tmp_path), "--json"])
    assert json.loads(ran.stdout) == {"read": 2, "taken": 2}
    assert results.find(measured.identity) == measured
    (choice,) = (choice for choice in choose(plan, results) if choice.kernel == NAME)
    assert choice.result == measured


@pytest.mark.parametrize(("kind", "device"), [(PREDICTED, H100), (MEASURED, PREDICTED), (PREDICTED, TARGET)])
def test_a_result_that_is_of_another_kind_than_its_device_is_none(plan: Plan, kind: str, device: str) -> None:
    data = result(plan, device, 0.5, 2).plain() | {"kind": kind}
    with pytest.raises(ValueError, match="no device of a result that is"):
        read_result(json.loads(json.dumps(data)))


def test_a_build_takes_what_was_measured_before_what_was_predicted(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(source: Results | ResultFile) -> tuple[str | None, str]:
        (choice,) = (choice for choice in choose(plan, source) if choice.kernel == NAME)
        return choice.result and choice.result.identity.device, choice.why

    on(monkeypatch, H200)
    results, file = Results(tmp_path / "results"), tmp_path / "file.json"
    predicted, other, here = (result(plan, name, 0.5, 2) for name in (PREDICTED, H100, H200))
    results.write(other)
    assert taken(results) == (None, "tuned on another machine")
    results.write(predicted)
    assert taken(results) == (PREDICTED, "predicted")
    results.write(here)
    assert taken(results) == (H200, "measured")
    file.write_text(export([predicted, other]))
    assert taken(ResultFile(file)) == (H100, f"measured on {H100}, or for another workload or toolchain")
    file.write_text(export([predicted, other, here]))
    assert taken(ResultFile(file)) == (H200, "measured")
    on(monkeypatch, None)
    assert taken(results) == (PREDICTED, "predicted")
    assert taken(ResultFile(file))[0] == H100


def test_a_gpu_has_the_rates_of_the_one_that_its_name_speaks_of() -> None:
    assert by_driver_name(TARGET, H100).name == "H100"
    assert by_driver_name(TARGET, H200).name == "H200"
    assert by_driver_name(TARGET, "NVIDIA Unheard").name == by_driver_name(TARGET, "").name == "H100"

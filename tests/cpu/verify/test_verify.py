"""verify passes on sound packages, and refuses or fails plainly on others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from codegen.cli import app
from codegen.verify import CannotVerify, Report, verify_package
from dsl import load_spec
from dsl.reference.weights import random_weights
from tests.cpu.verify.mutants import copy_package

ROOT = Path(__file__).resolve().parents[3]


def complaints(report: Report) -> list[str]:
    return [f"{check.name}: {finding}" for check in report.checks for finding in check.findings]


@pytest.fixture(scope="module")
def toy_report(toy_package: Path) -> Report:
    return verify_package(toy_package)


@pytest.fixture(scope="module")
def drawn_report(drawn_package: Path) -> Report:
    return verify_package(drawn_package)


@pytest.fixture(scope="module")
def tiny_hybrid_report(tiny_hybrid_package: Path) -> Report:
    return verify_package(tiny_hybrid_package, prompts=6, new_tokens=16)


@pytest.mark.parametrize("name", ["toy_report", "drawn_report", "tiny_hybrid_report"])
def test_sound_package_passes(name: str, request: pytest.FixtureRequest) -> None:
    report: Report = request.getfixturevalue(name)
    assert report.passed, complaints(report)
    assert report.weights == "random, seed 0"
    nothing_compared = [check.name for check in report.checks if not check.compared]
    assert not nothing_compared


def test_modes_meet_what_they_are_for(toy_report: Report) -> None:
    accepted, *_ = toy_report.check("drafts-7").detail.split()
    assert int(accepted) > 0
    assert toy_report.check("batched").detail.startswith("buckets 1 2 4")
    written = toy_report.check("checkpoints").detail
    assert all(f"by {origin}" in written for origin in ("prefill", "save", "step"))


def test_one_token_is_enough(toy_package: Path) -> None:
    report = verify_package(toy_package, prompts=1, new_tokens=1)
    assert report.passed, complaints(report)


def test_prompts_may_be_given(toy_package: Path) -> None:
    report = verify_package(toy_package, prompts=["to be", b"or not", [1, 2, 3]], new_tokens=5)
    assert report.passed, complaints(report)
    assert report.check("cold").compared == 15


def test_command_prints_json(toy_package: Path) -> None:
    result = CliRunner().invoke(app, ["verify", str(toy_package), "--prompts", "2", "--new-tokens", "4", "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.output)
    assert report["passed"] and report["target"] == "cpu"
    assert {"name", "title", "passed", "compared", "unit", "seconds", "detail", "findings"} == set(report["checks"][0])


def test_changed_file_fails(toy_package: Path, tmp_path: Path) -> None:
    package = copy_package(toy_package, tmp_path / "changed")
    step = package / "cpu" / "step.py"
    step.write_text(step.read_text() + "\n")
    result = CliRunner().invoke(app, ["verify", str(package)])
    assert result.exit_code == 1
    assert "cpu/step.py has changed" in result.output


def test_changed_plan_fails(toy_package: Path, tmp_path: Path) -> None:
    package = copy_package(toy_package, tmp_path / "foreign")
    spec = json.loads((package / "spec.json").read_text())
    spec["norm_eps"] = 1e-5
    text = json.dumps(spec)
    (package / "spec.json").write_text(text)
    manifest = json.loads((package / "manifest.json").read_text())
    del manifest["files"]["spec.json"]
    (package / "manifest.json").write_text(json.dumps(manifest))
    report = verify_package(package, prompts=1, new_tokens=2)
    assert not report.check("plan").passed


def test_what_cannot_be_verified_is_refused(toy_package: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    foreign = tmp_path / "tiny-hybrid.safetensors"
    save_file(random_weights(load_spec(ROOT / "specs" / "tiny-hybrid.yaml"), 0), foreign)
    for arguments, named in (
        ([str(tmp_path)], "manifest.json"),
        ([str(toy_package), "--weights", str(tmp_path / "none")], "no weights at"),
        ([str(toy_package), "--weights", str(foreign)], "weights-"),
    ):
        result = CliRunner().invoke(app, ["verify", *arguments])
        assert result.exit_code == 2, result.output
        assert named in result.output
    with pytest.raises(CannotVerify):
        verify_package(toy_package, new_tokens=0)

"""Each planted fault fails the property that it breaks, and bisecting names the buffer that is wrong first."""

from __future__ import annotations

from pathlib import Path

import pytest

from codegen.verify import verify_package
from tests.cpu.verify.mutants import MUTANTS, Mutant, copy_package, edit

OF_TEXT = (
    *("chunked", "threads", "replay", "drafts-1", "drafts-3", "drafts-7", "drafts-changing", "cut", "batched"),
    *("resumed", "extended", "poison"),
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_fails_and_is_located(
    mutant: Mutant, toy_package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = copy_package(toy_package, tmp_path / "mutant")
    mutant.plant(package, monkeypatch)
    report = verify_package(package, prompts=6, new_tokens=16, bisect=True)
    failed = [check.name for check in report.checks if not check.passed]
    assert mutant.check in failed
    assert mutant.in_text == any(name in failed for name in OF_TEXT)
    first = report.check(mutant.check).findings[0]
    assert (first.layer, first.buffer) == (mutant.layer, mutant.buffer), f"{failed}: {first}"


def test_stale_argument_is_named(toy_package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = copy_package(toy_package, tmp_path / "mutant")
    MUTANTS[0].plant(package, monkeypatch)
    report = verify_package(package, prompts=2, new_tokens=6, bisect=True)
    assert report.check("launches").findings[0].buffer == "temperature"
    assert "its argument temperature was captured at another address" in report.check("replay").findings[0].detail


def test_a_grid_that_is_not_the_plans_is_found(toy_package: Path, tmp_path: Path) -> None:
    package = copy_package(toy_package, tmp_path / "mutant")
    edit(package, "cpu/step.py", ("embed_rows[(rows,)]", "embed_rows[(1,)]"))
    findings = verify_package(package, prompts=2, new_tokens=6).check("launches").findings
    assert findings
    assert "grid is (1,)" in findings[0].detail


@pytest.mark.parametrize("scale", [" * b_w_scale[None, :]", " * b_x_scale[:, None]"], ids=["weights", "rows"])
def test_a_head_of_drafts_without_a_scale_is_found_and_changes_no_token(
    scale: str, rounded_package: Path, tmp_path: Path
) -> None:
    package = copy_package(rounded_package, tmp_path / "mutant")
    edit(package, "cpu/kernels/draft_head_*.py", (scale, ""))
    failed = [check.name for check in verify_package(package, prompts=6, new_tokens=16).checks if not check.passed]
    assert failed == ["reference-drafts"]


def test_a_rounded_head_of_drafts_is_verified(rounded_package: Path) -> None:
    assert verify_package(rounded_package, prompts=6, new_tokens=16).passed

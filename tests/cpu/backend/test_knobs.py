"""Environment variables: a wrong value is one clear error, in the backend and in `build`."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from codegen.aot import _toolchain
from codegen.cli import app
from runtime.cpu import knobs, toolchain
from runtime.cpu.errors import BadKnob

SPEC = Path(__file__).resolve().parents[3] / "specs" / "tiny-hybrid.yaml"


@pytest.mark.parametrize(("name", "value"), [("STEPFORGE_CPU_THREADS", "abc"), ("STEPFORGE_CPU_SPIN_US", "1.5")])
def test_a_number_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(BadKnob, match=name):
        knobs.requested_threads()
        knobs.spin_microseconds()


def test_a_list_of_openmp_is_not_ours_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STEPFORGE_CPU_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "2,1")
    assert knobs.requested_threads() is None


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [("STEPFORGE_CPU_ISA", "mmx", "avx512"), ("STEPFORGE_CPU_CC", "/nonexistent/cc", "not found")],
)
def test_build_says_what_is_wrong_with_the_toolchain(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(name, value)
    for cached in (_toolchain, toolchain.fingerprint, toolchain.compiler):
        cached.cache_clear()
    result = CliRunner().invoke(app, ["build", str(SPEC), "-o", str(tmp_path / "package")])
    for cached in (_toolchain, toolchain.fingerprint, toolchain.compiler):
        cached.cache_clear()
    assert result.exit_code == 2
    assert said in result.output
    assert "Traceback" not in result.output

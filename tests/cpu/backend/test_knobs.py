"""Environment variables: a wrong value is one clear error, in the backend and in `build`."""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from codegen.aot import toolchain as identity_of_toolchain
from codegen.cli import app
from runtime.cpu import BadKnob, CompilationFailed, knobs, pool, toolchain
from runtime.cpu.checks import mode
from runtime.cpu.driver import CpuDriver

SPEC = Path(__file__).resolve().parents[3] / "specs" / "tiny-hybrid.yaml"


READ: dict[str, tuple[Callable, str]] = {
    "STEPFORGE_CPU_THREADS": (knobs.requested_threads, "a whole number from 1 to 256"),
    "STEPFORGE_CPU_SPIN_US": (knobs.spin_microseconds, "a whole number from 0 to 1000000"),
}


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("value", ["abc", "1.5", "-5", "-3", "10000000", "1e3", "+1", "²"])
def test_a_number_out_of_range_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    read, allowed = READ[name]
    monkeypatch.setenv(name, value)
    with pytest.raises(BadKnob) as caught:
        read()
    assert str(caught.value) == f"{name}={value!r} is not allowed: {allowed} [cpu-bad-knob]"


def test_numbers_in_range_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for value, threads, spin in (("1", 1, 1), (" 256 ", 256, 256), ("", None, 50)):
        for name in READ:
            monkeypatch.setenv(name, value)
        assert (knobs.requested_threads(), knobs.spin_microseconds()) == (threads, spin)
    monkeypatch.setenv("STEPFORGE_CPU_SPIN_US", "0")
    assert knobs.spin_microseconds() == 0
    monkeypatch.setenv("STEPFORGE_CPU_THREADS", "0")
    with pytest.raises(BadKnob, match="from 1 to 256"):
        knobs.requested_threads()


def test_an_empty_variable_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*knobs.NAMES, "CC", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    unset = _settings()
    for value in ("", "  "):
        for name in (*knobs.NAMES, "CC", "OMP_NUM_THREADS"):
            monkeypatch.setenv(name, value)
        assert _settings() == unset


def _settings() -> tuple:
    return (
        knobs.compile_knobs(), knobs.disabled(), knobs.requested_threads(), knobs.spin_microseconds(), knobs.check(),
        knobs.object_dir(),
    )  # fmt: skip


def test_every_variable_is_on_the_page_and_read_in_one_module() -> None:
    page = (SPEC.parents[1] / "docs" / "cpu-backend.md").read_text()
    table = page[page.index("## Environment") :]
    assert all(f"`{name}" in table for name in knobs.NAMES)
    for file in Path(knobs.__file__).parent.rglob("*.py"):
        named = set(re.findall(r"STEPFORGE_CPU_[A-Z_]+", file.read_text()))
        assert named <= set(knobs.NAMES), file
        assert file.name == "knobs.py" or "os.environ" not in file.read_text(), file


def test_a_misspelt_variable_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPFORGE_CPU_THREAD", "2")
    with pytest.warns(
        UserWarning, match=r"STEPFORGE_CPU_THREAD is no variable .* nearest: STEPFORGE_CPU_THREADS$"
    ) as told:
        CpuDriver()
    assert len(told) == 1
    monkeypatch.delenv("STEPFORGE_CPU_THREAD")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CpuDriver()


@pytest.mark.parametrize("value", ["same-value", "1,same-value", "storage", "0,race", "bounds,same-value,storage"])
def test_checks_that_mean_nothing_together_are_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("STEPFORGE_CPU_CHECK", value)
    with pytest.raises(BadKnob, match=f"STEPFORGE_CPU_CHECK='{value}'"):
        knobs.check()


@pytest.mark.parametrize(
    "value", ["1", "bounds", "race", "1,storage", "race, same-value", "race,storage,same-value", "0"]
)
def test_checks_that_mean_something_are_taken(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("STEPFORGE_CPU_CHECK", value)
    assert ",".join(knobs.check()) == ("" if value == "0" else value.replace(" ", ""))


def test_a_check_set_after_the_first_launch_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    mode.current()
    monkeypatch.setenv("STEPFORGE_CPU_CHECK", "1" if mode.current().mode != "bounds" else "0")
    with pytest.warns(UserWarning, match="STEPFORGE_CPU_CHECK was changed after the first launch"):
        mode.warn_if_changed()


def test_a_compiler_may_have_arguments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gcc = shutil.which("gcc")
    spaced = tmp_path / "my tools" / "gcc"
    spaced.parent.mkdir()
    spaced.symlink_to(gcc)
    for value, words in (("env gcc", ("env", "gcc")), ("gcc -m64", ("gcc", "-m64")), (str(spaced), (str(spaced),))):
        monkeypatch.setenv("STEPFORGE_CPU_CC", value)
        assert knobs.compile_knobs().cc == words
        toolchain.compiler.cache_clear()
        try:
            assert toolchain.is_intact(toolchain.build_kernel("int answer(void) { return 42; }", "answer"))
        finally:
            toolchain.compiler.cache_clear()
    monkeypatch.setenv("STEPFORGE_CPU_CC", "gcc 'half")
    with pytest.raises(BadKnob, match="as a shell reads them"):
        knobs.compile_knobs()


def test_a_compiler_that_says_nothing_is_quoted_with_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPFORGE_CPU_CC", "/bin/false")
    toolchain.compiler.cache_clear()
    try:
        with pytest.raises(CompilationFailed, match=r"/bin/false failed on answer(?s:.*)exit status is 1"):
            toolchain.build_kernel("int answer(void) { return 42; }", "answer")
    finally:
        toolchain.compiler.cache_clear()


def test_a_folder_for_objects_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    content = toolchain.build_kernel("int answer(void) { return 42; }", "answer")
    (tmp_path / "file").touch()
    monkeypatch.setenv("STEPFORGE_CPU_OBJECT_DIR", str(tmp_path / "file" / "folder"))
    with pytest.raises(BadKnob, match=r"STEPFORGE_CPU_OBJECT_DIR=.*file/folder.*that can be written.*Not a directory"):
        pool.load_object("answer", content)


def test_the_command_of_the_package_compiles_by_hand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = subprocess.run([sys.executable, "-m", "runtime.cpu"], capture_output=True, text=True, check=True).stdout
    rows = dict(row.split(maxsplit=1) for row in told.replace("by hand", "by-hand").splitlines())
    (tmp_path / "kernel.c").write_text('#include "kernel.h"\nint answer(void) { return 42; }\n')
    subprocess.run(shlex.split(rows["by-hand"]), cwd=tmp_path, check=True)
    assert ctypes.CDLL(str(tmp_path / "kernel.so")).answer() == 42
    env = os.environ | {"STEPFORGE_CPU_ISA": "mmx"}
    refused = subprocess.run(
        [sys.executable, "-m", "runtime.cpu"], capture_output=True, text=True, env=env, check=False
    )
    assert refused.returncode == 1 and refused.stderr.endswith("[cpu-bad-knob]\n") and refused.stderr.count("\n") == 1


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
    for cached in (identity_of_toolchain, toolchain.fingerprint, toolchain.compiler):
        cached.cache_clear()
    result = CliRunner().invoke(app, ["build", str(SPEC), "-o", str(tmp_path / "package")])
    for cached in (identity_of_toolchain, toolchain.fingerprint, toolchain.compiler):
        cached.cache_clear()
    assert result.exit_code == 2
    assert said in result.output
    assert "Traceback" not in result.output

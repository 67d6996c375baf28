"""Files and folders that a user names on a command line: what is there stays unless it may go, and a kill leaves none.

Every command with --output is here; the test of that list says what to do about a new one.
"""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
import yaml
from safetensors.torch import load_file, save
from typer.main import get_command
from typer.testing import CliRunner

from autotune.cli import app as autotune_app
from codegen.cli import app as codegen_app
from codegen.package import MARK
from dsl.reference.weights import random_weights
from runtime.cli import app as runtime_app
from runtime.layouts import TORCH_DTYPES
from runtime.safetensors_file import safetensors_chunks
from runtime.whole_file import PARTIAL
from tests.cpu.engine.toys import toy_spec
from tests.hostile.results import good_results
from tests.hostile.subject import make_good

ROOT = Path(__file__).resolve().parents[2]
APPS = {"runtime": runtime_app, "codegen": codegen_app, "autotune": autotune_app}
FILES = {
    "random-weights": ("runtime", ("random-weights", "{package}")),
    "export": ("autotune", ("export", "--folder", "{results}")),
    "report": ("autotune", ("report", "--folder", "{results}")),
}
FOLDERS = {
    "build": ("codegen", ("build", "{spec}", "--no-aot", "--untuned")),
}
INSPECT = "inspect"  # a folder too, written as build does: tests/render/test_inspect.py
# stops in the middle of the second write, or of the only one
STOP = """
import io, os, runpy, sys, time
real, written = os.write, []
def half(descriptor, content):
    if os.readlink(f"/proc/self/fd/{descriptor}").endswith(".stepforge-partial"):
        real(descriptor, bytes(content)[:len(content) // 2])
        real(1, b"half\\n")
        time.sleep(600)
    return real(descriptor, content)
os.write = half
from codegen import whole_file
def opened(descriptor, mode):
    half(descriptor, b"x" * 100)
whole_file.open = opened
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=False)
"""


@dataclass(frozen=True)
class Places:
    """What commands read."""

    package: Path
    results: Path
    spec: Path


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    folder = tmp_path_factory.mktemp("places")
    (folder / "results.json").write_bytes(good_results())
    (folder / "toy.yaml").write_text(yaml.safe_dump(toy_spec().model_dump(mode="json")))
    return Places(make_good(folder).folder, folder / "results.json", folder / "toy.yaml")


def arguments(name: str, places: Places, output: Path) -> tuple[str, list[str]]:
    room, given = (FILES | FOLDERS)[name]
    filled = [a.format(package=places.package, results=places.results, spec=places.spec) for a in given]
    return room, [*filled, "-o", str(output)]


def run(name: str, places: Places, output: Path, *more: str, code: int = 0) -> str:
    room, given = arguments(name, places, output)
    ran = CliRunner().invoke(APPS[room], [*given, *more])
    assert ran.exit_code == code, ran.output
    return ran.output


def options(app: typer.Typer) -> Iterator[tuple[str, set[str]]]:
    commands: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    for name, command in commands.items():
        yield name, {option for parameter in command.params for option in parameter.opts}


def test_every_command_with_an_output_is_tested_here() -> None:
    found = {name: given for app in APPS.values() for name, given in options(app) if "--output" in given}
    assert set(found) == {*FILES, *FOLDERS, INSPECT}, "add the command to FILES or FOLDERS"
    assert {name for name, given in found.items() if "--overwrite" in given} == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_there_stays_unless_it_may_be_replaced(name: str, places: Places, tmp_path: Path) -> None:
    output = tmp_path / "thesis.txt"
    output.write_text("my thesis")
    said = " ".join(run(name, places, output, code=2).split())
    assert "is there already" in said and "--overwrite to replace it [output-exists]" in said
    assert output.read_text() == "my thesis"
    run(name, places, output, "--overwrite")
    assert "my thesis" not in output.read_bytes().decode("latin-1")
    assert list(tmp_path.iterdir()) == [output]


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_as_readable_as_any_other(name: str, places: Places, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        run(name, places, tmp_path / "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o644


@pytest.mark.parametrize("name", [*FILES, *FOLDERS])
def test_of_a_killed_command_nothing_is_left_by_the_next(name: str, places: Places, tmp_path: Path) -> None:
    output = tmp_path / "x"
    kill_in_the_middle(name, places, output)
    (left,) = tmp_path.rglob(f".*{PARTIAL}")
    assert left.stat().st_size > 0
    assert not output.is_file()
    run(name, places, output)
    assert not list(tmp_path.rglob(f".*{PARTIAL}"))
    assert not (output / MARK).exists()


def test_of_a_killed_second_build_nothing_is_left_by_the_next(places: Places, tmp_path: Path) -> None:
    """The manifest of the first is there: the folder is a package, and unfinished all the same."""
    output = tmp_path / "x"
    run("build", places, output)
    whole = {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}
    next(output.rglob("kernels/*.py")).write_text("damaged")
    kill_in_the_middle("build", places, output)
    assert list(output.rglob(f".*{PARTIAL}")) and (output / MARK).exists()
    for path, content in whole.items():
        path.write_bytes(content)  # nothing is written again, so no folder is looked at for that
    run("build", places, output)
    assert {path: path.read_bytes() for path in output.rglob("*") if path.is_file()} == whole


def kill_in_the_middle(name: str, places: Places, output: Path) -> None:
    """Run a command until a file of it is half written, and kill it with SIGKILL."""
    room, given = arguments(name, places, output)
    more = ["--overwrite"] if name in FILES else []
    command = [sys.executable, "-c", STOP, room, *given, *more]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "half\n"
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    finally:
        process.kill()
        process.communicate()


def test_random_weights_are_drawn_after_it_is_known_that_they_can_be_written(
    places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.random_weights.random_weights", lambda *_: pytest.fail("drawn in vain"))
    (tmp_path / "x").write_text("my thesis")
    run("random-weights", places, tmp_path / "x", code=2)
    assert "[bad-option]" in run("random-weights", places, tmp_path / "none" / "x", code=2)


def test_a_device_is_written_to_as_it_is(places: Places) -> None:
    command = [sys.executable, "-m", "autotune", "export", "--folder", str(places.results), "-o", "/dev/stdout"]
    ran = subprocess.run([*command, "--json"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert good_results().decode() in ran.stdout
    assert Path("/dev/stdout").is_symlink()


def test_a_file_of_weights_is_the_one_that_safetensors_writes(places: Places, tmp_path: Path) -> None:
    tensors = random_weights(toy_spec(), 0)
    assert {tensor.dtype.itemsize for tensor in tensors.values()} == {2, 4}, "order of dtypes is not seen"
    assert b"".join(safetensors_chunks(tensors)) == save(tensors)
    every = {f"of {name}": torch.ones(3, dtype=dtype) for name, dtype in TORCH_DTYPES.items()}
    assert b"".join(safetensors_chunks(every)) == save(every)
    run("random-weights", places, tmp_path / "x")
    assert set(load_file(tmp_path / "x")) == set(tensors)

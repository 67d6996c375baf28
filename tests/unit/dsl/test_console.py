"""Standard output that cannot be written is one line; a reader that goes away is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])}
COMMANDS = (("dsl", "reference"), ("codegen", "explain", "specs/tiny-hybrid.yaml", "--dump", "plan"))


def run(command: tuple[str, ...], **options: object) -> subprocess.CompletedProcess[str]:
    options = {"env": ENVIRONMENT, "cwd": ROOT, "timeout": 60, "text": True, "stderr": subprocess.PIPE} | options
    return subprocess.run([sys.executable, "-m", *command], **options)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_full_disk_is_told_in_one_line(command: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        done = run(command, stdout=full)
    assert done.returncode == 2
    assert done.stderr == "standard output: cannot be written: No space left on device [spec-output]\n"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_reader_that_went_away_is_no_error(command: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = run(command, stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_an_encoding_that_does_not_do_is_told(tmp_path: Path) -> None:
    path = tmp_path / "ü.yaml"
    environment = ENVIRONMENT | {"PYTHONIOENCODING": "ascii", "LC_ALL": "C.UTF-8"}
    done = run(("dsl", "new", str(path), "--name", "x"), stdout=subprocess.PIPE, env=environment)
    assert done.returncode == 2 and done.stdout == ""
    assert "it takes ascii only" in done.stderr and done.stderr.endswith("[spec-output]\n")


@pytest.mark.parametrize("code", [0, 2])
def test_the_exit_code_of_a_command_is_kept(code: int) -> None:
    arguments = ("dsl", "schema") if code == 0 else ("dsl", "diff", "nothing.yaml", "nothing.yaml")
    assert run(arguments, stdout=subprocess.DEVNULL).returncode == code

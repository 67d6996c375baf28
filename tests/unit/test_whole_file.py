"""Files that are whole or not there, as both rooms write them: killed writers, modes, what is not replaced."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from codegen import whole_file as codegen_files
from runtime import whole_file as runtime_files
from runtime.errors import OutputExists

ROOT = Path(__file__).resolve().parents[2]
HALF_WRITTEN = """
import os, sys, time
from pathlib import Path
from {room} import whole_file
folder = Path(sys.argv[1])
_, descriptor = whole_file._partial(folder{mode})
os.write(descriptor, b"half")
print("half", flush=True)
time.sleep(600)
"""


def written_by_runtime(path: Path) -> None:
    with runtime_files.output_file(path, overwrite=True) as file:
        runtime_files.write_chunks(file, [b"whole"])


def written_by_codegen(path: Path) -> None:
    codegen_files.replace_whole(path, b"whole")


ROOMS = {"runtime": (written_by_runtime, ", 0o666"), "codegen": (written_by_codegen, "")}


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def writer(room: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has written half of a file into `folder`."""
    script = HALF_WRITTEN.format(room=room, mode=ROOMS[room][1])
    process = subprocess.Popen([sys.executable, "-c", script, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "half\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("room", ROOMS)
def test_the_next_writer_removes_what_a_killed_one_left_and_nothing_of_a_living_one(room: str, tmp_path: Path) -> None:
    write: Callable[[Path], None] = ROOMS[room][0]
    other = next(name for name in ROOMS if name != room)
    with writer(other, tmp_path) as living:
        (left,) = tmp_path.iterdir()
        write(tmp_path / "file")
        assert left.read_bytes() == b"half", "it has a writer"
        living.send_signal(signal.SIGKILL)
        living.wait()
        write(tmp_path / "file")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"whole")]


@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_file_has_the_mode_of_any_new_file(room: str, mask: int, mode: int, tmp_path: Path) -> None:
    with umask(mask):
        ROOMS[room][0](tmp_path / "file")
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


def test_what_is_private_stays_so(tmp_path: Path) -> None:
    with umask(0o022):
        runtime_files.put_file(tmp_path / "file", [b"x"])
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


def test_a_sweep_leaves_the_files_of_others(tmp_path: Path) -> None:
    kept = ["notes.stepforge-partial", ".notes", ".x.partial"]
    for name in kept:
        (tmp_path / name).write_text("keep")
    os.mkfifo(tmp_path / ".fifo")
    for room, (write, _) in ROOMS.items():
        write(tmp_path / room)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*kept, ".fifo", *ROOMS])


def refuses(path: Path, during: Callable[[], object] = lambda: None) -> None:
    told = pytest.raises(OutputExists, match=r"is there already.*--overwrite.*\[output-exists\]")
    with told, runtime_files.output_file(path, overwrite=False) as file:
        during()
        os.write(file, b"new")


@pytest.mark.parametrize("what", ["file", "folder", "link to nothing"])
def test_what_is_there_stays(what: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    make = {
        "file": lambda: path.write_text("old"),
        "folder": path.mkdir,
        "link to nothing": lambda: path.symlink_to("no"),
    }
    make[what]()
    before = path.lstat()
    refuses(path)
    assert path.lstat() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_came_meanwhile_stays(links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that write one file at the same time: the first to end has it. Also where the file system has no links."""
    if not links:
        monkeypatch.setattr(runtime_files.os, "link", lambda *names: (_ for _ in ()).throw(PermissionError(1, "no")))
    path = tmp_path / "x"
    refuses(path, lambda: path.write_text("of another"))
    assert path.read_text() == "of another"
    assert list(tmp_path.iterdir()) == [path]
    path.unlink()
    with runtime_files.output_file(path, overwrite=False) as file:
        os.write(file, b"new")
    assert [(found.name, found.read_bytes()) for found in tmp_path.iterdir()] == [("x", b"new")]


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("old")
    with pytest.raises(ZeroDivisionError), runtime_files.output_file(tmp_path / "x", overwrite=True) as file:
        os.write(file, b"half")
        raise ZeroDivisionError
    assert [(found.name, found.read_bytes()) for found in tmp_path.iterdir()] == [("x", b"old")]


@pytest.mark.parametrize("room", ROOMS)
def test_where_there_are_no_locks_files_are_written_and_none_is_swept(
    room: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / f".1-ab{runtime_files.PARTIAL}"
    left.write_text("half")
    module = runtime_files if room == "runtime" else codegen_files
    monkeypatch.setattr(module.fcntl, "flock", lambda *how: (_ for _ in ()).throw(OSError(37, "No locks available")))
    ROOMS[room][0](tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"whole" and left.exists()
    monkeypatch.undo()
    ROOMS[room][0](tmp_path / "file")
    assert not left.exists()


def test_both_rooms_know_the_files_of_each_other() -> None:
    assert codegen_files.PARTIAL == runtime_files.PARTIAL
    assert codegen_files.MODE == runtime_files.NORMAL

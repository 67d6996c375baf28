"""Disks that are full or read-only: one named error, nothing half, and what was there is still there."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from runtime import whole_file
from runtime.checkpoints.archive import load_archive, save_archive
from runtime.checkpoints.directory import CheckpointDirectory
from runtime.errors import CheckpointDirectoryUnusable, CheckpointNotWritten
from runtime.whole_file import PARTIAL
from tests.cpu.tiers.images import LAYOUT, assert_exact, image_of

MOUNT = "mount -t tmpfs -o size=160k none {folder} && {then}"


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Within it, the system refuses to write a file beyond `size` bytes (Python ignores SIGXFSZ)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [0, 8, 500, 1500])
def test_a_file_that_does_not_fit_leaves_nothing(tmp_path: Path, size: int) -> None:
    directory = CheckpointDirectory(tmp_path / "shared", LAYOUT)
    directory.write(image_of(range(5)))
    save_archive(tmp_path / "archive", [image_of(range(5))], LAYOUT)
    before = {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}
    with file_size_limit(size), pytest.raises(CheckpointNotWritten, match="File too large"):
        directory.write(image_of(range(30)))
    with file_size_limit(size), pytest.raises(CheckpointNotWritten, match="File too large"):
        save_archive(tmp_path / "archive", [image_of(range(30))], LAYOUT)
    assert {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")} == before
    assert directory.write(image_of(range(30)))


def failing(number: int, code: int, call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, but the `number`th time it fails."""
    calls = 0

    def fail(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            raise OSError(code, os.strerror(code))
        return call(*args, **options)

    return fail


@pytest.mark.parametrize("name", ["write", "fsync", "open"])
def test_whichever_call_fails_nothing_is_left(tmp_path: Path, monkeypatch: Any, name: str) -> None:
    directory = CheckpointDirectory(tmp_path, LAYOUT)
    directory.write(image_of(range(5)))
    before = sorted(tmp_path.rglob("*"))
    refused = 0
    for number in range(1, 200):
        with monkeypatch.context() as patch:
            patch.setattr(whole_file.os, name, failing(number, errno.ENOSPC, getattr(os, name)))
            try:
                assert directory.write(image_of(range(20)))
            except (CheckpointNotWritten, CheckpointDirectoryUnusable) as error:
                assert "No space left on device" in str(error)
                refused += 1
        if directory.find(range(20)) == (20, image_of(range(20)).digest):
            break
        assert sorted(tmp_path.rglob("*")) == before
    assert refused > 3
    assert_exact(directory.read(directory.find(range(20))))


def test_an_interrupted_write_leaves_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    directory = CheckpointDirectory(tmp_path, LAYOUT)
    monkeypatch.setattr(whole_file.os, "fsync", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        directory.write(image_of(range(20)))
    with pytest.raises(KeyboardInterrupt):
        save_archive(tmp_path / "archive", [image_of(range(5))], LAYOUT)
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"build.json", "lock"}


def test_an_archive_below_nothing_or_over_a_folder_or_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for name in ("file/archive", "nowhere/archive", "folder", "link", "x" * 300):
        with pytest.raises(CheckpointNotWritten):
            save_archive(tmp_path / name, [image_of(range(5))], LAYOUT)
    assert (tmp_path / "file").read_text() == "mine" and len(list(tmp_path.iterdir())) == 3


def test_a_real_full_disk_and_a_real_read_only_one(tmp_path: Path) -> None:
    own_mounts = ["unshare", "-rm", "sh", "-c"]
    if subprocess.run([*own_mounts, MOUNT.format(folder=tmp_path, then="true")], capture_output=True).returncode:
        pytest.skip("mounting in a namespace of one's own is not allowed here")
    script = MOUNT.format(folder=tmp_path, then=f"{sys.executable} -m tests.cpu.tiers.mounted {tmp_path}")
    subprocess.run([*own_mounts, script], check=True, cwd=Path(__file__).parents[3])


def test_an_archive_survives_the_loss_of_its_writer(tmp_path: Path, monkeypatch: Any) -> None:
    save_archive(tmp_path / "archive", [image_of(range(5))], LAYOUT)
    stale = tmp_path / f".1-ab{PARTIAL}"
    stale.write_bytes(b"half")
    assert_exact(load_archive(tmp_path / "archive", LAYOUT)[0])
    save_archive(tmp_path / "archive", [image_of(range(6))], LAYOUT)
    assert [path.name for path in tmp_path.iterdir()] == ["archive"]

"""`python -m tests.cpu.tiers.mounted FOLDER`: a real full disk, then a real read-only one; FOLDER is a tiny mount."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from runtime.checkpoints.archive import load_archive, save_archive
from runtime.checkpoints.directory import CheckpointDirectory
from runtime.errors import CheckpointDirectoryUnusable, CheckpointNotWritten
from tests.cpu.tiers.images import LAYOUT, assert_exact, image_of


def full(folder: Path) -> None:
    """Fill the disk with checkpoints: the one too many is refused, nothing is left of it, the others are there."""
    directory = CheckpointDirectory(folder / "shared", LAYOUT)
    save_archive(folder / "archive", [image_of(range(9))], LAYOUT)
    written = []
    try:
        for start in range(1, 1000):
            before = sorted(folder.rglob("*"))
            directory.write(image_of(range(start, start + 20)))
            written.append(start)
    except CheckpointNotWritten as error:
        assert "No space left on device" in str(error), error
    assert written and sorted(folder.rglob("*")) == before
    _refused(folder, "No space left on device")
    for start in written:
        found = directory.find(range(start, start + 20))
        assert found is not None
        assert_exact(directory.read(found))


def read_only(folder: Path) -> None:
    """What is there is read; what is written is refused."""
    directory = CheckpointDirectory(folder / "shared", LAYOUT)
    found = directory.find(range(1, 21))
    assert found is not None
    assert_exact(directory.read(found))
    _refused(folder, "Read-only file system")
    for change in (lambda: directory.remove(found), directory.sweep, lambda: CheckpointDirectory(folder / "x", LAYOUT)):
        try:
            change()
        except CheckpointDirectoryUnusable as error:
            assert "Read-only file system" in str(error), error
        else:
            raise AssertionError("not refused")
    try:
        directory.write(image_of(range(5)))
    except CheckpointNotWritten as error:
        assert "Read-only file system" in str(error), error


def _refused(folder: Path, why: str) -> None:
    """A new archive does not fit, the old one stays."""
    try:
        save_archive(folder / "archive", [image_of(range(n, n + 40)) for n in range(200)], LAYOUT)
    except CheckpointNotWritten as error:
        assert why in str(error), error
    else:
        raise AssertionError("not refused")
    [image] = load_archive(folder / "archive", LAYOUT)
    assert_exact(image)


if __name__ == "__main__":
    full(Path(sys.argv[1]))
    subprocess.run(["mount", "-o", "remount,ro", sys.argv[1]], check=True)
    read_only(Path(sys.argv[1]))

"""A shared checkpoint directory: what is found, what is refused and when it is tried again, what is swept."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from runtime.checkpoints import directory as module
from runtime.checkpoints.directory import CheckpointDirectory
from runtime.checkpoints.files import file_name
from runtime.errors import (
    BadOption,
    CheckpointDirectoryBusy,
    CheckpointDirectoryUnusable,
    CheckpointFileDamaged,
    CheckpointFileForeign,
    CheckpointNotWritten,
)
from runtime.whole_file import PARTIAL
from tests.cpu.tiers.crash import forking
from tests.cpu.tiers.images import LAYOUT, assert_exact, image_of, key

TEXT = tuple(range(40))


@pytest.fixture
def shared(tmp_path: Path) -> CheckpointDirectory:
    return CheckpointDirectory(tmp_path / "shared", LAYOUT)


def again(directory: CheckpointDirectory, max_bytes: int | None = None) -> CheckpointDirectory:
    """What another process would open."""
    return CheckpointDirectory(directory.path.parent, LAYOUT, max_bytes)


def put(directory: CheckpointDirectory, *texts: int) -> None:
    for length in texts:
        assert directory.write(image_of(TEXT[:length]))


def file_of(directory: CheckpointDirectory, length: int) -> Path:
    return directory.path / "checkpoints" / file_name(key(image_of(TEXT[:length])))


def age(directory: CheckpointDirectory, *texts: int) -> None:
    """Have these been used long ago, the first the longest."""
    for number, length in enumerate(texts):
        os.utime(file_of(directory, length), ns=(number, number))


def lengths(directory: CheckpointDirectory) -> list[int]:
    keys = directory.keys()
    return [position for position, _ in keys]


def spoil(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def test_the_longest_prefix_is_found_and_read_back_by_every_process(shared: CheckpointDirectory) -> None:
    put(shared, 3, 9, 17, 30)
    other = again(shared)
    for length, longest in ((2, None), (3, 3), (16, 9), (17, 17), (29, 17), (40, 30)):
        found = other.find(TEXT[:length])
        assert (found and found[0]) == longest
        if found is not None:
            assert_exact(other.read(found))
    assert other.find(TEXT, longer_than=30) is None and other.find(TEXT[:29], longer_than=16) is not None
    assert other.find([1, *TEXT[1:]]) is None
    assert other.keys() == [key(image_of(TEXT[:length])) for length in (3, 9, 17, 30)]


def test_what_is_there_is_not_written_again(shared: CheckpointDirectory) -> None:
    put(shared, 17)
    files = {path: path.stat().st_ino for path in shared.path.rglob("*.safetensors")}
    assert not shared.write(image_of(TEXT[:17])) and not again(shared).write(image_of(TEXT[:17]))
    put(again(shared), 30)
    assert all(path.stat().st_ino == inode for path, inode in files.items())
    assert shared.bytes == sum(path.stat().st_size for path in shared.path.rglob("*.safetensors"))


def test_an_image_that_is_none_is_not_written(shared: CheckpointDirectory) -> None:
    image = image_of(TEXT[:9])
    for wrong in (
        replace(image, tokens=TEXT[1:10]),
        replace(image, position=8),
        replace(image, pages=image.pages[:-1]),
        replace(image, parts={}),
        replace(image, parts=image.parts | {"conv": image.parts["conv"].float()}),
        replace(image, pages=(*image.pages[:-1], replace(image.pages[-1], tensors={}))),
    ):
        with pytest.raises(CheckpointNotWritten):
            shared.write(wrong)
    assert not shared.keys() and not shared.bytes


def test_several_builds_share_a_directory(shared: CheckpointDirectory) -> None:
    put(shared, 9)
    other = CheckpointDirectory(shared.path.parent, replace(LAYOUT, stamp="other"))
    assert other.path != shared.path and other.find(TEXT) is None
    file_of(shared, 9).rename(other.path / "checkpoints" / file_of(shared, 9).name)
    with pytest.raises(CheckpointFileForeign, match="this engine's is other"):
        other.read(other.find(TEXT))
    assert json.loads((other.path / "build.json").read_text())["stamp"] == "other"


def test_only_the_user_can_look_inside(shared: CheckpointDirectory) -> None:
    put(shared, 9)
    for path in (shared.path.parent, shared.path, *shared.path.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


# What other processes do meanwhile


def test_changes_within_one_tick_of_the_clock_are_seen(shared: CheckpointDirectory) -> None:
    folder, other = shared.path / "checkpoints", again(shared)
    put(shared, 3)
    changed = folder.stat().st_mtime_ns
    assert other.find(TEXT)[0] == 3
    put(shared, 9)
    os.utime(folder, ns=(changed, changed))
    assert other.find(TEXT)[0] == 9


def test_a_folder_that_has_settled_is_not_listed_again(shared: CheckpointDirectory, monkeypatch: Any) -> None:
    put(shared, 3)
    os.utime(shared.path / "checkpoints", ns=(1, 1))
    assert shared.find(TEXT)[0] == 3
    monkeypatch.setattr(module.os, "listdir", lambda _: pytest.fail("listed"))
    assert shared.find(TEXT)[0] == 3


def test_a_checkpoint_or_page_that_has_gone_is_a_miss(shared: CheckpointDirectory) -> None:
    put(shared, 9, 30)
    found = shared.find(TEXT)
    (shared.path / "pages" / file_name(image_of(TEXT[:30]).pages[-2].key)).unlink()
    assert shared.read(found) is None
    assert shared.find(TEXT)[0] == 9
    short = shared.find(TEXT)
    assert shared.remove(short) and not shared.remove(short)
    assert shared.read(short) is None and shared.find(TEXT) is None
    put(shared, 25)
    assert shared.find(TEXT)[0] == 25
    put(again(shared), 29)
    assert shared.find(TEXT)[0] == 30, "its page is there again"
    assert_exact(shared.read(found))


def test_a_directory_that_was_removed_is_empty_and_made_again(shared: CheckpointDirectory) -> None:
    put(shared, 9)
    os.rename(shared.path.parent, shared.path.parent.with_name("gone"))
    assert shared.find(TEXT) is None and shared.keys() == []
    put(shared, 17)
    assert_exact(again(shared).read(shared.find(TEXT)))


# Damage


@pytest.mark.parametrize("page", [False, True], ids=["checkpoint", "page"])
def test_a_damaged_file_is_named_once_kept_and_written_again(shared: CheckpointDirectory, page: bool) -> None:
    put(shared, 3, 17)
    shared_page = image_of(TEXT[:17]).pages[1].key
    path = shared.path / "pages" / file_name(shared_page) if page else file_of(shared, 17)
    spoil(path)
    found = shared.find(TEXT)
    with pytest.raises(CheckpointFileDamaged, match=path.name):
        shared.read(found)
    assert path.exists() and shared.find(TEXT)[0] == 3 and lengths(shared) == [3]
    spoil(path)
    assert shared.find(TEXT) == found, "it has changed"
    assert_exact(shared.read(found))
    spoil(path)
    with pytest.raises(CheckpointFileDamaged):
        shared.read(found)
    put(shared, 17)
    assert_exact(shared.read(shared.find(TEXT)))


def test_links_are_not_followed(tmp_path: Path, shared: CheckpointDirectory) -> None:
    put(shared, 9)
    path, outside = file_of(shared, 9), tmp_path / "outside"
    path.rename(outside)
    path.symlink_to(outside)
    with pytest.raises(CheckpointFileDamaged, match=path.name):
        shared.read(shared.find(TEXT))
    put(shared, 9)
    assert not path.is_symlink() and outside.exists()
    for folder in ("pages", "checkpoints", "."):
        place = (shared.path / folder).resolve()
        place.rename(tmp_path / "moved")
        place.symlink_to(tmp_path / "moved")
        with pytest.raises(CheckpointDirectoryUnusable, match="symbolic link"):
            again(shared)
        place.unlink()
        (tmp_path / "moved").rename(place)


def test_places_that_cannot_hold_checkpoints_are_refused(tmp_path: Path, shared: CheckpointDirectory) -> None:
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file", tmp_path / "file" / "below", "/proc/nowhere", tmp_path / ("x" * 300)):
        with pytest.raises(CheckpointDirectoryUnusable):
            CheckpointDirectory(path, LAYOUT)
    for path in ("", "a\0b", 5, None):
        with pytest.raises(BadOption):
            CheckpointDirectory(path, LAYOUT)
    for max_bytes in (0, -1, True, 1.5):
        with pytest.raises(BadOption):
            CheckpointDirectory(tmp_path, LAYOUT, max_bytes)
    (shared.path / "build.json").write_text("{}")
    with pytest.raises(CheckpointDirectoryUnusable, match=r"build\.json"):
        again(shared)


# Sweeping


def test_the_least_recently_used_go_first_and_pages_with_their_last_user(shared: CheckpointDirectory) -> None:
    put(shared, 9, 17, 30)
    age(shared, 17, 9)
    before = shared.bytes
    smaller = again(shared, before - 1)
    freed = smaller.sweep()
    assert lengths(smaller) == [9, 30] and smaller.bytes == before - freed <= before - 1
    assert len(list((shared.path / "pages").iterdir())) == 7
    assert_exact(smaller.read(smaller.find(TEXT[:9])))
    again(shared, smaller.bytes - 1).sweep()
    assert lengths(smaller) == [9], "reading is using"
    assert len(list((shared.path / "pages").iterdir())) == 2


def test_a_write_stays_within_max_bytes(shared: CheckpointDirectory) -> None:
    put(shared, 30)
    room = shared.bytes
    small = again(shared, room)
    for start in range(1, 9):
        assert small.write(image_of(range(start, start + 30)))
        assert small.bytes <= room and len(small.keys()) == 1
        assert_exact(small.read(small.find(range(start, start + 40))))
    assert not again(shared, 100).write(image_of(TEXT[:20])) and small.bytes


def test_leftovers_of_dead_writers_are_swept(shared: CheckpointDirectory) -> None:
    put(shared, 9, 30)
    stale = [shared.path / f".1-ab{PARTIAL}", shared.path / "pages" / f".1-ab{PARTIAL}"]
    for path in stale:
        path.write_bytes(b"half")
    other = shared.path / "checkpoints" / "notes.txt"
    other.write_text("mine")
    shared.remove(key(image_of(TEXT[:30])))
    assert shared.sweep() > 0
    assert not any(path.exists() for path in stale) and other.exists()
    assert len(list((shared.path / "pages").iterdir())) == 2
    stale[0].write_bytes(b"half")
    again(shared)
    assert not stale[0].exists()


def hold(path: Path, held: Any, enough: Any) -> None:
    with CheckpointDirectory(path, LAYOUT)._locked():
        held.set()
        enough.wait(30)


def test_a_lock_that_is_not_given_up_is_one_clear_error(shared: CheckpointDirectory, monkeypatch: Any) -> None:
    put(shared, 9)
    processes = forking()
    held, enough = processes.Event(), processes.Event()
    holder = processes.Process(target=hold, args=(shared.path.parent, held, enough))
    holder.start()
    assert held.wait(30)
    monkeypatch.setattr(module, "LOCK_TIMEOUT_S", 0.2)
    for change in (lambda: shared.write(image_of(TEXT[:17])), shared.sweep):
        with pytest.raises(CheckpointDirectoryBusy, match=r"locked by another writer for 0\.2 s"):
            change()
    assert_exact(shared.read(shared.find(TEXT)))
    holder.kill()
    holder.join()
    put(shared, 17)


class Agreement(RuleBasedStateMachine):
    """Two handles on one directory against a dict: a handle finds what is there, whoever wrote or removed it."""

    texts = st.tuples(st.sampled_from([0, 1]), st.integers(1, 12)).map(lambda t: tuple(range(6)) + (t[0],) * t[1])

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.handles = [CheckpointDirectory(self.folder.name, LAYOUT) for _ in range(2)]
        self.model: set[tuple[int, ...]] = set()

    @rule(text=texts, who=st.integers(0, 1))
    def write(self, text: tuple[int, ...], who: int) -> None:
        assert self.handles[who].write(image_of(text)) == (text not in self.model)
        self.model.add(text)

    @rule(text=texts, who=st.integers(0, 1))
    def remove(self, text: tuple[int, ...], who: int) -> None:
        assert self.handles[who].remove(key(image_of(text))) == (text in self.model)
        self.model.discard(text)

    @rule(who=st.integers(0, 1))
    def sweep(self, who: int) -> None:
        self.handles[who].sweep()

    @rule(text=texts, who=st.integers(0, 1), longer_than=st.integers(0, 12))
    def find(self, text: tuple[int, ...], who: int, longer_than: int) -> None:
        there = [len(t) for t in self.model if t == text[: len(t)] and len(t) > longer_than]
        found = self.handles[who].find(text, longer_than)
        assert (found and found[0]) == max(there, default=None)
        if found is not None:
            assert_exact(self.handles[who].read(found))

    @invariant()
    def same_keys(self) -> None:
        keys = sorted(key(image_of(text)) for text in self.model)
        assert all(handle.keys() == keys for handle in self.handles)

    def teardown(self) -> None:
        self.folder.cleanup()


TestAgreement = Agreement.TestCase
TestAgreement.settings = settings(max_examples=15, stateful_step_count=20)

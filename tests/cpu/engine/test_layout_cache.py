"""Laid-out weights kept between processes: the same bits, never half of them, and never somebody else's."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from runtime import known_digests, layout_cache, weight_arena
from runtime.engine import Engine
from runtime.errors import BadOption, WeightsChanged, WeightsChanging
from runtime.host_memory import zeroed
from runtime.layout_cache import LayoutCache, LayoutCacheDamaged
from runtime.weights import WeightsFile

ROOT = Path(__file__).resolve().parents[3]
KEY = "5" * 64
SIZE = 3 * layout_cache.PIECE + 4100


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch):
    """The toys are smaller than what is worth a file, and were written a moment ago."""
    monkeypatch.setattr(layout_cache, "LEAST_BYTES", 1)
    monkeypatch.setattr(known_digests, "SETTLED_NS", 0)


@pytest.fixture
def block():
    return torch.arange(SIZE, dtype=torch.int64).mul(40503).to(torch.uint8)


@pytest.fixture
def kept(tmp_path, block):
    cache = LayoutCache([tmp_path / "kept"])
    cache.store(KEY, block)
    return cache


def file_of(tmp_path):
    (path,) = (tmp_path / "kept").glob("*.laid")
    return path


def test_what_is_stored_is_loaded(kept, block):
    found = torch.zeros_like(block)
    assert kept.load(KEY, found) and torch.equal(found, block)
    assert not kept.load("6" * 64, found)


def cut(content):
    return content[:-1]


def empty(content):
    return b""


def grown(content):
    return content + b"x"


def flipped_first(content):
    return content[:-SIZE] + bytes([content[-SIZE] ^ 1]) + content[1 - SIZE :]


def flipped_last(content):
    return content[:-1] + bytes([content[-1] ^ 128])


def other_header(content):
    return content.replace(b'"piece": 4194304', b'"piece": 4194303')


def huge_header(content):
    return content[:16] + b"\xff" * 8 + content[24:]


def zeros(content):
    return bytes(len(content))


DAMAGES = [cut, empty, grown, flipped_first, flipped_last, other_header, huge_header, zeros]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_file_is_refused_with_a_warning_leaves_zeros_and_is_replaced(kept, block, tmp_path, damage):
    path = file_of(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    found = torch.zeros_like(block)
    with pytest.warns(LayoutCacheDamaged, match=path.name):
        assert not kept.load(KEY, found)
    assert not found.any()
    kept.store(KEY, block)
    assert kept.load(KEY, found) and torch.equal(found, block)


def test_a_file_that_cannot_be_read_to_its_end_leaves_zeros(kept, block, monkeypatch):
    found, reads = torch.zeros_like(block), []
    read = os.preadv

    def failing(*arguments):
        reads.append(arguments)
        if len(reads) == 2:
            raise OSError(errno.EIO, "Input/output error")
        return read(*arguments)

    monkeypatch.setattr(os, "preadv", failing)
    with pytest.warns(LayoutCacheDamaged, match="Input/output error"):
        assert not kept.load(KEY, found)
    assert len(reads) >= 2 and not found.any()


def test_a_writer_that_is_interrupted_has_no_threads_left(kept, block, tmp_path, monkeypatch):
    """They would write on under the number of a file that is closed."""
    write, begun = os.pwrite, threading.Event()

    def slow(*arguments):
        if threading.current_thread() is threading.main_thread():
            begun.wait(5)
            raise KeyboardInterrupt
        begun.set()
        time.sleep(0.05)
        return write(*arguments)

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(os, "pwrite", slow)
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        kept.store("8" * 64, block)
    assert threading.active_count() == before and not (tmp_path / "kept" / ".partial").exists()


def test_a_file_under_the_name_of_another_is_refused(kept, block, tmp_path):
    other = "7" * 64
    os.rename(file_of(tmp_path), tmp_path / "kept" / f"{other[:32]}.laid")
    with pytest.warns(LayoutCacheDamaged, match="other weights"):
        assert not kept.load(other, torch.zeros_like(block))


def test_files_that_others_could_have_written_are_not_read(kept, block, tmp_path):
    path = file_of(tmp_path)
    path.chmod(0o664)
    assert not kept.load(KEY, torch.zeros_like(block))
    path.chmod(0o644)
    moved = path.rename(tmp_path / "elsewhere")
    path.symlink_to(moved)
    assert not kept.load(KEY, torch.zeros_like(block))
    path.unlink()
    os.mkfifo(path)
    assert not kept.load(KEY, torch.zeros_like(block))
    kept.store(KEY, block)
    assert kept.load(KEY, torch.zeros_like(block))


def test_old_files_and_what_a_killed_writer_left_do_not_pile_up(kept, block, tmp_path):
    (tmp_path / "kept" / ".partial").write_bytes(b"half")
    for number in range(4):
        kept.store(f"{number}" * 64, block)
    assert len(os.listdir(tmp_path / "kept")) == layout_cache.KEPT
    assert kept.load("3" * 64, torch.zeros_like(block))


def test_a_folder_that_takes_no_files_leaves_it_to_the_next(block, tmp_path):
    (tmp_path / "file").write_text("")
    cache = LayoutCache([tmp_path / "file" / "kept", tmp_path / "user"])
    cache.store(KEY, block)
    assert cache.load(KEY, torch.zeros_like(block)) and len(os.listdir(tmp_path / "user")) == 1
    nowhere = LayoutCache([tmp_path / "file" / "kept"])
    nowhere.store(KEY, block)
    assert not nowhere.load(KEY, torch.zeros_like(block))


WRITER = """
import sys, torch
from pathlib import Path
from runtime.layout_cache import LayoutCache
cache, key = LayoutCache([Path(sys.argv[1])]), "5" * 64
for turn in range(12):
    block = torch.full((int(sys.argv[2]),), turn % 200 + 1, dtype=torch.uint8)
    cache.store(key, block)
    found = torch.zeros_like(block)
    assert cache.load(key, found)
    assert found[0] > 0 and bool((found == found[0]).all())
"""


def test_processes_that_write_and_read_at_once_see_whole_files(tmp_path):
    """From a first file on, which is there before: who finds another writing does not wait for it."""
    size = layout_cache.LEAST_BYTES + (17 << 20)
    LayoutCache([tmp_path / "kept"]).store(KEY, torch.ones(size, dtype=torch.uint8))
    command = [sys.executable, "-W", "error", "-c", WRITER, str(tmp_path / "kept"), str(size)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])}
    running = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in running:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    assert len(os.listdir(tmp_path / "kept")) == 1


# Engines


@pytest.fixture
def path(weights, tmp_path):
    save_file(weights, tmp_path / "w.safetensors")
    return tmp_path / "w.safetensors"


def answer(package, path, folder):
    with Engine(package, path, drafts=1, layout_cache=folder) as engine:
        return engine.generate([5, 6, 7], max_new_tokens=12).tokens, engine.scheduler.cache.stamp


def test_an_engine_that_reads_the_kept_form_says_the_same_and_has_the_same_stamp(package, path, tmp_path, monkeypatch):
    without = answer(package, path, False)
    cold = answer(package, path, tmp_path / "kept")
    monkeypatch.setattr(weight_arena, "lay_out", lambda *_: pytest.fail("laid out again"))
    monkeypatch.setattr("hashlib.file_digest", lambda *_: pytest.fail("hashed again"))
    assert without == cold == answer(package, path, str(tmp_path / "kept"))


def test_another_file_of_the_same_size_is_seen(package, path, weights, tmp_path):
    first = answer(package, path, tmp_path / "kept")
    time.sleep(0.05)  # the clock of a file system moves on
    changed = {name: tensor.flip(0) for name, tensor in weights.items()}
    save_file(changed, path)
    second = answer(package, path, tmp_path / "kept")
    assert second[1] != first[1] and second == answer(package, path, False)


def test_a_file_that_was_just_changed_is_hashed_again(path, tmp_path, monkeypatch):
    monkeypatch.setattr(known_digests, "SETTLED_NS", 3600 * 10**9)
    cache = LayoutCache([tmp_path / "kept"])
    assert WeightsFile(path, cache.digests).sha256 == WeightsFile(path).sha256
    assert not (tmp_path / "kept").exists()


def test_a_remembered_hash_is_not_believed_without_the_form_that_was_made_then(package, path, tmp_path):
    cache = LayoutCache([tmp_path / "kept"])
    file = WeightsFile(path, cache.digests)
    cache.digests.put(file._identity(), "a" * 64)
    with pytest.raises(WeightsChanged, match="layout_cache=False"):
        Engine(package, path, layout_cache=tmp_path / "kept")
    assert answer(package, path, tmp_path / "kept") == answer(package, path, False)


@pytest.mark.parametrize("kept", [True, False])
def test_weights_that_are_written_to_meanwhile_are_refused_and_nothing_of_them_is_kept(
    package, path, tmp_path, monkeypatch, kept
):
    """Written over in place after the hash was taken, as by `cp`: the bits would not be those that it stands for."""
    content, cache = path.read_bytes(), tmp_path / "kept" if kept else False
    lay_out = weight_arena.lay_out

    def disturbed(*arguments):
        path.write_bytes(content)
        return lay_out(*arguments)

    monkeypatch.setattr(weight_arena, "lay_out", disturbed)
    with pytest.raises(WeightsChanging, match="start again"):
        Engine(package, path, layout_cache=cache)
    assert not list(tmp_path.glob("kept/*.laid"))
    monkeypatch.undo()
    Engine(package, path, layout_cache=cache).close()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"format": 1}', b'{"format": 1, "digests": {"a": 1}}', b"\xff"]
)
def test_damaged_digests_are_as_none(path, tmp_path, content):
    cache = LayoutCache([tmp_path / "kept"])
    wanted = WeightsFile(path, cache.digests).sha256
    (tmp_path / "kept" / known_digests.NAME).write_bytes(content)
    assert WeightsFile(path, cache.digests).sha256 == wanted
    assert cache.digests.get(WeightsFile(path)._identity()) == wanted


@pytest.mark.parametrize("option", [None, 1, "", b"x", "a\0b"])
def test_options_that_name_no_place(package, weights, option):
    with pytest.raises(BadOption, match="layout_cache"):
        Engine(package, weights, layout_cache=option)


def test_weights_lie_in_one_block_in_launch_order(package, weights):
    with Engine(package, weights) as engine:
        plan, buffers = engine.package.plan, engine.buffers
        order = [buffers[buffer.name].data_ptr() for buffer in weight_arena.launch_order(plan)]
        assert order == sorted(order)
        assert all(address % weight_arena.WEIGHT_ALIGNMENT == 0 for address in order)
        assert {b.name for b in weight_arena.launch_order(plan)} == {b.name for b in plan.role("weight")}


def test_zeros_take_no_room_before_they_are_written_to():
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before, size = resident(), 256 << 20
    block = zeroed(size)
    assert block.data_ptr() % 4096 == 0 and block.numel() == block.untyped_storage().nbytes() == size
    assert resident() - before < size // 8
    block.fill_(1)
    assert resident() - before > size // 2

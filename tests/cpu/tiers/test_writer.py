"""Writing behind the engine's back: results are collected, errors kill nothing, and the queue has an end."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from runtime.checkpoints.directory import CheckpointDirectory
from runtime.checkpoints.writer import WriteBehind
from runtime.errors import CheckpointDirectoryBusy, CheckpointNotWritten
from tests.cpu.tiers.images import LAYOUT, assert_exact, image_of, key

IMAGES = [image_of(range(start, start + 10)) for start in range(1, 6)]


class Gate:
    """A directory whose writes wait, and then do what the test wants."""

    def __init__(self, *outcomes: Any) -> None:
        self.open, self.outcomes = threading.Event(), list(outcomes)

    def write(self, image: Any) -> bool:
        assert self.open.wait(10)
        outcome = self.outcomes.pop(0) if self.outcomes else True
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


@pytest.fixture
def results() -> list[Any]:
    return []


def test_images_get_to_disk_and_results_to_the_thread_that_collects(tmp_path: Path, results: list[Any]) -> None:
    directory = CheckpointDirectory(tmp_path, LAYOUT)
    writer = WriteBehind(directory)
    for image in (*IMAGES, IMAGES[0]):
        assert writer.put(image, lambda error: results.append((error, threading.current_thread())))
    assert writer.flush(10) and not results
    assert [result.key for result in writer.collect()] == [key(image) for image in (*IMAGES, IMAGES[0])]
    assert results == [(None, threading.current_thread())] * 6 and writer.collect() == []
    assert (writer.written, writer.present, writer.failed, writer.rejected, writer.pending) == (5, 1, 0, 0, 0)
    assert writer.close(10)
    for image in IMAGES:
        assert_exact(directory.read(key(image)))


def test_the_engine_reads_while_the_writer_writes_and_sweeps(tmp_path: Path) -> None:
    directory = CheckpointDirectory(tmp_path, LAYOUT, max_bytes=20_000)
    writer, images = WriteBehind(directory, capacity=30), [image_of(range(n % 7, n + 9)) for n in range(30)]
    for image in images:
        assert writer.put(image, lambda error: None)
    read = 0
    while writer.pending or not read:
        for image in images:
            found = directory.find(image.tokens)
            there = None if found is None else directory.read(found)
            if there is not None:
                assert_exact(there)
                read += 1
    assert [result.error for result in writer.collect()] == [None] * 30 and writer.close(10)
    assert directory.bytes <= 20_000


def test_a_full_queue_takes_no_more(results: list[Any]) -> None:
    gate = Gate()
    writer = WriteBehind(gate, capacity=2)
    assert writer.put(IMAGES[0], results.append)
    while writer.pending and writer._waiting:
        time.sleep(0.001)
    assert [writer.put(image, results.append) for image in IMAGES[1:]] == [True, True, False, False]
    assert writer.rejected == 2 and writer.pending == 3 and not writer.flush(0.01) and not writer.close(0.01)
    gate.open.set()
    assert writer.close(10) and len(writer.collect()) == 3 == len(results)
    assert not writer.put(IMAGES[0], results.append) and writer.close()


def test_errors_are_counted_and_the_same_one_is_repeated_until_it_changes() -> None:
    full = [CheckpointNotWritten(path=f"/{n}", detail="No space left on device") for n in range(3)]
    other = [CheckpointNotWritten(path="/3", detail="Input/output error"), CheckpointDirectoryBusy(path="/", seconds=1)]
    gate = Gate(*full, *other, ValueError("x"), ValueError("x"), True, ValueError("x"), False)
    gate.open.set()
    writer = WriteBehind(gate)
    for n in range(1, 11):
        writer.put(image_of(range(n)), lambda error: None)
    assert writer.flush(10)
    found = writer.collect()
    assert [type(result.error) for result in found[:5]] == [CheckpointNotWritten] * 4 + [CheckpointDirectoryBusy]
    repeated = [result.repeated for result in found]
    assert repeated == [False, True, True, False, False, False, True, False, False, False]
    assert (writer.written, writer.present, writer.failed) == (1, 1, 8)
    assert writer.close(10)

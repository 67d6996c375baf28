"""Processes that share a checkpoint directory, one of them killed again and again."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import torch

from runtime.checkpoints.archive import load_archive, save_archive
from runtime.checkpoints.directory import CheckpointDirectory
from runtime.checkpoints.image import CheckpointImage
from runtime.whole_file import PARTIAL
from tests.cpu.tiers.images import LAYOUT, assert_exact, image_of, key

MAX_BYTES = 60_000
MAX_DELAY_S = 0.05
MAX_CALLS = 150
PAUSE_S = 0.005
TEXTS, LONGEST = 6, 60
CALLS = ("open", "write", "fsync", "replace", "unlink")
WRITE, SWEEP, ARCHIVE = range(3)
PHASES = ("write", "sweep", "save_archive")


def forking() -> Any:
    """Processes that start with everything imported, if the first one of this process is started so."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([__name__])
    return processes


def run(folder: Path, kills: int, seed: int) -> dict[str, Any]:
    """The whole run in `folder`. Raises AssertionError at the first thing that is not as it must be."""
    start, rng, tally = time.perf_counter(), random.Random(seed), Counter[str]()
    processes = forking()
    stop, reports = processes.Event(), processes.Queue()
    others = [processes.Process(target=live, args=(folder, seed + n, stop, reports), daemon=True) for n in (1, 2)]
    for other in others:
        other.start()
    try:
        for number in range(kills):
            tally[f"killed in {_kill_one(processes, folder, seed + 100 + number, rng)}"] += 1
            tally["verified"] += _verify(folder)
    finally:
        stop.set()
        results = [reports.get(timeout=60) for _ in others]
        for other in others:
            other.join()
    for result in results:
        assert isinstance(result, dict), f"a process failed: {result}"
        tally.update(result)
    tally.update(_verify_at_rest(folder))
    return {"kills": kills, **dict(sorted(tally.items())), "seconds": round(time.perf_counter() - start, 1)}


def live(folder: Path, seed: int, stop: Any, reports: Any) -> None:
    """Write, read and save until told to stop; nothing may fail, whoever is killed meanwhile."""
    torch.set_num_threads(1)
    rng, tally = random.Random(seed), Counter[str]()
    try:
        directory = CheckpointDirectory(folder, LAYOUT, MAX_BYTES)
        while not stop.is_set():
            tally["live writes"] += directory.write(_image(rng))
            tally[f"live reads: {_read_one(directory, _image(rng))}"] += 1
            time.sleep(PAUSE_S)
            if rng.random() < 0.05:
                save_archive(folder / "archive", _images(rng), LAYOUT)
    except BaseException as error:
        reports.put(repr(error))
        raise
    reports.put(dict(tally))


def die(folder: Path, seed: int, calls: int | None, phase: Any, ready: Any) -> None:
    """Write, sweep and save until killed: from outside, or at the `calls`th call that changes the disk."""
    torch.set_num_threads(1)
    rng = random.Random(seed)
    directory = CheckpointDirectory(folder, LAYOUT)
    sweeper = CheckpointDirectory(folder, LAYOUT, MAX_BYTES // 2)
    texts = [_images(rng) for _ in range(4)]
    if calls is not None:
        _die_at_call(calls)
    ready.set()
    while True:
        images = rng.choice(texts)
        phase.value = WRITE
        for image in images:
            directory.write(image)
        phase.value = SWEEP
        sweeper.sweep()
        phase.value = ARCHIVE
        save_archive(folder / "archive", images, LAYOUT)


def _die_at_call(number: int) -> None:
    """SIGKILL before the `number`th of CALLS, or in the middle of it if it writes."""
    left = iter(range(number - 1, -1, -1))
    for name in CALLS:
        call = getattr(os, name)

        def counted(*args: Any, _call: Any = call, _name: str = name, **options: Any) -> Any:
            if next(left) == 0:
                if _name == "write":
                    _call(args[0], args[1][: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return _call(*args, **options)

        setattr(os, name, counted)


def _kill_one(processes: Any, folder: Path, seed: int, rng: random.Random) -> str:
    """Kill a writer, every other one from outside; returns what it was about."""
    calls = rng.randint(1, MAX_CALLS) if seed % 2 else None
    phase, ready = processes.RawValue("i", WRITE), processes.Event()
    victim = processes.Process(target=die, args=(folder, seed, calls, phase, ready), daemon=True)
    victim.start()
    if calls is None:
        assert ready.wait(60), "the writer did not start"
        time.sleep(rng.uniform(0, MAX_DELAY_S))
        assert victim.is_alive(), f"the writer ended by itself: {victim.exitcode}"
        os.kill(victim.pid, signal.SIGKILL)
    victim.join(60)
    assert victim.exitcode == -signal.SIGKILL, f"the writer ended by itself: {victim.exitcode}"
    return PHASES[phase.value]


def _verify(folder: Path) -> int:
    """Open the directory and, while nobody may change it, read all that is there; then the archive."""
    directory = CheckpointDirectory(folder, LAYOUT)
    with directory._locked():
        images = [directory.read(found) for found in directory.keys()]  # noqa: SIM118
    if (folder / "archive").exists():
        images += load_archive(folder / "archive", LAYOUT)
    for image in images:
        assert_exact(image)
    return len(images)


def _verify_at_rest(folder: Path) -> Counter[str]:
    """With nobody else there: nothing is a miss, no page is left over, no file is half."""
    save_archive(folder / "archive", [], LAYOUT)
    directory = CheckpointDirectory(folder, LAYOUT)
    orphans = directory.sweep()
    for found in directory.keys():  # noqa: SIM118
        assert_exact(directory.read(found))
    assert not list(folder.rglob(f"*{PARTIAL}")), "files of dead writers are left"
    assert directory.sweep() == 0, "pages that no checkpoint needs are left"
    smaller = CheckpointDirectory(folder, LAYOUT, 1)
    smaller.sweep()
    assert smaller.bytes == 0 and not smaller.keys()
    return Counter({"bytes of orphans": orphans})


def _read_one(directory: CheckpointDirectory, image: CheckpointImage) -> str:
    found = directory.find(image.tokens)
    if found is None:
        return "none"
    assert found[0] <= image.position
    read = directory.read(found)
    if read is None:
        return "gone"
    assert key(read) == found and read.tokens == image.tokens[: found[0]]
    assert_exact(read)
    return "exact"


def _images(rng: random.Random) -> list[CheckpointImage]:
    return [_image(rng) for _ in range(4)]


def _image(rng: random.Random) -> CheckpointImage:
    return _made(rng.randrange(TEXTS), rng.randint(1, LONGEST))


@cache
def _made(text: int, length: int) -> CheckpointImage:
    """Texts that share their first half."""
    tokens = [n % 7 if n < LONGEST // 2 else n % 7 + text for n in range(LONGEST)]
    return image_of(tokens[:length])

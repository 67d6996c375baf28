"""Laid-out weights, kept in a file between processes: one read with all cores instead of a copy element by element.

    16 bytes   MAGIC
     8 bytes   length of the header, little endian
    32 bytes   sha256 of the header
    header     JSON: format, key, bytes, piece, crc32 of each piece
    block      at a multiple of PAGE: the arena of runtime/weight_arena.py, as it lies in memory

A file is used only if it is whole: its size, header and every piece are checked while they are read. Otherwise the
weights are laid out again and the file is replaced. Files are written beside their name and renamed, by one process at
a time, so that readers see the old one or the new one; the latest KEPT of a folder stay.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import warnings
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from runtime.errors import BadOption
from runtime.files import unique_keys
from runtime.known_digests import KnownDigests, kept_folders
from runtime.trusted_files import opened_trusted, replacing, sole_writer

MAGIC = b"stepforge-laid\x00\x01"
FORMAT = 1
SUFFIX = ".laid"
PIECE = 4 << 20
PAGE = 4096
HEADER_BYTES = 16 << 20
KEPT = 2
LEAST_BYTES = 16 << 20  # smaller blocks are laid out faster than a file is found
MOST_READERS = 8
SEAL = len(MAGIC) + 8
START = SEAL + hashlib.sha256().digest_size


class LayoutCacheDamaged(UserWarning):
    """A file of laid-out weights is not what was written; it is ignored, and replaced where that is possible."""


class Damaged(Exception):
    """What is wrong with a file."""


class LayoutCache:
    """Files of laid-out weights in the first of some folders that has one, or can have one.

    digests: hashes of weights files, remembered in the same folders.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self.digests = KnownDigests(folders)

    def load(self, key: str, block: Tensor) -> bool:
        """Fill `block`, uint8 on the CPU, with what was stored for `key`: all of it, or False and zeros."""
        if block.numel() < LEAST_BYTES:
            return False
        for folder in self._folders:
            path = _file(folder, key)
            try:
                with opened_trusted(path) as file:
                    _fill(file, key, block)
                return True
            except OSError:
                continue  # absent, unreadable, or somebody else's: as if it were not there
            except Damaged as damage:
                block.zero_()
                text = f"{path} is damaged ({damage}): it is ignored, and the weights are laid out again"
                warnings.warn(text, LayoutCacheDamaged, stacklevel=2)
        return False

    def store(self, key: str, block: Tensor) -> None:
        """Keep `block` for `key`. Nothing happens where no folder can be written to, or another process is at it."""
        for folder in self._folders if block.numel() >= LEAST_BYTES else ():
            try:
                with sole_writer(folder):
                    with replacing(_file(folder, key)) as file:
                        _write(file, key, _bytes(block))
                    _prune(folder, _file(folder, key))
                return
            except BlockingIOError:
                return
            except OSError:
                continue  # it is no folder that can be written to, or it is full


def _fill(file: int, key: str, block: Tensor) -> None:
    """Raises Damaged: then some of the block may have been written."""
    try:
        _read(file, key, _bytes(block))
    except OSError as error:
        raise Damaged(f"it cannot be read: {error.strerror}") from None


def layout_cache(option: object, beside: Path) -> LayoutCache | None:
    """What the option of `Engine` means: True: `beside`, else the user's cache; False: none; a path: that folder.

    Raises BadOption.
    """
    if option is False:
        return None
    if option is True:
        return LayoutCache(kept_folders(beside))
    if not isinstance(option, (str, os.PathLike)) or not str(option) or "\0" in str(option):
        raise BadOption(option="layout_cache", value=option, allowed="True, False, or a folder")
    return LayoutCache([Path(option)])


def _file(folder: Path, key: str) -> Path:
    return folder / f"{key[:32]}{SUFFIX}"


def _bytes(block: Tensor) -> memoryview:
    return block.numpy().data


def _read(file: int, key: str, block: memoryview) -> None:
    """Raises Damaged, or OSError."""
    header, start = _header(file)
    pieces = range(0, len(block), PIECE)
    try:
        sums = list(header["crc32"])
        if (header["format"], header["key"], header["bytes"], header["piece"]) != (FORMAT, key, len(block), PIECE):
            raise Damaged("it is of other weights or another layout")
    except (KeyError, TypeError) as error:
        raise Damaged(f"its header lacks {error}") from None
    if os.fstat(file).st_size != start + len(block) or len(sums) != len(pieces):
        raise Damaged("it has another size than its header says")

    def read(number: int) -> None:
        part = block[pieces[number] : pieces[number] + PIECE]
        if os.preadv(file, [part], start + pieces[number]) != len(part):
            raise Damaged("it ends too early")
        if zlib.crc32(part) != sums[number]:
            raise Damaged(f"bytes from {pieces[number]} on have changed")

    _in_threads(read, len(pieces))


def _header(file: int) -> tuple[dict[str, Any], int]:
    """The header, and where the block starts. Raises Damaged, or OSError."""
    head = os.pread(file, START, 0)
    length = int.from_bytes(head[len(MAGIC) : SEAL], "little")
    if len(head) < START or not head.startswith(MAGIC) or length > HEADER_BYTES:
        raise Damaged("it does not begin as such a file does")
    content = os.pread(file, length, START)
    if hashlib.sha256(content).digest() != head[SEAL:]:
        raise Damaged("its header has changed")
    try:
        return dict(json.loads(content, object_pairs_hook=unique_keys)), -(-(START + length) // PAGE) * PAGE
    except (ValueError, TypeError, RecursionError):
        raise Damaged("its header cannot be read") from None


def _write(file: int, key: str, block: memoryview) -> None:
    """Raises OSError."""
    pieces = range(0, len(block), PIECE)
    sums = [0] * len(pieces)
    described = {"format": FORMAT, "key": key, "bytes": len(block), "piece": PIECE}
    room = len(json.dumps({**described, "crc32": [(1 << 32) - 1] * len(pieces)}))
    start = -(-(START + room) // PAGE) * PAGE
    os.posix_fallocate(file, 0, start + len(block))

    def write(number: int) -> None:
        part = block[pieces[number] : pieces[number] + PIECE]
        sums[number] = zlib.crc32(part)
        done = 0
        while done < len(part):
            done += os.pwrite(file, part[done:], start + pieces[number] + done)

    _in_threads(write, len(pieces))
    content = json.dumps({**described, "crc32": sums}).encode().ljust(room)
    os.pwrite(file, MAGIC + room.to_bytes(8, "little") + hashlib.sha256(content).digest() + content, 0)


def _in_threads(work: Callable[[int], None], count: int) -> None:
    """work(0) .. work(count - 1), on as many threads as there are processors. Raises what the first to fail raised."""
    numbers, lock, failed = iter(range(count)), threading.Lock(), list[BaseException]()

    def run() -> None:
        while not failed:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            try:
                work(number)
            except BaseException as error:
                failed.append(error)

    threads = min(len(os.sched_getaffinity(0)), MOST_READERS, count)
    others: list[threading.Thread] = []
    try:
        for _ in range(threads - 1):
            others.append(threading.Thread(target=run, daemon=True))
            others[-1].start()
        run()
    except BaseException as error:  # an interrupt, or no thread to be had
        failed.append(error)
        raise
    finally:  # nobody works on when this returns: the file would be closed, and its number another's
        for thread in others:
            if thread.ident is not None:
                thread.join()
    if failed:
        raise failed[0]


def _prune(folder: Path, latest: Path) -> None:
    """Of the other files the latest KEPT - 1 stay."""
    others = [(path.stat().st_mtime_ns, path) for path in folder.glob(f"*{SUFFIX}") if path != latest]
    for _, path in sorted(others, reverse=True)[KEPT - 1 :]:
        path.unlink(missing_ok=True)

"""Zeroed memory for the shadow cells of a launch (native/race.h), one piece per stretch of overlapping extents."""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from .extents import CExtent, Extent

CELL_BYTES = 32
#: Pieces up to this size are kept for the next launch: touching fresh pages costs far more than clearing old ones.
KEEP_BYTES = 256 << 20
_NORESERVE = 0x4000  # Linux: pages cost memory when they are touched only


@dataclass(frozen=True)
class _Piece:
    memory: mmap.mmap
    address: int


_lock = threading.Lock()
_spare: list[_Piece] = []


def _take(size: int) -> _Piece:
    with _lock:
        fitting = [piece for piece in _spare if size <= len(piece.memory) <= 4 * size]
        if fitting:
            piece = min(fitting, key=lambda piece: len(piece.memory))
            _spare.remove(piece)
            ctypes.memset(piece.address, 0, size)
            return piece
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
    return _Piece(memory, ctypes.addressof(ctypes.c_char.from_buffer(memory)))


def _give(piece: _Piece) -> None:
    with _lock:
        if sum(len(spare.memory) for spare in _spare) + len(piece.memory) <= KEEP_BYTES:
            _spare.append(piece)


class Shadow:
    """Cells for every `granule` bytes of the memory in `extents`. Cells are the launch's until `release`."""

    def __init__(self, extents: Iterable[Extent], granule: int) -> None:
        self._pieces: list[tuple[int, int, _Piece]] = []
        for low, high in _merged((e.low, e.high) for e in extents if e.known and e.high > e.low):
            low -= low % granule
            self._pieces.append((low, high, _take(-(-(high - low) // granule) * CELL_BYTES)))

    def attach(self, extent: Extent, target: CExtent) -> None:
        for low, high, piece in self._pieces:
            if extent.known and low <= extent.low and extent.high <= high:
                target.shadow_low, target.shadow = low, piece.address

    def release(self) -> None:
        for _, _, piece in self._pieces:
            _give(piece)


def _merged(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Disjoint intervals that cover the same addresses."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(intervals):
        if found and low < found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return found

"""The memory a launch may touch, as native/check.h reads it."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

MAX_DIMS = 6
CELL_BYTES = 32
_EVERYTHING = (1 << 64) - 1
_NORESERVE = 0x4000  # Linux: pages cost memory when they are touched only


class CExtent(ctypes.Structure):
    _fields_ = (
        ("low", ctypes.c_uint64), ("high", ctypes.c_uint64),
        ("dims", ctypes.c_int64), ("run", ctypes.c_int64),
        ("size", ctypes.c_int64 * MAX_DIMS), ("stride", ctypes.c_int64 * MAX_DIMS),
        ("shadow_low", ctypes.c_uint64), ("shadow", ctypes.c_uint64),
    )  # fmt: skip


class CFailure(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("kind", "site", "lane", "link", "exact", "other_site", "other_kind")),
        *((name, ctypes.c_uint64) for name in ("address", "program", "other_program")),
    )


class CCheck(ctypes.Structure):
    _fields_ = (
        ("failure", CFailure),
        ("num_extents", ctypes.c_int64), ("same_value", ctypes.c_int64), ("granule", ctypes.c_int64),
        ("extents", ctypes.c_void_p), ("program", ctypes.c_uint64),
    )  # fmt: skip


@dataclass(frozen=True)
class Extent:
    """An argument and the bytes it gives access to. `gaps`: (size, stride in bytes) of the dimensions that leave some
    bytes of [low, high) out, strides falling; what is left of an offset lies in a run of `run` bytes."""

    name: str
    argument: Any
    low: int
    high: int
    item: int = 1
    run: int = 0
    gaps: tuple[tuple[int, int], ...] = ()

    @property
    def known(self) -> bool:
        return self.high < _EVERYTHING

    def fill(self, target: CExtent) -> None:
        target.low, target.high, target.dims, target.run = self.low, self.high, len(self.gaps), self.run
        for d, (size, stride) in enumerate(self.gaps):
            target.size[d], target.stride[d] = size, stride


def extent_of(name: str, argument: Any, view: bool) -> Extent:
    """Of a tensor, of None (nothing may be touched), of an address given as an integer (anything may)."""
    if argument is None:
        return Extent(name, argument, 0, 0)
    if isinstance(argument, int):
        return Extent(name, argument, 0, _EVERYTHING)
    low, item = argument.data_ptr(), argument.element_size()
    if not view:
        storage = argument.untyped_storage()
        return Extent(name, argument, storage.data_ptr(), storage.data_ptr() + storage.nbytes(), item)
    dims = [(n, s * item) for n, s in zip(argument.shape, argument.stride(), strict=True)]
    if any(n == 0 for n, _ in dims):
        return Extent(name, argument, low, low, item)
    high = low + item + sum((n - 1) * s for n, s in dims)
    run, gaps = _gaps(sorted((d for d in dims if d[0] > 1 and d[1]), key=lambda d: d[1]), item)
    return Extent(name, argument, low, high, item, run, gaps)


def _gaps(dims: Sequence[tuple[int, int]], item: int) -> tuple[int, tuple[tuple[int, int], ...]]:
    """The contiguous run, and the dimensions outside of it; none when these are too many or overlap."""
    run, reach, outer = item, item, []
    for size, stride in dims:
        if stride < reach:
            return 0, ()
        if stride == run and not outer:
            run = reach = size * stride
        else:
            outer.append((size, stride))
            reach = (size - 1) * stride + reach
    return (run, tuple(reversed(outer))) if len(outer) <= MAX_DIMS else (0, ())


class Shadow:
    """Zeroed cells for every granule of the memory in `extents`, one mapping per piece of overlapping extents."""

    def __init__(self, extents: Iterable[Extent], granule: int) -> None:
        self.pieces: list[tuple[int, int, mmap.mmap, int]] = []
        for low, high in _merged((e.low, e.high) for e in extents if e.known and e.high > e.low):
            low -= low % granule
            size = (-(-(high - low) // granule)) * CELL_BYTES
            memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
            address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            self.pieces.append((low, high, memory, address))

    def attach(self, extent: Extent, target: CExtent) -> None:
        for low, high, _, address in self.pieces:
            if extent.known and low <= extent.low and extent.high <= high:
                target.shadow_low, target.shadow = low, address


def _merged(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Disjoint intervals that cover the same addresses."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(intervals):
        if found and low < found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return found

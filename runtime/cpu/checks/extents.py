"""The memory a launch may touch, as native/check.h reads it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .poison import holds_poison

MAX_DIMS = 6
_EVERYTHING = (1 << 64) - 1


class CExtent(ctypes.Structure):
    _fields_ = (
        ("low", ctypes.c_uint64), ("high", ctypes.c_uint64),
        ("dims", ctypes.c_int64), ("run", ctypes.c_int64),
        ("size", ctypes.c_int64 * MAX_DIMS), ("stride", ctypes.c_int64 * MAX_DIMS),
        ("poisoned", ctypes.c_int64), ("shadow_low", ctypes.c_uint64), ("shadow", ctypes.c_uint64),
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
        ("extents", ctypes.c_void_p), ("program", ctypes.c_uint64), ("instance", ctypes.c_uint64),
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
        target.poisoned = self.known and holds_poison(self.low, self.high)
        for d, (size, stride) in enumerate(self.gaps):
            target.size[d], target.stride[d] = size, stride


#: For addresses nothing is known of: all but those that are surely wrong.
ANYWHERE = Extent("memory", None, 1 << 16, _EVERYTHING)


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

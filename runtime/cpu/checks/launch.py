"""Launches of kernels that were compiled with checks: programs run in order on the calling thread."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

from ..launcher import KernelLauncher, describe_descriptor
from . import mode, report
from .extents import ANYWHERE, CCheck, CExtent, Extent, extent_of
from .shadow import Shadow

_RUN = ctypes.CFUNCTYPE(
    None, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32
)
_WRITES = ("store", "atomic", "relaxed")


def _in_this_checkout(checks: dict, source: Any) -> dict:
    """Descriptions whose locations name the kernel's file of this process: the cache may come from a copy of it."""
    function = getattr(getattr(source, "fn", None), "fn", None)
    calls = [site["location"].split(" <- ")[-1] for site in checks["sites"]]
    if function is None or not calls:
        return checks
    compiled, here = calls[0].rsplit(":", 2)[0], function.__code__.co_filename

    def moved(row: dict) -> dict:
        return row | {"location": row["location"].replace(f"{compiled}:", f"{here}:")}

    return checks | {name: [moved(row) for row in checks[name]] for name in ("sites", "links")}


class CheckedLauncher(KernelLauncher):
    """A KernelLauncher whose launches raise what the checks find, see checks/report.py."""

    checked = True

    def __init__(self, source: Any, metadata: Any) -> None:
        super().__init__(source, metadata)
        self.checks: dict = _in_this_checkout(metadata.checks, source)
        self.races = metadata.check_mode == "race"

    def bound(self, function: int, packed: bytes, grid: tuple[int, int, int], args: tuple) -> Callable[[], None]:
        """Keeps the settings of the moment it is recorded."""
        return partial(self.run, function, packed, grid, args, mode.current())

    def run(
        self, function: int, packed: bytes, grid: tuple[int, int, int], args: tuple, given: mode.Settings | None = None
    ) -> None:
        """Run the programs one after another; `given`: settings other than those of this moment."""
        gx, gy, gz = grid
        if not gx * gy * gz:
            return
        settings = given or mode.current()
        extents = self._extents(args, settings)
        granule = min((site["size"] for site in self.checks["sites"]), default=1)
        shadow = Shadow(self._written(extents) if self.races else (), granule)
        table = (CExtent * len(extents))()
        for extent, target in zip(extents, table, strict=True):
            extent.fill(target)
            shadow.attach(extent, target)
        check = CCheck(
            num_extents=len(extents), same_value=settings.same_value, granule=granule, extents=ctypes.addressof(table)
        )
        packed += ctypes.addressof(check).to_bytes(8, "little")
        _RUN(function)(packed, 0, gx * gy * gz, gx, gy, gz)
        shadow.release()
        if check.failure.kind:
            raise report.error(self.checks, check.failure, extents, grid)

    def _extents(self, args: tuple, settings: mode.Settings) -> list[Extent]:
        """One per kernel argument, empty where that is a number, then what addresses made of integers may touch."""
        view = settings.extent == "view"
        found = []
        for (name, argument), (_, type_) in zip(self.describe(args), self.leaves, strict=True):
            if type_.startswith("tensordesc"):
                found.append(extent_of(name, argument, view))
                found += [extent_of(name, None, view)] * (len(describe_descriptor("", type_, "")) - 1)
            else:
                found.append(extent_of(name, argument if type_.startswith("*") else None, view))
        if settings.memory is None:
            return [*found, ANYWHERE]
        return found + [extent_of(f"memory[{k}]", tensor, view) for k, tensor in enumerate(settings.memory)]

    def _written(self, extents: list[Extent]) -> list[Extent]:
        """Extents that share memory with one this kernel may write; nobody races for the others."""
        sites = [site for site in self.checks["sites"] if site["kind"] in _WRITES]
        if any(-1 in site["sources"] for site in sites):
            return extents
        targets = [extents[k] for k in {k for site in sites for k in site["sources"]}]
        return [e for e in extents if any(e.low < t.high and t.low < e.high for t in targets)]

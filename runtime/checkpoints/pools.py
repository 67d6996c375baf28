"""How full the pools are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pools:
    """Occupancy: used of all there are. writing: checkpoints on their way to the directory."""

    rows_used: int
    rows: int
    pages_used: int
    pages: int
    host_rows_used: int
    host_rows: int
    host_pages_used: int
    host_pages: int
    writing: int

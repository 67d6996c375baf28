"""A Triton backend for CPUs: Triton IR -> C -> shared object, run by a thread pool. See docs/cpu-backend.md.

Triton finds it through the entry point group `triton.backends` (name `cpu`) and imports `compiler` and `driver`. This
module imports nothing of Triton, so it can be imported while Triton itself is being imported.
"""

from __future__ import annotations

from .checks.mode import checked
from .checks.poison import poison
from .errors import (
    CpuBackendError,
    DataRace,
    GraphStateError,
    LaneConflict,
    OffsetOverflow,
    OutOfBounds,
    UninitialisedRead,
    UnsupportedOp,
)
from .pool import get_num_threads, set_num_threads
from .profiling import profile

__all__ = [
    "CpuBackendError",
    "DataRace",
    "GraphStateError",
    "LaneConflict",
    "OffsetOverflow",
    "OutOfBounds",
    "UninitialisedRead",
    "UnsupportedOp",
    "checked",
    "get_num_threads",
    "poison",
    "profile",
    "set_num_threads",
]

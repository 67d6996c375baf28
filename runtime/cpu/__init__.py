"""A Triton backend for CPUs: Triton IR -> C -> shared object, run by a thread pool. See docs/cpu-backend.md.

Triton finds it through the entry point group `triton.backends` (name `cpu`) and imports `compiler` and `driver`. This
module imports nothing of Triton, so it can be imported while Triton itself is being imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .checks.mode import checked
from .checks.poison import poison
from .errors import (
    BadArgument,
    BadGrid,
    BadKnob,
    CompilationFailed,
    CompilerMissing,
    CpuBackendError,
    DataRace,
    DeviceAssertFailed,
    GraphStateError,
    KernelDamaged,
    LaneConflict,
    LocalMemoryExceeded,
    MalformedIr,
    OffsetOverflow,
    OutOfBounds,
    TensorElsewhere,
    UninitialisedRead,
    UnsupportedOp,
)
from .pool import get_num_threads, set_num_threads
from .profiling import profile

if TYPE_CHECKING:
    from .graph import HostGraph

__all__ = [
    "BadArgument",
    "BadGrid",
    "BadKnob",
    "CompilationFailed",
    "CompilerMissing",
    "CpuBackendError",
    "DataRace",
    "DeviceAssertFailed",
    "GraphStateError",
    "HostGraph",
    "KernelDamaged",
    "LaneConflict",
    "LocalMemoryExceeded",
    "MalformedIr",
    "OffsetOverflow",
    "OutOfBounds",
    "TensorElsewhere",
    "UninitialisedRead",
    "UnsupportedOp",
    "checked",
    "get_num_threads",
    "poison",
    "profile",
    "set_num_threads",
]


def __getattr__(name: str) -> Any:
    """HostGraph, when it is asked for: its module imports Triton."""
    if name == "HostGraph":
        from .graph import HostGraph

        return HostGraph
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

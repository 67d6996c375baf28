"""Run a rendered package: weights, buffers, graphs, engine, checkpoints.

Importing this imports neither torch nor triton, because Triton itself imports `runtime.cpu`; `Engine` and
`open_package` are loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runtime.engine import Engine
    from runtime.package import open_package

__all__ = ["Engine", "open_package"]
_HOMES = {"Engine": "runtime.engine", "open_package": "runtime.package"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)

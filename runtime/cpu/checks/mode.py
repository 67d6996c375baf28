"""Which checks are on: what STEPFORGE_CPU_CHECK says, or `checked` for the launches of one piece of code."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from .. import knobs

#: Compiled code differs between these; the empty one is code without checks.
MODES = ("", "bounds", "race")


@dataclass(frozen=True)
class Settings:
    """`mode` is part of the cache key; the rest is passed to every launch. See `checked`."""

    mode: str = ""
    extent: str = "view"
    same_value: bool = False
    memory: tuple[Any, ...] | None = None


_current: ContextVar[Settings | None] = ContextVar("checks of the CPU backend", default=None)


@functools.lru_cache
def _from_environment() -> Settings:
    words = knobs.check()
    mode = "race" if "race" in words else "bounds" if words else ""
    return Settings(mode, "storage" if "storage" in words else "view", "same-value" in words)


def current() -> Settings:
    """Settings of launches made now by this thread."""
    return _current.get() or _from_environment()


@contextlib.contextmanager
def checked(
    races: bool = False, *, extent: str = "view", same_value: bool = False, memory: tuple[Any, ...] | None = None
) -> Iterator[None]:
    """Check every launch of this thread (and every host graph captured) inside the context.

    races: look for races between programs too. extent: what a pointer may touch, `view` (the elements its tensor names)
    or `storage` (all of the tensor's storage). same_value: two programs may store the same value. memory: check
    addresses that kernels make of integers too, against the arguments and these tensors. Failing launches raise
    OutOfBounds, OffsetOverflow, UninitialisedRead, DataRace or LaneConflict."""
    if extent not in ("view", "storage"):
        raise ValueError(f"extent must be 'view' or 'storage', not {extent!r}")
    mode, listed = "race" if races else "bounds", None if memory is None else tuple(memory)
    token = _current.set(Settings(mode, extent, same_value, listed))
    try:
        yield
    finally:
        _current.reset(token)

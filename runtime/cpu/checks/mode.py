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
    memory: tuple[Any, ...] = ()


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
    races: bool = False, *, extent: str = "view", same_value: bool = False, memory: tuple[Any, ...] = ()
) -> Iterator[None]:
    """Check every launch of this thread (and every host graph captured) inside the context.

    races: look for races between programs too. extent: what a pointer may touch, `view` (the elements its tensor names)
    or `storage` (all of the tensor's storage). same_value: two programs may store the same value. memory: tensors the
    kernels reach through addresses they compute from integers. Failing launches raise OutOfBounds or DataRace."""
    if extent not in ("view", "storage"):
        raise ValueError(f"extent must be 'view' or 'storage', not {extent!r}")
    token = _current.set(Settings("race" if races else "bounds", extent, same_value, tuple(memory)))
    try:
        yield
    finally:
        _current.reset(token)

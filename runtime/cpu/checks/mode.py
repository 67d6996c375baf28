"""Which checks are on: what STEPFORGE_CPU_CHECK says, or `checked` for the launches of one piece of code."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from .. import knobs
from ..errors import BadArgument

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
def _words() -> tuple[str, ...]:
    return knobs.check()


def warn_if_changed() -> None:
    """Warn when STEPFORGE_CPU_CHECK is not what it was at the first launch: kernels in use stay as they are."""
    if knobs.check() != _words():
        warnings.warn(
            "STEPFORGE_CPU_CHECK was changed after the first launch and has no effect; use runtime.cpu.checked()",
            stacklevel=2,
        )


@functools.lru_cache
def _from_environment() -> Settings:
    words = _words()
    mode = "race" if "race" in words else "bounds" if words else ""
    return Settings(mode, "storage" if "storage" in words else "view", "same-value" in words)


def current() -> Settings:
    """Settings of launches made now by this thread."""
    return _current.get() or _from_environment()


def checked(
    races: bool = False, *, extent: str = "view", same_value: bool = False, memory: Sequence[Any] | None = None
) -> contextlib.AbstractContextManager[None]:
    """Check every launch of this thread (and every host graph captured) inside the context.

    races: look for races between programs too. extent: what a pointer may touch, `view` (the elements its tensor names)
    or `storage` (all of the tensor's storage). same_value: two programs may store the same value. memory: check
    addresses that kernels make of integers too, against the arguments and these tensors. Failing launches raise
    OutOfBounds, OffsetOverflow, UninitialisedRead, DataRace or LaneConflict. Raises BadArgument."""
    if extent not in ("view", "storage"):
        raise _refused("extent", repr(extent), "'view' or 'storage'")
    if same_value and not races:
        raise _refused("same_value", repr(same_value), "only with races=True: it says which races are none")
    if memory is not None and not (isinstance(memory, (tuple, list)) and all(hasattr(t, "data_ptr") for t in memory)):
        raise _refused("memory", f"a {type(memory).__name__}", "a tuple of tensors, as memory=(tensor,)")
    listed = None if memory is None else tuple(memory)
    return _within(Settings("race" if races else "bounds", extent, same_value, listed))


def _refused(argument: str, value: str, allowed: str) -> BadArgument:
    return BadArgument(function="checked", argument=argument, value=value, allowed=allowed)


@contextlib.contextmanager
def _within(settings: Settings) -> Iterator[None]:
    token = _current.set(settings)
    try:
        yield
    finally:
        _current.reset(token)

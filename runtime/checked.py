"""Reading values of parsed JSON that somebody else may have written: each has the type and range asked for."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")
MOST = 1 << 48
MOST_ITEMS = 1 << 20
MOST_CHARACTERS = 1 << 12
NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}", re.ASCII)
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}", re.ASCII)


def integer(value: Any, least: int = 0, most: int = MOST) -> int:
    """An integer in a range. Raises TypeError or ValueError, as all of these do."""
    if type(value) is not int:
        raise TypeError(f"{_brief(value)} is no integer")
    if not least <= value <= most:
        raise ValueError(f"{_brief(value)} is not from {least} to {most}")
    return value


def number(value: Any) -> float:
    """A finite number, zero or more."""
    if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{_brief(value)} is no number of zero or more")
    return float(value)


def flag(value: Any) -> bool:
    """True or false."""
    if type(value) is not bool:
        raise TypeError(f"{_brief(value)} is neither true nor false")
    return value


def text(value: Any) -> str:
    """Text of a line or two."""
    if not isinstance(value, str) or len(value) > MOST_CHARACTERS:
        raise TypeError(f"{_brief(value)} is no text of at most {MOST_CHARACTERS} characters")
    return value


def name(value: Any) -> str:
    """A name as a spec may give one: it becomes part of paths and modules."""
    if not NAME.fullmatch(text(value)):
        raise ValueError(f"{_brief(value)} is no name like {NAME.pattern}")
    return str(value)


def identifier(value: Any) -> str:
    """A name that may stand in a program."""
    if not IDENTIFIER.fullmatch(text(value)):
        raise ValueError(f"{_brief(value)} is no identifier")
    return str(value)


def one_of(*allowed: str) -> Callable[[Any], str]:
    """One of some words."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise ValueError(f"{_brief(value)} is none of {', '.join(allowed)}")
        return value

    return read


def items(value: Any, read: Callable[[Any], T]) -> tuple[T, ...]:
    """A list, each item read by `read`."""
    if not isinstance(value, list) or len(value) > MOST_ITEMS:
        raise TypeError(f"{_brief(value)} is no list of at most {MOST_ITEMS} items")
    return tuple(read(item) for item in value)


def mapping(value: Any) -> Mapping[str, Any]:
    """A mapping with text keys."""
    if not isinstance(value, dict) or len(value) > MOST_ITEMS:
        raise TypeError(f"{_brief(value)} is no mapping")
    return value


def named(values: tuple[T, ...], key: Callable[[T], str]) -> dict[str, T]:
    """Values by name, each name once."""
    found = {key(value): value for value in values}
    if len(found) != len(values):
        raise ValueError("a name is given twice")
    return found


def _brief(value: Any) -> str:
    if isinstance(value, (list, dict)):
        return f"a {type(value).__name__}"
    shown = "a large integer" if type(value) is int and abs(value) > MOST else repr(value)
    return shown if len(shown) <= 60 else f"{shown[:60]}..."

"""Values of command lines."""

from __future__ import annotations


def positive(text: str) -> int:
    """A number of at least 1. Raises ValueError."""
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number

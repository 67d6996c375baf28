"""What is raised when the engine is not what a model says."""

from __future__ import annotations


class Difference(AssertionError):
    """The engine and an oracle disagree."""


def same(what: str, found: object, expected: object) -> None:
    """Raise Difference unless both are equal."""
    if found != expected:
        raise Difference(f"{what}: found {found!r}, expected {expected!r}")


def holds(condition: object, what: str) -> None:
    """Raise Difference unless the condition holds."""
    if not condition:
        raise Difference(what)

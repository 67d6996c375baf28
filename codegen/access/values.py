"""Values of the interpretation: a range of integers, a pointer into some parameters, or something else."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import NamedTuple


class Range(NamedTuple):
    """Integers from low to high, both included."""

    low: int
    high: int

    def join(self, other: Range) -> Range:
        """The smallest range that holds both."""
        return Range(min(self.low, other.low), max(self.high, other.high))

    def within(self, other: Range) -> bool:
        """Whether every integer of this range is in the other."""
        return other.low <= self.low and self.high <= other.high


INT = {32: Range(-(2**31), 2**31 - 1), 64: Range(-(2**63), 2**63 - 1)}
BOOL = Range(0, 1)


@dataclass(frozen=True)
class Value:
    """What is known of a scalar or of every element of a tensor.

    key: equal keys mean the same expression of the kernel's parameters, programs and loop variables. range: of an
    integer, else None. bits: of an integer. constant: known when the kernel is compiled. wrapped: where 32-bit
    arithmetic may have left its range on the way here, in words. pointers: parameters that it may point into; none for
    numbers.
    """

    key: int
    range: Range | None = None
    bits: int = 32
    constant: bool = False
    wrapped: str = ""
    pointers: frozenset[str] = frozenset()

    @property
    def integer(self) -> bool:
        """Whether this is an integer."""
        return self.range is not None


class Keys:
    """Numbers expressions so that equal ones get equal numbers."""

    def __init__(self) -> None:
        self._known: dict[object, int] = {}

    def of(self, *parts: object) -> int:
        """The number of an expression: an operation and the keys of its operands."""
        return self._known.setdefault(parts, len(self._known))


def known(keys: Keys, value: object) -> Value:
    """A constant of the kernel's text: an integer, a truth value, or something else."""
    key = keys.of("constant", repr(value))
    if isinstance(value, int):  # a truth value too
        number = int(value)
        return Value(key, Range(number, number), 32 if Range(number, number).within(INT[32]) else 64, True)
    return Value(key, constant=True)


def join(key: int, *values: Value) -> Value:
    """What may be any of `values`."""
    first = values[0]
    ranges = [value.range for value in values]
    return Value(
        key if any(value.key != first.key for value in values) else first.key,
        None if any(r is None for r in ranges) else reduce(Range.join, [r for r in ranges if r is not None]),
        max(value.bits for value in values),
        False,
        next((value.wrapped for value in values if value.wrapped), ""),
        frozenset().union(*(value.pointers for value in values)),
    )


def fitted(value: Value, where: str) -> Value:
    """An integer held to its type: if its exact range leaves 32 bits, it may wrap, which is remembered."""
    assert value.range is not None
    if value.constant:
        return replace(value, bits=32 if value.range.within(INT[32]) else 64)
    if value.range.within(INT[value.bits]):
        return value
    far = value.range.high if value.range.high > INT[value.bits].high else value.range.low
    wrapped = value.wrapped or f"{where} may reach {far} in int{value.bits}"
    return replace(value, range=INT[value.bits], wrapped=wrapped)

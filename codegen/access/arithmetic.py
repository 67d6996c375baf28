"""Ranges of integer arithmetic: exact where that is simple, all of the type where it is not."""

from __future__ import annotations

import ast
from collections.abc import Callable

from codegen.access.values import BOOL, INT, Range

Binary = Callable[[Range, Range, int], Range]


def _corners(operation: Callable[[int, int], int]) -> Binary:
    def ranged(left: Range, right: Range, bits: int) -> Range:
        corners = [operation(a, b) for a in left for b in right]
        return Range(min(corners), max(corners))

    return ranged


def _quotient(left: Range, right: Range, bits: int) -> Range:
    """Triton's `//` of integers rounds towards zero; so do the corners here."""
    if right.low <= 0:
        return INT[bits]
    return _corners(lambda a, b: a // b if a >= 0 else -(-a // b))(left, right, bits)


def _remainder(left: Range, right: Range, bits: int) -> Range:
    """The sign is the dividend's."""
    if right.low <= 0:
        return INT[bits]
    most = right.high - 1
    return Range(0 if left.low >= 0 else max(left.low, -most), max(0, min(left.high, most)))


def _and(left: Range, right: Range, bits: int) -> Range:
    limits = [side.high for side in (left, right) if side.low >= 0]
    return Range(0, min(limits)) if limits else INT[bits]


def _or(left: Range, right: Range, bits: int) -> Range:
    if left.low < 0 or right.low < 0:
        return INT[bits]
    return Range(0, (1 << max(left.high, right.high).bit_length()) - 1)


def _left_shift(left: Range, right: Range, bits: int) -> Range:
    return _corners(lambda a, b: a << b)(left, right, bits) if Range(0, 64).join(right) == Range(0, 64) else INT[bits]


def _right_shift(left: Range, right: Range, bits: int) -> Range:
    return _corners(lambda a, b: a >> b)(left, right, bits) if right.low >= 0 else INT[bits]


BINARY: dict[type[ast.operator], Binary] = {
    ast.Add: _corners(lambda a, b: a + b),
    ast.Sub: _corners(lambda a, b: a - b),
    ast.Mult: _corners(lambda a, b: a * b),
    ast.FloorDiv: _quotient,
    ast.Mod: _remainder,
    ast.BitAnd: _and,
    ast.BitOr: _or,
    ast.BitXor: _or,
    ast.LShift: _left_shift,
    ast.RShift: _right_shift,
}

COMPARISON: dict[type[ast.cmpop], Callable[[Range, Range], Range]] = {
    ast.Lt: lambda a, b: _decided(a.high < b.low, a.low >= b.high),
    ast.LtE: lambda a, b: _decided(a.high <= b.low, a.low > b.high),
    ast.Gt: lambda a, b: _decided(a.low > b.high, a.high <= b.low),
    ast.GtE: lambda a, b: _decided(a.low >= b.high, a.high < b.low),
    ast.Eq: lambda a, b: _decided(a == b and a.low == a.high, a.high < b.low or b.high < a.low),
    ast.NotEq: lambda a, b: _decided(a.high < b.low or b.high < a.low, a == b and a.low == a.high),
}


def _decided(true: bool, false: bool) -> Range:
    """1 if a comparison always holds, 0 if it never does, else either."""
    return Range(1, 1) if true else Range(0, 0) if false else BOOL

"""Functions of triton.language that touch no memory: the range of what they give.

A function that is not here gives something of which nothing is known: it may be stored, but not be part of an address.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import replace

from codegen.access.values import INT, Keys, Range, Value, join, known

# They give one of their operands, in another shape or order, or one of its elements.
PASSED_ON = frozenset(
    [
        "reshape",
        "permute",
        "trans",
        "broadcast_to",
        "expand_dims",
        "view",
        "ravel",
        "flip",
        "sort",
        "gather",
        "min",
        "max",
    ]
)
# Of integers they give any integer of the type.
ANY = frozenset(["sum", "cumsum", "reduce", "associative_scan", "argmax", "argmin", "histogram", "umulhi", "xor_sum"])


def arange(key: int, first: Range, last: Range) -> Value:
    """`tl.arange`, an int32."""
    return Value(key, Range(first.low, last.high - 1))


def next_power_of_2(key: int, value: Value, of: Range) -> Value:
    """`triton.next_power_of_2` of a constant."""
    low, high = (1 << max(0, end - 1).bit_length() for end in (of.low, of.high))
    return replace(value, key=key, range=Range(low, high))


def filled(keys: Keys, key: int, name: str, node: ast.Call, given: Sequence[object]) -> Value:
    """`tl.zeros` and `tl.full`; the dtype is their last argument."""
    bits = int_bits(ast.unparse(node.args[-1]))
    if bits is None:
        return Value(key)
    value = given[1] if name == "full" else known(keys, 0)
    return Value(key, value.range if isinstance(value, Value) and value.range else INT[bits], bits)


def int_bits(dtype: str) -> int | None:
    """Bits that an integer dtype is computed in, None for floats. Smaller ones are held in 32."""
    if not dtype.startswith(("tl.int", "tl.uint")):
        return None
    return 64 if dtype.endswith("64") else 32


def extreme(pick: Callable[[int, int], int], key: int, left: Value, right: Value) -> Value:
    """`tl.minimum` or `tl.maximum`."""
    if left.range is None or right.range is None:
        return Value(key)
    low, high = pick(left.range.low, right.range.low), pick(left.range.high, right.range.high)
    return replace(join(key, left, right), key=key, range=Range(low, high))


def other(name: str, key: int, values: Sequence[Value]) -> Value:
    """Any other function."""
    if name in PASSED_ON and values:
        return replace(values[0], key=key, constant=False)
    if name in ANY and values and values[0].integer:
        return Value(key, INT[values[0].bits], values[0].bits)
    return Value(key)

"""What only some versions of Triton do: the ledger, the fuzzer and tests ask here.

A fact is a tuple of requirements, and holds where all of them do. Triton itself is not imported: the process that
interprets sets TRITON_INTERPRET first.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import version

from packaging.requirements import Requirement

from tests.cpu.fuzz.dtypes import I32, INTEGERS, U32

#: Holds everywhere, and nowhere.
ALWAYS: tuple[str, ...] = ()
NEVER = ("triton<0",)
#: The interpreter's maximum and minimum of floats propagate NaN whatever they are told.
NAN_EXTREMES = ("triton<3.9",)
#: The interpreter rounds the product of an fma.
ROUNDED_PRODUCT = ("triton<3.9",)
#: The interpreter's sum of integers to a scalar raises where it wraps.
NO_WRAPPING_SUM = ("triton<3.9",)
#: The interpreter makes `int` of an array of one element for the bounds of a loop, which NumPy ended.
NO_RUN_TIME_BOUND = ("triton<3.7", "numpy>=2.4")
#: The front end writes -x of floats as 0 - x, so that -0 is 0; later as a change of sign.
MINUS_SUBTRACTS = ("triton<3.8",)
#: The front end makes f32 of bf16 in maximum, minimum, clamp and cumsum.
BF16_WIDENS = ("triton<3.9",)
#: The front end makes 32 bits of smaller integers in cumprod, as it does everywhere in cumsum.
PRODUCTS_WIDEN = ("triton>=3.9",)
#: The front end refuses tl.histogram of integers that do not have 32 bits.
HISTOGRAM_OF_32_BITS = ("triton>=3.9",)

#: The front end has block pointers.
BLOCK_POINTERS = ("triton<3.9",)


@cache
def holds(fact: tuple[str, ...]) -> bool:
    """Whether this environment meets every requirement. Raises packaging's InvalidRequirement."""
    wanted = [Requirement(text) for text in fact]
    return all(each.specifier.contains(version(each.name), prereleases=True) for each in wanted)


#: What tl.histogram counts here.
HISTOGRAM_TYPES = (I32, U32) if holds(HISTOGRAM_OF_32_BITS) else INTEGERS

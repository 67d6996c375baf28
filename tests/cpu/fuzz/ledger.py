"""Where Triton's interpreter is wrong, each with the value that IEEE 754 or Triton's documentation asks for.

What only some versions get wrong says so, in the words of `versions.py`.

`TRITON_INTERPRET=1` has to be set before Triton is imported: `python -m tests.cpu.fuzz.ledger` prints what each kernel
gives in this process as JSON; `tests/cpu/backend/test_interpreter_ledger.py` runs it both ways.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from tests.cpu.fuzz import versions

INF, NAN = math.inf, math.nan
N = 4


@triton.jit
def add(x, y, out, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(out + i, tl.load(x + i) + tl.load(y + i))


@triton.jit
def less(x, y, out, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(out + i, (tl.load(x + i) < tl.load(y + i)).to(tl.int32))


@triton.jit
def negate(x, y, out, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(out + i, -tl.load(x + i))


@triton.jit
def maximum(x, y, out, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(out + i, tl.maximum(tl.load(x + i), tl.load(y + i)))


@triton.jit
def convert(x, y, out, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(out + i, tl.load(x + i).to(out.dtype.element_ty))


@triton.jit
def convert_towards_zero(x, y, out, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(out + i, tl.load(x + i).to(out.dtype.element_ty, fp_downcast_rounding="rtz"))


@triton.jit
def fused(x, y, out, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(out + i, tl.fma(tl.load(x + i), tl.load(y + i), tl.full([n], -1.0, tl.float32)))


@triton.jit
def dot(x, y, out, n: tl.constexpr):
    i = tl.arange(0, 2)[:, None] * 2 + tl.arange(0, 2)[None, :]
    tl.store(out + i, tl.dot(tl.load(x + i), tl.load(y + i), input_precision="ieee"))


@triton.jit
def total(x, y, out, n: tl.constexpr):
    tl.store(out, tl.sum(tl.load(x + tl.arange(0, n)), axis=0))


@triton.jit
def count(x, y, out, n: tl.constexpr):
    tl.store(out + tl.arange(0, n), tl.histogram(tl.load(x + tl.arange(0, n)), n))


@triton.jit
def exchange_alias(x, y, out, n: tl.constexpr):
    """Two names for one value in front of a loop that gives them different ones."""
    start = tl.program_id(0)
    a = start
    b = start
    for i in range(3):
        a = b
        b = i
    tl.store(out, a)


@triton.jit
def count_up(x, y, out, n: tl.constexpr):
    for i in range(tl.load(x)):
        tl.store(out + i, i + 1)


@dataclass(frozen=True)
class Entry:
    """`right` is what out must hold, one number per element; `wrong` names who is wrong.

    `wrong_with` (see versions.py) says with which versions; with others both are right. `refused_with` says with which
    the front end takes no such kernel, and `refusal` what it says then.
    """

    kernel: Callable
    x: torch.Tensor
    y: torch.Tensor
    out: torch.dtype
    right: tuple[float, ...]
    why: str
    wrong: str = "interpreter"
    wrong_with: tuple[str, ...] = versions.ALWAYS
    refused_with: tuple[str, ...] = versions.NEVER
    refusal: str = ""


def _bf16(*values: float) -> torch.Tensor:
    return torch.tensor(values).bfloat16()


_NONE = torch.zeros(N)
LEDGER: dict[str, Entry] = {
    "bf16-arithmetic": Entry(
        add, _bf16(1.5, 2, -1, 3), _bf16(1, 0.5, 2, 3), torch.bfloat16, (2.5, 2.5, 1, 6),
        "adds the bit patterns of bf16 as integers",
    ),
    "bf16-negation": Entry(
        negate, _bf16(-1, 2, -3, 1), _NONE, torch.bfloat16, (1, -2, 3, -1), "subtracts the bit pattern from 0",
    ),
    "bf16-comparison": Entry(
        less, _bf16(-1, 2, -3, 0), _bf16(1, 1, -2, -0.0), torch.int32, (1, 0, 1, 0), "compares bit patterns",
    ),
    "bf16-dot": Entry(
        dot, _bf16(1.5, 0, 0, 1.5), _bf16(1, 0, 0, 2), torch.float32, (1.5, 0, 0, 3), "multiplies bit patterns",
    ),
    "f32-to-bf16": Entry(
        convert, torch.tensor([1 + 2**-8 + 2**-9, 1 + 2**-7 + 2**-8, 1 - 2**-10, 2.0]), _NONE, torch.bfloat16,
        (1 + 2**-7, 1 + 2**-6, 1, 2), "cuts off instead of rounding to nearest even",
    ),
    "f32-to-bf16-denormal": Entry(
        convert, torch.tensor([2.0**-130, 3 * 2.0**-133, 2.0**-126, -(2.0**-128)]), _NONE, torch.bfloat16,
        (2.0**-130, 3 * 2.0**-133, 2.0**-126, -(2.0**-128)), "shifts the significand of denormals",
    ),
    "int-to-bf16": Entry(
        convert, torch.tensor([1, 2, 3, -4], dtype=torch.int32), _NONE, torch.bfloat16, (1, 2, 3, -4),
        "stores the integer as the bit pattern",
    ),
    "f32-to-f16-towards-zero": Entry(
        convert_towards_zero, torch.tensor([1e30, -1e30, 1 + 2.0**-11, 2.0]), _NONE, torch.float16,
        (65504, -65504, 1, 2), "gives NaN beyond the largest number",
    ),
    "maximum-nan": Entry(
        maximum, torch.tensor([NAN, 1, NAN, 2]), torch.tensor([1, NAN, NAN, 1]), torch.float32, (1, 1, NAN, 2),
        "propagates NaN although propagate_nan is NONE", wrong_with=versions.NAN_EXTREMES,
    ),
    "fma": Entry(
        fused, torch.tensor([1 + 2.0**-12] * 4), torch.tensor([1 + 2.0**-13] * 4), torch.float32,
        (2.0**-12 + 2.0**-13 + 2.0**-25,) * 4, "rounds the product, too", wrong_with=versions.ROUNDED_PRODUCT,
    ),
    "int-sum-wraps": Entry(
        total, torch.full((N,), 2**30, dtype=torch.int32), _NONE, torch.int32, (0, 0, 0, 0),
        "raises OverflowError where a sum of integers to a scalar wraps", wrong_with=versions.NO_WRAPPING_SUM,
    ),
    "histogram-of-i64": Entry(
        count, torch.tensor([0, 1, 3, 1]), _NONE, torch.int32, (1, 2, 0, 1),
        "counts in the type of the input, and raises or writes elements of another size",
        refused_with=versions.HISTOGRAM_OF_32_BITS,
        refusal="histogram only supports 32-bit integer input, but got int64",
    ),
    "loop-to-a-loaded-bound": Entry(
        count_up, torch.full((N,), 4, dtype=torch.int32), _NONE, torch.int32, (1, 2, 3, 4),
        "raises TypeError where a loop ends at a number that is no constant", wrong_with=versions.NO_RUN_TIME_BOUND,
    ),
    "names-of-one-value": Entry(
        exchange_alias, _NONE, _NONE, torch.int32, (1, 0, 0, 0),
        "decides by the identity of values which names a loop changes, and drops one", wrong="compiler",
    ),
}  # fmt: skip


def results() -> dict[str, list[float] | str]:
    """What each kernel gives here: numbers, or the text of the error that it raises."""
    return {name: _result(entry) for name, entry in LEDGER.items()}


def _result(entry: Entry) -> list[float] | str:
    out = torch.zeros(N, dtype=entry.out)
    try:
        entry.kernel[(1,)](entry.x.clone(), entry.y.clone(), out, n=N)
    except Exception as error:  # the interpreter's own errors have no common class
        return f"{type(error).__name__}: {error}"
    return [float(v) for v in out.tolist()]


if __name__ == "__main__":
    print(json.dumps(results()))

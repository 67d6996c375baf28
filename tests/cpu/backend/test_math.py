"""Elementary functions: accuracy, and the same bits in vector, scalar, masked and unmasked code."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

BLOCK = 1 << 12
COUNT = 1 << 20


@triton.jit
def evaluate(f: tl.constexpr, a):  # the arms are constexpr: one is compiled
    if f == "exp":
        return tl.exp(a)
    elif f == "exp2":  # noqa: RET505
        return tl.exp2(a)
    elif f == "log":
        return tl.log(a)
    elif f == "log2":
        return tl.log2(a)
    elif f == "tanh":
        return libdevice.tanh(a)
    elif f == "sin":
        return tl.sin(a)
    elif f == "cos":
        return tl.cos(a)
    elif f == "erf":
        return tl.erf(a)
    else:
        return tl.rsqrt(a)


@triton.jit
def vector(x, out, n, f: tl.constexpr, block: tl.constexpr):
    i = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(out + i, evaluate(f, tl.load(x + i, mask=i < n)), mask=i < n)


@triton.jit
def scalar(x, out, n, f: tl.constexpr):
    for i in range(n):
        tl.store(out + i, evaluate(f, tl.load(x + i)))


def inputs(function: str) -> torch.Tensor:
    bits = torch.randint(-(2**31), 2**31 - 1, (COUNT,), dtype=torch.int32)
    x = bits.view(torch.float32).clone()
    x[: COUNT // 2] = torch.randn(COUNT // 2) * 20
    x[:8] = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1.0, 1e-40, 88.7])
    return x.abs() if function in ("log", "log2", "rsqrt") else x


def ulps(got: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Error in units of the last place of the correctly rounded result (denormals count as the smallest normal)."""
    rounded = exact.to(torch.float32)
    spacing = torch.exp2((torch.frexp(rounded.abs().clamp(min=2.0**-126).double()).exponent - 24).double())
    error = (got.double() - exact).abs() / spacing
    return error[rounded.isfinite()]


@pytest.mark.parametrize(
    ("function", "bound"),
    [
        ("exp", 1.1), ("exp2", 1.1), ("log", 1.5), ("log2", 1.6), ("tanh", 2.5), ("rsqrt", 1.6), ("sin", 0.501),
        ("cos", 0.501), ("erf", 1.0),
    ],
)  # fmt: skip
def test_accuracy_and_one_set_of_bits(function: str, bound: float) -> None:
    x = inputs(function)
    exact = getattr(torch, function)(x.double())
    out = torch.empty_like(x)
    vector[(COUNT // BLOCK,)](x, out, COUNT, f=function, block=BLOCK)
    assert ulps(out, exact).max() < bound
    special = ~exact.to(torch.float32).isfinite()
    torch.testing.assert_close(out[special], exact.float()[special], rtol=0, atol=0, equal_nan=True)

    masked, one_by_one, count = torch.empty_like(x), torch.empty_like(x), 5000
    vector[(2,)](x, masked, count, f=function, block=BLOCK)
    scalar[(1,)](x, one_by_one, count, f=function)
    assert torch.equal(masked[:count].view(torch.int32), out[:count].view(torch.int32))
    assert torch.equal(one_by_one[:count].view(torch.int32), out[:count].view(torch.int32))

"""The check itself: it tells right from wrong, and a kernel from PyTorch code. Needs no library."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from tests.cpu.third_party.check import Case, run


@triton.jit
def double(x, y, n, B: tl.constexpr):
    o = tl.arange(0, B)
    tl.store(y + o, tl.load(x + o, mask=o < n) * 2, mask=o < n)


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        y = torch.full_like(x, float("nan"))
        double[(1,)](x, y, x.numel(), B=128)
        return y

    backward = forward


def outcome(kernel, reference, direction: str = "forward"):
    return run(Case("toy", "none", lambda: {"x": torch.randn(100)}, kernel, reference), direction)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_right_and_wrong(direction: str) -> None:
    good = outcome(lambda x: Double.apply(x), lambda x: x * 2, direction)
    assert (good.error, good.reason, good.kernels) == (0, "", ("double",))
    bad = outcome(lambda x: Double.apply(x), lambda x: x * 2.001, direction)
    assert bad.reason == "differs from the reference"
    assert 4e-4 < bad.error < 6e-4


def test_what_is_no_success() -> None:
    assert outcome(lambda x: x * 2, lambda x: x * 2).reason == "no Triton kernel ran"
    assert outcome(lambda x: Double.apply(x) * float("nan"), lambda x: x * 2).error == float("inf")
    assert "not (1, 100)" in outcome(lambda x: Double.apply(x), lambda x: x[None] * 2).reason
    assert outcome(lambda x: Double.apply(x, 1), lambda x: x * 2).reason.startswith("TypeError")

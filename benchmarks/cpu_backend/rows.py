"""RMSNorm and softmax of rows."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from .measure import Contest

REQUIRED = 1.5
EPS = 1e-5
NORM_SIZES = ((1, 768), (8, 768), (8, 2048), (512, 2048))
SOFTMAX_SIZES = ((96, 1024), (8, 50257))


@triton.jit
def rms_norm(x, w, y, d, eps, BLOCK: tl.constexpr):
    """One program: one row of x [rows, d], any float type; w [d]."""
    row, o = tl.program_id(0), tl.arange(0, BLOCK)
    b_x = tl.load(x + row * d + o, mask=o < d, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(b_x * b_x, axis=0) / d + eps)
    b_w = tl.load(w + o, mask=o < d, other=0.0).to(tl.float32)
    tl.store(y + row * d + o, b_x * scale * b_w, mask=o < d)


@triton.jit
def softmax(x, y, n, BLOCK: tl.constexpr):
    """One program: one row of x [rows, n] fp32. The kernel of Triton's tutorial."""
    row, o = tl.program_id(0), tl.arange(0, BLOCK)
    b_x = tl.load(x + row * n + o, mask=o < n, other=-float("inf"))
    e = tl.exp(b_x - tl.max(b_x, axis=0))
    tl.store(y + row * n + o, e / tl.sum(e, axis=0), mask=o < n)


def norm_contests() -> Iterator[Contest]:
    """bf16 rows of models with 130M and 1B parameters: one token, eight, a chunk of a prompt."""
    for rows, d in NORM_SIZES:
        x, w = torch.randn(rows, d).bfloat16(), torch.randn(d).bfloat16()
        yield _norm(x, w, torch.empty_like(x))


def _norm(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> Contest:
    rows, d = x.shape
    block = triton.next_power_of_2(d)

    def ours() -> None:
        rms_norm[(rows,)](x, w, y, d, EPS, BLOCK=block)

    def theirs() -> torch.Tensor:
        return torch.nn.functional.rms_norm(x, (d,), w, EPS)

    def check() -> None:
        ours()
        torch.testing.assert_close(y, theirs(), atol=3e-2, rtol=3e-2)

    return Contest("rms_norm bf16", f"{rows}x{d}", REQUIRED, ours, check, theirs=theirs)


def softmax_contests() -> Iterator[Contest]:
    """fp32 scores of eight slots with twelve heads, and logits of eight slots."""
    for rows, n in SOFTMAX_SIZES:
        x = torch.randn(rows, n)
        yield _softmax(x, torch.empty_like(x))


def _softmax(x: torch.Tensor, y: torch.Tensor) -> Contest:
    rows, n = x.shape
    block = triton.next_power_of_2(n)

    def ours() -> None:
        softmax[(rows,)](x, y, n, BLOCK=block)

    def theirs() -> torch.Tensor:
        return torch.softmax(x, dim=1)

    def check() -> None:
        ours()
        torch.testing.assert_close(y, theirs())

    return Contest("softmax fp32", f"{rows}x{n}", REQUIRED, ours, check, theirs=theirs)

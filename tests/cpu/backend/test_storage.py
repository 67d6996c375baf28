"""Where tensors lie: a tensor takes over the array of one that is read for the last time while it is computed."""

from __future__ import annotations

import re

import torch
import triton
import triton.language as tl

B = 1024


@triton.jit
def softmax(x, y, B: tl.constexpr):
    o = tl.arange(0, B)
    b = tl.load(x + o)
    e = tl.exp(b - tl.max(b, axis=0))
    tl.store(y + o, e / tl.sum(e, axis=0))


@triton.jit
def read_again(x, y, B: tl.constexpr):
    o = tl.arange(0, B)
    b = tl.load(x + o)
    e = tl.exp(b - tl.max(b, axis=0))
    tl.store(y + o, e / tl.sum(e, axis=0) + b)


@triton.jit
def read_transposed(x, y, R: tl.constexpr):
    o = tl.arange(0, R)
    p = o[:, None] * R + o[None, :]
    b = tl.load(x + p)
    e = tl.exp(b - tl.trans(b) - tl.max(tl.max(b, axis=1), axis=0))
    tl.store(y + p, e / tl.sum(tl.sum(e, axis=1), axis=0))


@triton.jit
def read_in_a_loop(x, y, rounds, B: tl.constexpr):
    o = tl.arange(0, B)
    b = tl.load(x + o)
    acc = tl.zeros((B,), tl.float32)
    for i in range(rounds):
        e = tl.exp(b - tl.max(b, axis=0) - i)
        acc += e / tl.sum(e, axis=0)
    tl.store(y + o, acc)


def arrays(compiled) -> int:
    """Local arrays of at least B floats in the C source."""
    sizes = [int(size) for size in re.findall(r"^float \w+\[(\d+)\]", compiled.asm["c"], re.MULTILINE)]
    return sum(size >= B for size in sizes)


def test_softmax_needs_one_array() -> None:
    x, y = torch.randn(B), torch.empty(B)
    assert arrays(softmax[(1,)](x, y, B=B)) == 1
    torch.testing.assert_close(y, x.softmax(0))


def test_what_is_read_later_is_kept() -> None:
    x, y = torch.randn(B), torch.empty(B)
    assert arrays(read_again[(1,)](x, y, B=B)) == 2
    torch.testing.assert_close(y, x.softmax(0) + x)


def test_what_is_read_at_another_element_is_kept() -> None:
    x, y = torch.randn(32, 32), torch.empty(32, 32)
    assert arrays(read_transposed[(1,)](x, y, R=32)) == 2
    e = torch.exp(x - x.t() - x.max())
    torch.testing.assert_close(y, e / e.sum())


def test_what_the_next_iteration_reads_is_kept() -> None:
    x, y = torch.randn(B), torch.empty(B)
    read_in_a_loop[(1,)](x, y, 3, B=B)
    torch.testing.assert_close(y, 3 * x.softmax(0))


def test_large_tensors_share_an_arena() -> None:
    big = 1 << 16
    x, y = torch.randn(big), torch.empty(big)
    source = softmax[(1,)](x, y, B=big).asm["c"]
    assert f"aligned_alloc(64, {4 * big})" in source
    torch.testing.assert_close(y, x.softmax(0))

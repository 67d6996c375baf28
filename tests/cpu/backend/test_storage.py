"""Where tensors lie: a tensor takes over the array of one that is read for the last time while it is computed."""

from __future__ import annotations

import re

import pytest
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


@triton.jit
def weights_of_rows(x, top, y, SCALE: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    o_m, o = tl.arange(0, M), tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    scores = tl.load(x + o)
    tops = tl.max(scores, axis=1)
    tl.store(top + o_m, tops)
    tl.store(y + o, tl.exp2((scores if SCALE is None else scores * SCALE) - tops[:, None]))


@pytest.mark.parametrize("scale", [None, 0.18033688])
@pytest.mark.parametrize("columns", [64, 128])
def test_a_matrix_less_a_number_per_row_is_one_pass(scale: float | None, columns: int) -> None:
    """With the bits of each row alone."""
    x = torch.randn(8, columns) * 5
    x[3, 5] = float("inf")
    top, y, alone = torch.empty(8), torch.empty(8, columns), torch.empty(8, columns)
    source = weights_of_rows[(1,)](x, top, y, SCALE=scale, M=8, N=columns).asm["c"]
    assert source.count("cp_exp2_f32_rows(") == 1
    for row in range(8):
        weights_of_rows[(1,)](x[row], top, alone[row], SCALE=scale, M=1, N=columns)
    assert torch.equal(y.view(torch.int32), alone.view(torch.int32))
    finite = [row for row in range(8) if row != 3]
    exponents = x[finite] * (scale or 1.0) - x[finite].amax(1, keepdim=True)
    torch.testing.assert_close(y[finite], torch.exp2(exponents), rtol=1e-5, atol=0.0)


@triton.jit
def gate_of_rows(x, z, y, M: tl.constexpr, N: tl.constexpr):
    o = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    b_x = tl.load(x + o)
    tl.store(y + o, b_x / (1.0 + tl.exp(-b_x)) * tl.load(z + o))


@pytest.mark.parametrize(("rows", "columns", "whole"), [(8, 64, True), (8, 32, False), (128, 64, False)])
def test_exp_of_a_small_matrix_is_computed_as_an_array(rows: int, columns: int, whole: bool) -> None:
    x, z, y = torch.randn(rows, columns), torch.randn(rows, columns), torch.empty(rows, columns)
    source = gate_of_rows[(1,)](x, z, y, M=rows, N=columns).asm["c"]
    assert ("cp_exp_f32_array(" in source) is whole
    torch.testing.assert_close(y, torch.nn.functional.silu(x) * z, rtol=1e-5, atol=1e-6)

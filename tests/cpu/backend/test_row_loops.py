"""Loops over pieces of rows run row after row (analysis/row_loops.py), same bits; what streams fetches ahead."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from runtime.cpu.analysis.placement import Placement
from runtime.cpu.ttir.inline import inline_calls
from runtime.cpu.ttir.parser import parse_module

R, C = 8, 64
BY_ROWS = "for (int row"


@triton.jit(do_not_specialize=["k"])
def two_sums(w, x, sums, products, k, stride, R: tl.constexpr, C: tl.constexpr):
    """Two carried matrices, the second fed by the first of the round before; masked, any row stride."""
    o_r, o_c = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, C)
    a, b = tl.zeros((R, C), tl.float32), tl.full((R, C), 1.0, tl.float32)
    for i in range(0, k, C):
        m = i + o_c < k
        b_x = tl.load(x + i + o_c, mask=m, other=0.0).to(tl.float32)
        b_w = tl.load(w + o_r[:, None] * stride + i + o_c[None, :], mask=m[None, :], other=0.0).to(tl.float32)
        a, b = a + b_w * b_x[None, :], b * 0.5 + a
    tl.store(sums + o_r[:, None] * C + o_c[None, :], a)
    tl.store(products + o_r[:, None] * C + o_c[None, :], b)


@pytest.mark.parametrize("k", [0, 1, 63, 64, 65, 500])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_bits_are_those_of_the_loop_as_written(k: int, dtype: torch.dtype) -> None:
    w, x = torch.randn(2 * R, k + 3).to(dtype), torch.randn(k).to(dtype)
    got = torch.empty(2, 2 * R, C)
    kernel = two_sums[(2,)](w, x, got[0], got[1], k, w.stride(0), R=R, C=C)
    assert BY_ROWS in kernel.asm["c"]
    a, b = np.zeros((2 * R, C), np.float32), np.ones((2 * R, C), np.float32)
    for i in range(0, k, C):
        piece = np.zeros((2 * R, C), np.float32), np.zeros(C, np.float32)
        width = min(C, k - i)
        piece[0][:, :width], piece[1][:width] = w[:, i : i + width].float(), x[i : i + width].float()
        a, b = a + piece[0] * piece[1], b * np.float32(0.5) + a
    assert np.array_equal(got[0].numpy(), a)
    assert np.array_equal(got[1].numpy(), b)


@triton.jit
def swapped(w, y, z, k, R: tl.constexpr, C: tl.constexpr):
    """Carried matrices change places, pointers walk."""
    o = tl.arange(0, R)[:, None] * k + tl.arange(0, C)[None, :]
    p, a, b = w + o, tl.zeros((R, C), tl.int32), tl.full((R, C), 7, tl.int32)
    for _ in range(0, k, C):
        a, b = b, a * 3 + tl.load(p)
        p += C
    tl.store(y + tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :], a)
    tl.store(z + tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :], b)


def test_every_row_starts_with_the_first_piece() -> None:
    k = 5 * C
    w, y, z = torch.randint(-99, 99, (R, k)).int(), torch.empty(R, C).int(), torch.empty(R, C).int()
    assert BY_ROWS in swapped[(1,)](w, y, z, k, R=R, C=C).asm["c"]
    a, b = torch.zeros(R, C).int(), torch.full((R, C), 7).int()
    for i in range(0, k, C):
        a, b = b, a * 3 + w[:, i : i + C]
    assert torch.equal(y, a)
    assert torch.equal(z, b)


@triton.jit
def mixed_rows(w, y, k, R: tl.constexpr):
    """The column mean of all rows goes into every row: rows cannot be taken one after another."""
    o = tl.arange(0, R)[:, None] * k + tl.arange(0, R)[None, :]
    a = tl.zeros((R, R), tl.float32)
    for i in range(0, k, R):
        a = a * 0.5 + tl.trans(a) + tl.load(w + o + i)
    tl.store(y + tl.arange(0, R)[:, None] * R + tl.arange(0, R)[None, :], a)


@triton.jit
def stores_too(w, y, log, k, R: tl.constexpr, C: tl.constexpr):
    """Every round stores: the order of rounds is seen outside."""
    o = tl.arange(0, R)[:, None] * k + tl.arange(0, C)[None, :]
    a = tl.zeros((R, C), tl.float32)
    for i in range(0, k, C):
        a += tl.load(w + o + i)
        tl.store(log + i + tl.arange(0, R)[:, None] * 0 + tl.arange(0, C)[None, :], a)
    tl.store(y + tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :], a)


def test_rows_that_depend_on_each_other_stay_together() -> None:
    w, y = torch.randn(R, 4 * R), torch.empty(R, R)
    assert BY_ROWS not in mixed_rows[(1,)](w, y, 4 * R, R=R).asm["c"]
    a = torch.zeros(R, R)
    for i in range(0, 4 * R, R):
        a = a * 0.5 + a.t() + w[:, i : i + R]
    assert torch.equal(y, a)


def test_rounds_with_stores_stay_in_order() -> None:
    w, y, log = torch.randn(R, 3 * C), torch.empty(R, C), torch.zeros(3 * C)
    assert BY_ROWS not in stores_too[(1,)](w, y, log, 3 * C, R=R, C=C).asm["c"]
    torch.testing.assert_close(y, w.reshape(R, 3, C).sum(1))


# ---- what is fetched ahead


@triton.jit
def piecewise_dot(w, x, y, K: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """A reduction in every round keeps the loop as it is."""
    o_r, o_c = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, C)
    a = tl.zeros((R,), tl.float32)
    for i in range(0, K, C):
        b_w = tl.load(w + o_r[:, None] * K + i + o_c[None, :]).to(tl.float32)
        a += tl.sum(b_w * tl.load(x + i + o_c).to(tl.float32)[None, :], axis=1)
    tl.store(y + o_r, a)


def test_a_program_fetches_what_the_next_one_reads() -> None:
    """Every byte of the next program's block once, in ascending order."""
    k = 8 * C
    w, x, y = torch.randn(3 * R, k).bfloat16(), torch.randn(k).bfloat16(), torch.empty(3 * R)
    kernel = piecewise_dot[(3,)](w, x, y, K=k, R=R, C=C)
    torch.testing.assert_close(y, w.float() @ x.float(), atol=1e-3, rtol=1e-3)
    function = inline_calls(parse_module(kernel.asm["ttir"]))
    found = Placement(function).prefetch
    (ahead,) = [ahead for load, ahead in found.items() if load.result.type.dims == (R, C)]
    assert ahead.loop is not None
    row, piece = 2 * k, 2 * C
    fetched = [
        number * piece + i * row + ahead.bytes + number * ahead.per_round + i * ahead.per_row
        for number in range(k // C) for i in range(R)
    ]  # fmt: skip
    assert fetched == list(range(R * row, 2 * R * row, piece))


def test_gaps_between_rows_are_not_fetched_as_one_block() -> None:
    k = 8 * C
    w, x, y = torch.randn(3 * R, k), torch.randn(k), torch.empty(3 * R)
    gaps = piecewise_dot_with_gaps[(3,)](w, x, y, k - C, K=k, R=R, C=C)
    function = inline_calls(parse_module(gaps.asm["ttir"]))
    assert all(ahead.loop is None for ahead in Placement(function).prefetch.values())
    torch.testing.assert_close(y, w[:, : k - C] @ x[: k - C], atol=1e-3, rtol=1e-3)


@triton.jit
def piecewise_dot_with_gaps(w, x, y, k, K: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    o_r, o_c = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, C)
    a = tl.zeros((R,), tl.float32)
    for i in range(0, k, C):
        a += tl.sum(tl.load(w + o_r[:, None] * K + i + o_c[None, :]) * tl.load(x + i + o_c)[None, :], axis=1)
    tl.store(y + o_r, a)

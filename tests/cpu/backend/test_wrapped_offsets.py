"""Pointers of `offsets % n` and of tables, advanced in a loop: inductions from stored offsets."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from dot_oracle import same_bits


@triton.jit
def matmul(
    a, b, c, M, N, K, s_am, s_ak, s_bk, s_bn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # C [M, N] fp32, as in Triton's tutorial: rows and columns wrap around
    i_m, i_n, o_k = tl.program_id(0), tl.program_id(1), tl.arange(0, BK)
    o_m, o_n = (i_m * BM + tl.arange(0, BM)) % M, (i_n * BN + tl.arange(0, BN)) % N
    p_a = a + (o_m[:, None] * s_am + o_k[None, :] * s_ak)
    p_b = b + (o_k[:, None] * s_bk + o_n[None, :] * s_bn)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(tl.cdiv(K, BK)):
        b_a = tl.load(p_a, mask=o_k[None, :] < K - k * BK, other=0.0)
        b_b = tl.load(p_b, mask=o_k[:, None] < K - k * BK, other=0.0)
        acc = tl.dot(b_a, b_b, acc)
        p_a += BK * s_ak
        p_b += BK * s_bk
    r_m, r_n = i_m * BM + tl.arange(0, BM), i_n * BN + tl.arange(0, BN)
    tl.store(c + r_m[:, None] * N + r_n[None, :], acc, mask=(r_m[:, None] < M) & (r_n[None, :] < N))


@triton.jit
def rotate(x, y, n, start, steps, B: tl.constexpr):
    """y[i] = sum over s of x[(start + i) % n + s]; the offsets are carried, too."""
    o = (start + tl.arange(0, B)) % n
    p, acc = x + o, tl.zeros((B,), tl.float32)
    for _ in range(steps):
        acc += tl.load(p) + o.to(tl.float32)
        p += 1
        o = o * 2 - o + 1
    tl.store(y + tl.arange(0, B), acc)


@triton.jit
def gather_rows(x, table, y, d, B: tl.constexpr, BD: tl.constexpr):
    """y[i] = sum of row table[i] of x [rows, d]."""
    p = x + tl.load(table + tl.arange(0, B))[:, None] * d + tl.arange(0, BD)[None, :]
    acc = tl.zeros((B, BD), tl.float32)
    for _ in range(0, d, BD):
        acc += tl.load(p)
        p += BD
    tl.store(y + tl.arange(0, B), tl.sum(acc, axis=1))


SHAPES = [(64, 64, 64), (70, 64, 64), (64, 70, 40), (33, 97, 50), (1, 1, 1), (5, 200, 130), (130, 3, 7)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_tutorial_matmul(m: int, n: int, k: int, dtype: torch.dtype) -> None:
    a, b = torch.randint(-8, 9, (m, k)).to(dtype), torch.randint(-8, 9, (k, n)).to(dtype)
    results = []
    for left in (a, a.t().contiguous().t()):
        for right in (b, b.t().contiguous().t()):
            c = torch.full((m, n), float("nan"))
            matmul[(triton.cdiv(m, 32), triton.cdiv(n, 64))](
                left, right, c, m, n, k, *left.stride(), *right.stride(), BM=32, BN=64, BK=32
            )
            results.append(c)
    exact = (a.double() @ b.double()).float()  # integers: every order gives the same
    assert all(torch.equal(c, exact) for c in results)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_layouts_of_operands_do_not_change_bits(dtype: torch.dtype) -> None:
    a, b = torch.randn(48, 96).to(dtype), torch.randn(96, 80).to(dtype)
    results = []
    for right in (b, b.t().contiguous().t()):
        c = torch.empty(48, 80)
        matmul[(2, 2)](a, right, c, 48, 80, 96, *a.stride(), *right.stride(), BM=32, BN=64, BK=32)
        results.append(c)
    assert same_bits(*results)


@pytest.mark.parametrize("start", [0, 5, 60, 63, 64, 100, 191])
def test_offsets_that_wrap_at_any_place(start: int) -> None:
    x, y, steps = torch.randint(-9, 9, (80,)).float(), torch.empty(32), 7
    rotate[(1,)](x, y, 64, start, steps, B=32)
    o = (start + torch.arange(32)) % 64
    expected = sum(x[o + s] + (o + s).float() for s in range(steps))
    assert torch.equal(y, expected)


def test_rows_of_a_table() -> None:
    x, table, y = (
        torch.randint(-9, 9, (50, 96)).float(),
        torch.randint(0, 50, (16,), dtype=torch.int32),
        torch.empty(16),
    )
    compiled = gather_rows[(1,)](x, table, y, 96, B=16, BD=32)
    assert torch.equal(y, x[table.long()].sum(1))
    assert "float* p" not in compiled.asm["c"].replace("float* const", ""), "no array of pointers"


@triton.jit
def overwrite_then_multiply(a, b, c, B: tl.constexpr, OVERWRITE: tl.constexpr):
    o = tl.arange(0, B)
    p = o[:, None] * B + o[None, :]
    left, right = tl.load(a + p), tl.load(b + p)
    if OVERWRITE:
        tl.store(a + p, tl.zeros((B, B), tl.bfloat16))
    tl.store(c + p, tl.dot(left, right))


@pytest.mark.parametrize("overwrite", [False, True])
def test_left_operand_is_read_where_it_lies_unless_that_changes(overwrite: bool) -> None:
    a, b = (torch.randint(-8, 9, (32, 32)).bfloat16() for _ in range(2))
    expected, c = a.float() @ b.float(), torch.empty(32, 32)
    compiled = overwrite_then_multiply[(1,)](a, b, c, B=32, OVERWRITE=overwrite)
    assert torch.equal(c, expected)
    assert ("const uint16_t *left" in compiled.asm["c"]) is not overwrite


@triton.jit
def one_row(x, w, y, K: tl.constexpr, N: tl.constexpr):
    b_x = tl.load(x + tl.arange(0, K))[None, :]
    b_w = tl.load(w + tl.arange(0, K)[:, None] * N + tl.arange(0, N)[None, :])
    tl.store(y + tl.arange(0, N)[None, :], tl.dot(b_x, b_w))


@pytest.mark.parametrize("k", [1, 2, 64])
def test_one_row_at_the_end_of_memory(k: int) -> None:
    """Nothing after the row is touched, though the distance to a second row is asked for."""
    x, w, y = torch.randint(-8, 9, (k,)).bfloat16(), torch.randint(-8, 9, (k, 32)).bfloat16(), torch.empty(1, 32)
    one_row[(1,)](x, w, y, K=k, N=32)
    assert torch.equal(y, x.float()[None] @ w.float())

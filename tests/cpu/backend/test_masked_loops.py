"""Loops cut where a mask ends (emit/split.py): every length, several comparisons, nothing outside touched."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

BLOCK = 128
LENGTHS = (0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 200, 255, 256, 300)
GUARD = -77.0


@triton.jit
def shift(x, y, n, low, kind: tl.constexpr, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK) + low
    if kind == "<":
        m = o < n
    elif kind == "<=":
        m = o <= n - 1
    elif kind == ">":
        m = n > o
    else:
        m = n - 1 >= o
    b = tl.load(x + o, mask=m, other=5.0)
    tl.store(y + o, tl.where(m, b + 1.0, 9.0), mask=m)


@triton.jit
def others(x, y, n, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    m = o < n
    tl.store(y + o, tl.where(m, tl.load(x + o, mask=m, other=5.0), -1.0) + tl.load(x + o, mask=m, other=3.0))


@triton.jit
def square(x, y, n, B: tl.constexpr):
    o = tl.arange(0, B)
    m = o < n
    both = m[:, None] & m[None, :]
    tl.store(y + o[:, None] * B + o[None, :], tl.load(x + o[:, None] * B + o[None, :], mask=both, other=7.0))


@triton.jit
def rectangle(x, y, rows, columns, B: tl.constexpr):
    r, c = tl.arange(0, B), tl.arange(0, B)
    m = (r[:, None] < rows) & (c[None, :] < columns)
    tl.store(y + r[:, None] * B + c[None, :], tl.load(x + r[:, None] * B + c[None, :], mask=m, other=7.0))


@triton.jit
def flat_mask(x, y, n, B: tl.constexpr):
    o = tl.arange(0, B)[:, None] * B + tl.arange(0, B)[None, :]
    tl.store(y + o, tl.load(x + o, mask=o < n, other=7.0), mask=o < n)


@pytest.mark.parametrize("kind", ["<", "<=", ">", ">="])
@pytest.mark.parametrize("low", [0, 3])
def test_every_length(kind: str, low: int) -> None:
    for n in LENGTHS:
        x, y = torch.randn(400), torch.full((400,), GUARD)
        shift[(3,)](x, y, n, low, kind=kind, BLOCK=BLOCK)
        expected = torch.full((400,), GUARD)
        expected[low:n] = x[low:n] + 1.0
        assert torch.equal(y, expected), n


def test_what_the_mask_leaves_out_has_the_other_value() -> None:
    for n in LENGTHS:
        x, y = torch.randn(BLOCK), torch.empty(BLOCK)
        others[(1,)](x, y, n, BLOCK=BLOCK)
        inside = torch.arange(BLOCK) < n
        assert torch.equal(y, torch.where(inside, x + x, torch.tensor(2.0))), n


@pytest.mark.parametrize("n", [0, 1, 31, 40, 63, 64, 70])
def test_one_mask_for_rows_and_columns(n: int) -> None:
    x, y = torch.randn(64, 64), torch.empty(64, 64)
    square[(1,)](x, y, n, B=64)
    expected = torch.full_like(x, 7.0)
    expected[:n, :n] = x[:n, :n]
    assert torch.equal(y, expected)


@pytest.mark.parametrize(("rows", "columns"), [(64, 40), (40, 64), (0, 5), (5, 0), (33, 1), (64, 64), (1, 33)])
def test_rows_and_columns(rows: int, columns: int) -> None:
    x, y = torch.randn(64, 64), torch.empty(64, 64)
    rectangle[(1,)](x, y, rows, columns, B=64)
    expected = torch.full_like(x, 7.0)
    expected[:rows, :columns] = x[:rows, :columns]
    assert torch.equal(y, expected)


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 1000, 4095, 4096])
def test_a_mask_over_rows_that_follow_each_other(n: int) -> None:
    x, y = torch.randn(64, 64), torch.full((64, 64), GUARD)
    flat_mask[(1,)](x, y, n, B=64)
    inside = torch.arange(4096).view(64, 64) < n
    assert torch.equal(y, torch.where(inside, x, torch.tensor(GUARD)))


def test_the_loop_is_really_cut() -> None:
    x, y = torch.randn(400), torch.empty(400)
    compiled = shift[(1,)](x, y, 100, 0, kind="<", BLOCK=BLOCK)
    assert "cp_reach(" in compiled.asm["c"]


@triton.jit
def far(x, y, low, high, inclusive: tl.constexpr, B: tl.constexpr):
    """Marks which of the numbers low, low + 1, .. are below high, in 64 bits."""
    o = tl.arange(0, B)
    number = low + o.to(tl.int64)
    m = number <= high if inclusive else number < high
    tl.store(y + o, tl.load(x + o, mask=m, other=0), mask=o >= 0)


@pytest.mark.parametrize("inclusive", [False, True])
def test_bounds_at_the_ends_of_64_bits(inclusive: bool) -> None:
    top, bottom = 2**63 - 1, -(2**63)
    x = torch.ones(BLOCK, dtype=torch.int32)
    for low, high in [
        (0, top),
        (bottom, top),
        (bottom, bottom),
        (bottom, 0),
        (bottom, bottom + 40),
        (top - BLOCK, top),
    ]:
        y = torch.full((BLOCK,), -1, dtype=torch.int32)
        far[(1,)](x, y, low, high, inclusive=inclusive, B=BLOCK)
        numbers = [low + k for k in range(BLOCK)]
        expected = [int(n <= high if inclusive else n < high) for n in numbers]
        assert y.tolist() == expected, (low, high)

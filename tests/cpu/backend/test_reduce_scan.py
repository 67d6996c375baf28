"""Reductions and scans: values, combine functions of several operands, and the order of accumulation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl


@triton.jit
def reductions(x, out_row, out_col, arg, A: tl.constexpr, B: tl.constexpr):
    o_a, o_b = tl.arange(0, A), tl.arange(0, B)
    v = tl.load(x + o_a[:, None] * B + o_b[None, :])
    tl.store(out_row + o_a, tl.sum(v, axis=1))
    tl.store(out_row + A + o_a, tl.max(v, axis=1))
    tl.store(out_row + 2 * A + o_a, tl.min(v, axis=1))
    tl.store(out_col + o_b, tl.sum(v, axis=0))
    tl.store(out_col + B + o_b, tl.max(v, axis=0))
    tl.store(out_col + 2 * B + o_b, tl.sum(v * tl.load(x + o_a)[:, None], axis=0))
    tl.store(arg + o_a, tl.argmax(v, axis=1))
    tl.store(arg + A + o_b, tl.argmin(v, axis=0))


@pytest.mark.parametrize(("A", "B"), [(1, 16), (4, 64), (16, 256), (64, 2), (2, 128)])
def test_two_dimensions(A: int, B: int) -> None:
    x = torch.randn(A, B)
    rows, columns, arg = torch.empty(3, A), torch.empty(3, B), torch.empty(A + B, dtype=torch.int32)
    reductions[(1,)](x, rows, columns, arg, A=A, B=B)
    weighted = (x * x.flatten()[:A, None]).sum(0)
    torch.testing.assert_close(rows, torch.stack([x.sum(1), x.amax(1), x.amin(1)]), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(columns, torch.stack([x.sum(0), x.amax(0), weighted]), rtol=1e-5, atol=1e-5)
    assert torch.equal(arg[:A].long(), x.argmax(1))
    assert torch.equal(arg[A:].long(), x.argmin(0))


@triton.jit
def row_sums(x, out, n, B: tl.constexpr):
    o = tl.arange(0, B)
    row = tl.program_id(0)
    tl.store(out + row, tl.sum(tl.load(x + row * n + o, mask=o < n, other=0.0), axis=0))


@triton.jit
def tile_sums(x, out, A: tl.constexpr, B: tl.constexpr):
    o_a, o_b = tl.arange(0, A), tl.arange(0, B)
    tl.store(out + o_a, tl.sum(tl.load(x + o_a[:, None] * B + o_b[None, :]), axis=1))


def lane_order(row: np.ndarray) -> np.float32:
    """The documented order: up to 64 lanes ascending, then halves of the lanes."""
    lanes = min(len(row), 64)
    acc = row[:lanes].copy()
    for start in range(lanes, len(row), lanes):
        acc = acc + row[start : start + lanes]
    while len(acc) > 1:
        acc = acc[: len(acc) // 2] + acc[len(acc) // 2 :]
    return acc[0]


@pytest.mark.parametrize("B", [8, 64, 256, 2048])
def test_the_order_of_a_sum_is_the_documented_one(B: int) -> None:
    x = torch.randn(8, B)
    expected = torch.tensor([lane_order(row) for row in x.numpy()])
    alone, tile = torch.empty(8), torch.empty(8)
    row_sums[(8,)](x, alone, B, B=B)
    tile_sums[(1,)](x, tile, A=8, B=B)
    assert torch.equal(alone, expected)
    assert torch.equal(tile, expected)


def test_masked_and_unmasked_tails_agree() -> None:
    x = torch.randn(4, 200)
    padded = torch.nn.functional.pad(x, (0, 56)).contiguous()
    masked, full = torch.empty(4), torch.empty(4)
    row_sums[(4,)](x, masked, 200, B=256)
    row_sums[(4,)](padded, full, 256, B=256)
    assert torch.equal(masked, full)


@triton.jit
def three_dimensions(x, mid, last, both, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
    a, b, c = tl.arange(0, A), tl.arange(0, B), tl.arange(0, C)
    v = tl.load(x + a[:, None, None] * (B * C) + b[None, :, None] * C + c[None, None, :])
    tl.store(mid + a[:, None] * C + c[None, :], tl.sum(v, axis=1))
    tl.store(last + a[:, None] * B + b[None, :], tl.sum(v, axis=2))
    tl.store(both + b, tl.max(tl.max(v, axis=2), axis=0))


def test_three_dimensions() -> None:
    x = torch.randn(4, 8, 32)
    mid, last, both = torch.empty(4, 32), torch.empty(4, 8), torch.empty(8)
    three_dimensions[(1,)](x, mid, last, both, A=4, B=8, C=32)
    torch.testing.assert_close(mid, x.sum(1))
    torch.testing.assert_close(last, x.sum(2))
    assert torch.equal(both, x.amax((0, 2)))


@triton.jit
def with_nan(x, out, B: tl.constexpr):
    v = tl.load(x + tl.arange(0, B))
    tl.store(out, tl.max(v, axis=0))
    tl.store(out + 1, tl.min(v, axis=0))


def test_maximum_and_minimum_ignore_nan() -> None:
    x, out = torch.randn(128), torch.empty(2)
    x[::3] = float("nan")
    with_nan[(1,)](x, out, B=128)
    assert out.tolist() == [x[~x.isnan()].max().item(), x[~x.isnan()].min().item()]


@triton.jit
def ties(x, out, B: tl.constexpr):
    tl.store(out, tl.argmax(tl.load(x + tl.arange(0, B)), axis=0))


@triton.jit
def half_of_larger(a, b):
    return tl.maximum(a, b) * 0.5


@triton.jit
def twice_the_first(a, b):
    return a + a


@triton.jit
def smaller_with_both(a, b):
    return tl.minimum(b, a) + a * 0.125


@triton.jit
def fold(x, axis: tl.constexpr, f: tl.constexpr):
    if f == "half_of_larger":
        return tl.reduce(x, axis, half_of_larger)
    elif f == "twice_the_first":  # noqa: RET505
        return tl.reduce(x, axis, twice_the_first)
    else:
        return tl.reduce(x, axis, smaller_with_both)


@triton.jit
def folds(x, out, n, f: tl.constexpr, B: tl.constexpr):
    o = tl.arange(0, B)
    row = tl.load(x + o)
    tl.store(out, fold(tl.load(x + o, mask=o < n, other=0.5), 0, f))
    tl.store(out + 1, fold(row, 0, f))
    tl.store(out + 2 + tl.arange(0, 1), fold(row[None, :], 1, f))
    tl.store(out + 3 + tl.arange(0, 1), fold(row[:, None], 0, f))


FOLDS = {
    "half_of_larger": lambda a, b: np.maximum(a, b) * np.float32(0.5),
    "twice_the_first": lambda a, b: a + a,
    "smaller_with_both": lambda a, b: np.minimum(b, a) + a * np.float32(0.125),
}


@pytest.mark.parametrize("f", FOLDS)
@pytest.mark.parametrize("n", [70, 256])
def test_a_combine_function_that_begins_like_a_maximum_or_a_sum(f: str, n: int) -> None:
    """It has the stated order, and all of it counts: `combine(what came before, element)`."""
    x, out = torch.randn(256), torch.empty(4)
    folds[(1,)](x, out, n, f=f, B=256)
    masked = x.clone()
    masked[n:] = 0.5

    def folded(row: np.ndarray, lanes: int) -> np.float32:
        held = row[:lanes]
        for start in range(lanes, len(row), lanes):
            held = FOLDS[f](held, row[start : start + lanes])
        while len(held) > 1:
            held = FOLDS[f](held[: len(held) // 2], held[len(held) // 2 :])
        return held[0]

    with np.errstate(over="ignore"):
        whole = folded(x.numpy(), 64)
        expected = [folded(masked.numpy(), 64), whole, whole, whole]
    assert out.numpy().tolist() == expected


def test_ties_go_to_the_lowest_index() -> None:
    out = torch.empty(1, dtype=torch.int32)
    for first, second in ((3, 200), (64, 65), (0, 511), (100, 300)):
        x = torch.zeros(512)
        x[first] = x[second] = 1.0
        ties[(1,)](x, out, B=512)
        assert out.item() == first


@triton.jit
def affine(a1, b1, a2, b2):
    return a1 * a2, b1 * a2 + b2


@triton.jit
def scans(decay, x, out, T: tl.constexpr, C: tl.constexpr):
    t, c = tl.arange(0, T), tl.arange(0, C)
    o = t[:, None] * C + c[None, :]
    v = tl.load(x + o)
    tl.store(out + o, tl.cumsum(v, axis=0))
    tl.store(out + T * C + o, tl.cumsum(v, axis=1, reverse=True))
    _, h = tl.associative_scan((tl.load(decay + o), v), 0, affine)
    tl.store(out + 2 * T * C + o, h)


def test_scans() -> None:
    decay, x, out = torch.rand(16, 32), torch.randn(16, 32), torch.empty(3, 16, 32)
    scans[(1,)](decay, x, out, T=16, C=32)
    torch.testing.assert_close(out[0], x.cumsum(0), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out[1], x.flip(1).cumsum(1).flip(1), rtol=1e-5, atol=1e-5)
    h = torch.zeros(32)
    for t in range(16):
        h = h * decay[t] + x[t]
        assert torch.equal(out[2, t], h)


@triton.jit
def keep_nearer(a, i, b, j):
    """Of two (value, index) pairs the one with the smaller remainder, found by loops and branches."""
    if i == j:
        return a, i
    left, right = a % 10, b % 10
    while left > 5:
        left -= 5
    if right > 5:
        for _ in range(2):
            if right > 5:
                right -= 5
    if left <= right:
        return a, i
    return b, j


@triton.jit
def branching_combine(x, out, A: tl.constexpr, B: tl.constexpr):
    a, b = tl.arange(0, A), tl.arange(0, B)
    v = tl.load(x + a[:, None] * B + b[None, :])
    index = tl.zeros((A, B), tl.int32) + b[None, :]
    value, at = tl.reduce((v, index), 1, keep_nearer)
    tl.store(out + a, value)
    tl.store(out + A + a, at)


def test_a_combine_function_may_branch_and_loop() -> None:
    x, out = torch.randint(0, 1000, (8, 32), dtype=torch.int32), torch.empty(2, 8, dtype=torch.int32)
    branching_combine[(1,)](x, out, A=8, B=32)
    rest = x % 10
    distance = torch.where(rest > 5, rest - 5, rest)
    assert torch.equal(out[0], x.gather(1, out[1].long()[:, None])[:, 0])
    assert torch.equal(distance.gather(1, out[1].long()[:, None])[:, 0], distance.amin(1))


@triton.jit
def multiply(a, b):
    return a * b


@triton.jit
def either(a, b):
    return a | b


@triton.jit
def integer_reductions(x, out, A: tl.constexpr, B: tl.constexpr):
    a, b = tl.arange(0, A), tl.arange(0, B)
    v = tl.load(x + a[:, None] * B + b[None, :])
    tl.store(out + a, tl.reduce(v, 1, multiply))
    tl.store(out + A + a, tl.reduce(v, 1, either))
    tl.store(out + 2 * A + a, tl.xor_sum(v, axis=1))
    tl.store(out + 3 * A + a, tl.max(v, axis=1).to(v.dtype))
    tl.store(out + 4 * A + a, tl.min(v, axis=1).to(v.dtype))
    tl.store(out + 5 * A + a, tl.sum(v, axis=1).to(v.dtype))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_integer_reductions(dtype: torch.dtype) -> None:
    x = torch.randint(-100, 100, (4, 16), dtype=dtype)
    out = torch.empty(6, 4, dtype=dtype)
    integer_reductions[(1,)](x, out, A=4, B=16)
    v = x.numpy()
    with np.errstate(all="ignore"):
        expected = [
            np.multiply.reduce(v, 1, dtype=v.dtype), np.bitwise_or.reduce(v, 1), np.bitwise_xor.reduce(v, 1),
            v.max(1), v.min(1), v.sum(1, dtype=v.dtype),
        ]  # fmt: skip
    for k, value in enumerate(expected):
        assert np.array_equal(out[k].numpy(), value), f"row {k}"


@triton.jit
def float_reductions(x, out, A: tl.constexpr, B: tl.constexpr):
    a, b = tl.arange(0, A), tl.arange(0, B)
    v = tl.load(x + a[:, None] * B + b[None, :])
    tl.store(out + a, tl.sum(v, axis=1))
    tl.store(out + A + a, tl.max(v, axis=1))
    tl.store(out + 2 * A + a, tl.min(v, axis=1))
    tl.store(out + 3 * A + a, tl.reduce(v, 1, multiply))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_float_reductions(dtype: torch.dtype) -> None:
    x, out = (torch.randint(-8, 9, (4, 16)) / 8).to(dtype), torch.empty(4, 4, dtype=dtype)
    float_reductions[(1,)](x, out, A=4, B=16)
    assert torch.equal(out[:3], torch.stack([x.sum(1), x.amax(1), x.amin(1)]))
    torch.testing.assert_close(out[3].double(), x.double().prod(1), rtol=0.1, atol=1e-4)


@triton.jit
def larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def more_scans(x, out, T: tl.constexpr, C: tl.constexpr):
    t, c = tl.arange(0, T), tl.arange(0, C)
    o = t[:, None] * C + c[None, :]
    v = tl.load(x + o)
    tl.store(out + o, tl.cumprod(v, axis=1))
    tl.store(out + T * C + o, tl.associative_scan(v, 0, larger, reverse=True))
    tl.store(out + 2 * T * C + o, tl.cumsum(v, axis=0, dtype=tl.float32).to(v.dtype))


@pytest.mark.parametrize("dtype", [torch.int32, torch.float64, torch.float32], ids=str)
def test_scans_of_other_kinds(dtype: torch.dtype) -> None:
    x, out = torch.randint(1, 3, (8, 16)).to(dtype), torch.empty(3, 8, 16, dtype=dtype)
    more_scans[(1,)](x, out, T=8, C=16)
    assert torch.equal(out[0], x.cumprod(1).to(dtype))
    assert torch.equal(out[1], x.flip(0).cummax(0).values.flip(0))
    assert torch.equal(out[2], x.cumsum(0).to(dtype))

"""Rows that end where their mask does (analysis/tails.py): the bits of the padded row, reduced in the stated order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

BLOCK = 512
LANES = 64
LENGTHS = (0, 1, 63, 64, 65, 127, 128, 200, 320, 447, 448, 449, 511, 512, 700)
GUARD = -77.0
SPECIAL = (0.0, -0.0, float("inf"), -float("inf"), float("nan"), 3.4e38, -3.4e38, 1e-45)


def padded(x: torch.Tensor, n: int, other: float) -> np.ndarray:
    row = x[:BLOCK].clone()
    row[n:] = other
    return row.numpy()


def reduced(row, combine):
    """Lanes of 64 ascending, then pairwise: emit/reduce.py. Of equal zeros a lane keeps the earlier."""
    with np.errstate(all="ignore"):
        lanes = row[:LANES]
        for start in range(LANES, len(row), LANES):
            lanes = combine(row[start : start + LANES], lanes)
        while len(lanes) > 1:
            lanes = combine(lanes[: len(lanes) // 2], lanes[len(lanes) // 2 :])
    return lanes[0]


def add(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a + b


def maxnum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(b != b, a, np.where(a > b, a, b))


def minnum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(b != b, a, np.where(a < b, a, b))


def rows(seed: int) -> list[torch.Tensor]:
    """Plain numbers, some special ones among them, and nothing but one special number."""
    generator = torch.Generator().manual_seed(seed)
    plain = torch.randn(800, generator=generator)
    mixed = plain.clone()
    mixed[torch.randint(0, 800, (40,), generator=generator)] = torch.tensor(SPECIAL).repeat(5)
    return [plain, mixed, *(torch.full((800,), value) for value in SPECIAL)]


def same(found: torch.Tensor, expected: np.ndarray | np.generic) -> bool:
    """Equal bits, but any NaN is any NaN."""
    a, b = found.numpy(), np.asarray(expected, found.numpy().dtype)
    return bool(((a.view(np.uint32) == b.view(np.uint32)) | ((a != a) & (b != b))).all())


@triton.jit
def exponentials(x, y, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(y + o, tl.exp(tl.load(x + o)))


@triton.jit
def softmax(x, y, top, total, n, other: tl.constexpr, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    m = o < n
    b = tl.load(x + o, mask=m, other=other)
    highest = tl.max(b, axis=0)
    e = tl.exp(b - highest)
    s = tl.sum(e, axis=0)
    tl.store(top, highest)
    tl.store(total, s)
    tl.store(y + o, e / s, mask=m)


@pytest.mark.parametrize("other", [-float("inf"), float("inf"), float("nan"), 0.0, 1.5])
def test_softmax(other: float) -> None:
    for x in rows(1):
        for n in LENGTHS:
            y, top, total = torch.full((800,), GUARD), torch.empty(1), torch.empty(1)
            compiled = softmax[(1,)](x, y, top, total, n, other=other, BLOCK=BLOCK)
            assert compiled.asm["c"].count("cp_whole_lanes(") == 2
            row = padded(x, n, other)
            highest = reduced(row, maxnum)
            e = torch.empty(BLOCK)
            with np.errstate(all="ignore"):
                exponentials[(1,)](torch.from_numpy(row - highest), e, BLOCK=BLOCK)
                s = reduced(e.numpy(), add)
                expected = torch.full((800,), GUARD).numpy()
                expected[: min(n, BLOCK)] = e.numpy()[:n] / s
            assert same(top, [highest]), (n, top, highest)
            assert same(total, [s]), (n, total, s)
            assert same(y, expected), n


@triton.jit
def layer_norm(x, y, out, n, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    m = o < n
    b = tl.load(x + o, mask=m, other=0.0)
    mean = tl.sum(b, axis=0) / n
    d = tl.where(m, b - mean, 0.0)
    variance = tl.sum(d * d, axis=0) / n
    tl.store(out, mean)
    tl.store(out + 1, variance)
    tl.store(y + o, d / tl.sqrt(variance + 1.0), mask=m)


def test_layer_norm() -> None:
    for x in rows(2)[:4]:
        for n in LENGTHS[1:-1]:
            y, out = torch.full((800,), GUARD), torch.empty(2)
            compiled = layer_norm[(1,)](x, y, out, n, BLOCK=BLOCK)
            assert "cp_whole_lanes(" in compiled.asm["c"]
            row = padded(x, n, 0.0)
            with np.errstate(all="ignore"):
                mean = reduced(row, add) / np.float32(n)
                d = np.where(np.arange(BLOCK) < n, row - mean, np.float32(0))
                variance = reduced(d * d, add) / np.float32(n)
                expected = torch.full((800,), GUARD).numpy()
                expected[:n] = (d / np.sqrt(variance + np.float32(1)))[:n]
            assert same(out, [mean, variance]), n
            assert same(y, expected), n


@triton.jit
def extremes(x, out, n, other: tl.constexpr, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    b = tl.load(x + o, mask=o < n, other=other)
    tl.store(out, tl.min(b, axis=0))
    tl.store(out + 1, tl.max(b, axis=0))
    tl.store(out + 2, tl.sum(b, axis=0))


@pytest.mark.parametrize("other", [0.0, 2.5, float("nan"), float("inf")])
def test_what_pads_counts_in_every_reduction(other: float) -> None:
    for x in rows(3):
        for n in LENGTHS:
            out = torch.empty(3)
            compiled = extremes[(1,)](x, out, n, other=other, BLOCK=BLOCK)
            assert "cp_whole_lanes(" in compiled.asm["c"]
            row = padded(x, n, other)
            assert same(out, [reduced(row, minnum), reduced(row, maxnum), reduced(row, add)]), (n, out)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.bfloat16, torch.float16])
def test_other_types(dtype: torch.dtype) -> None:
    x = torch.randint(-9, 9, (800,)).to(dtype)
    for n in LENGTHS:
        out = torch.empty(3, dtype=torch.int32)
        extremes[(1,)](x, out, n, other=1, BLOCK=BLOCK)
        row = x[:BLOCK].clone()
        row[n:] = 1
        total = reduced(row if dtype.is_floating_point else row.int(), add)  # each addition rounds
        assert out.tolist() == [int(row.min()), int(row.max()), int(total)], n


@triton.jit
def changed_between(x, y, out, n, BLOCK: tl.constexpr):
    """x is overwritten, through a pointer that may be the same, before it is summed."""
    o = tl.arange(0, BLOCK)
    m = o < n
    b = tl.load(x + o, mask=m, other=0.0)
    tl.store(y + o, 1.0, mask=m)
    s = tl.sum(b, axis=0)
    tl.store(out, s)
    tl.store(y + o, b + s, mask=m)


@triton.jit
def read_beyond(x, y, out, n, BLOCK: tl.constexpr):
    """The padding is stored, gathered by a reversal, and cut by another mask."""
    o = tl.arange(0, BLOCK)
    m = o < n
    b = tl.exp(tl.load(x + o, mask=m, other=0.5))
    s = tl.sum(b, axis=0)
    tl.store(out, s)
    tl.store(y + o, b)
    tl.store(y + BLOCK + o, tl.flip(b, 0), mask=m)
    tl.store(y + 2 * BLOCK + o, b * s, mask=o < n + 70)


def test_memory_that_changes_between_load_and_reduction() -> None:
    for n in LENGTHS[:-1]:
        x, out = torch.randn(800), torch.empty(1)
        row = padded(x, n, 0.0)
        changed_between[(1,)](x, x, out, n, BLOCK=BLOCK)
        s = reduced(row, add)
        assert same(out, [s]), n
        assert same(x[:n], row[:n] + s), n


def test_padding_that_is_read() -> None:
    for n in LENGTHS[:-1]:
        x, y, out = torch.randn(800), torch.full((3 * BLOCK,), GUARD), torch.empty(1)
        read_beyond[(1,)](x, y, out, n, BLOCK=BLOCK)
        e = torch.empty(BLOCK)
        exponentials[(1,)](torch.from_numpy(padded(x, n, 0.5)), e, BLOCK=BLOCK)
        s = reduced(e.numpy(), add)
        expected = np.full(3 * BLOCK, GUARD, np.float32)
        expected[:BLOCK] = e.numpy()
        expected[BLOCK : BLOCK + n] = e.numpy()[::-1][:n]
        third = min(BLOCK, n + 70)
        expected[2 * BLOCK : 2 * BLOCK + third] = (e.numpy() * s)[:third]
        assert same(out, [s]), n
        assert same(y, expected), n


@triton.jit
def pieces(x, out, n, BLOCK: tl.constexpr):
    """A running maximum and sum over pieces of a row: the mask moves with the loop."""
    highest, total = -float("inf"), 0.0
    for start in range(0, n, BLOCK):
        o = start + tl.arange(0, BLOCK)
        b = tl.load(x + o, mask=o < n, other=-float("inf"))
        here = tl.maximum(highest, tl.max(b, axis=0))
        total = total * tl.exp(highest - here) + tl.sum(tl.exp(b - here), axis=0)
        highest = here
    tl.store(out, highest)
    tl.store(out + 1, total)


@pytest.mark.parametrize("n", [1, 511, 512, 513, 1000, 1500, 1536])
def test_pieces_of_a_row(n: int) -> None:
    x, out = torch.randn(2000), torch.empty(2)
    pieces[(1,)](x, out, n, BLOCK=BLOCK)
    assert out[0] == x[:n].max()
    torch.testing.assert_close(out[1], torch.exp(x[:n] - out[0]).sum(), atol=0, rtol=1e-5)

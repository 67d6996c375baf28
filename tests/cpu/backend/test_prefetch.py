"""The launch option prefetch_bytes: how far loads that stream run ahead. It changes code, never a result."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from runtime.cpu import CpuBackendError

WIDTH, K = 64, 256


@triton.jit
def panel_product(x, w, y, K: tl.constexpr, WIDTH: tl.constexpr):
    o_k = tl.arange(0, K)
    flat = tl.load(w + tl.program_id(0) * K * WIDTH + tl.arange(0, K * WIDTH))
    b = tl.reshape(tl.permute(tl.reshape(flat, (K // 2, WIDTH, 2)), (0, 2, 1)), (K, WIDTH))
    acc = tl.dot(tl.load(x + o_k)[None, :], b, tl.zeros((1, WIDTH), tl.float32))
    o_n = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    tl.store(y + o_n[None, :], acc)


@triton.jit
def long_rows(x, y, SIZE: tl.constexpr):
    o = tl.arange(0, SIZE)
    tl.store(y + tl.program_id(0), tl.sum(tl.load(x + tl.program_id(0) * SIZE + o), axis=0))


def product(**options: int):
    x, w, y = (torch.randn(K), torch.randn(8 * K * WIDTH), torch.empty(8 * WIDTH))
    x, w = (torch.sin(torch.arange(t.numel()) * 0.7).to(torch.bfloat16) for t in (x, w))
    compiled = panel_product[(8,)](x, w, y, K, WIDTH, **options)
    return y, compiled.asm["c"]


def rows(**options: int):
    x, y = torch.cos(torch.arange(16 * 2048) * 0.3), torch.empty(16)
    compiled = long_rows[(16,)](x, y, 2048, **options)
    return y, compiled.asm["c"]


@pytest.mark.parametrize("kernel", [product, rows])
def test_another_distance_is_other_code_and_the_same_result(kernel) -> None:
    results = [kernel(), kernel(prefetch_bytes=512), kernel(prefetch_bytes=8192)]
    assert len({code for _, code in results}) == 3
    assert "512" in results[1][1]
    assert all(torch.equal(results[0][0], found) for found, _ in results)


@triton.jit
def normalised(x, first, second, n, SIZE: tl.constexpr, EARLY: tl.constexpr):
    o = tl.arange(0, SIZE)
    m = o < n
    row = tl.load(x + o, mask=m, other=0.0)
    if EARLY:
        total = tl.sum(row, axis=0)
        where = first
    else:
        total = tl.sum(row, axis=0)
        where = first + (total > 1e30).to(tl.int32)  # not known before the sum
    tl.store(where + o, row / total, mask=m)
    tl.store(second + o, row - total, mask=m)


@pytest.mark.parametrize("size", [256, 8192])
@pytest.mark.parametrize("early", [True, False])
def test_long_results_are_fetched_while_a_reduction_runs(size: int, early: bool) -> None:
    x, n = torch.rand(size), size - 100
    results = [torch.full((size,), -1.0) for _ in range(2)]
    compiled = normalised[(1,)](x, *results, n, SIZE=size, EARLY=early)
    fetched = compiled.asm["c"].count(", 1, 3);")
    assert fetched % (1 + early) == 0
    assert bool(fetched) == (size == 8192)
    total = x[:n].sum()
    for found, expected in zip(results, (x / total, x - total), strict=True):
        torch.testing.assert_close(found[:n], expected[:n])
        assert bool((found[n:] == -1).all())


@pytest.mark.parametrize("value", [-1, 1 << 20, 2.5, "far", True])
def test_a_distance_that_means_nothing_is_refused(value) -> None:
    with pytest.raises(CpuBackendError, match=r"prefetch_bytes=.* is not allowed: an integer from 0 to 65536"):
        product(prefetch_bytes=value)


@triton.jit
def block_of_rows(x, y, STRIDE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    o = tl.arange(0, ROWS)[:, None] * STRIDE + tl.arange(0, WIDTH)[None, :]
    tl.store(y + tl.arange(0, WIDTH), tl.sum(tl.load(x + o), axis=0))


@pytest.mark.parametrize(("stride", "rows", "fetches"), [(64, 32, True), (80, 32, False), (64, 8, False)])
def test_rows_without_a_gap_are_fetched_ahead_as_one_long_row(stride: int, rows: int, fetches: bool) -> None:
    x, y = torch.randint(-9, 9, (rows, stride)).float(), torch.empty(64)
    compiled = block_of_rows[(1,)](x, y, STRIDE=stride, ROWS=rows, WIDTH=64)
    assert torch.equal(y, x[:, :64].sum(0))
    assert ("__builtin_prefetch" in compiled.asm["c"]) is fetches

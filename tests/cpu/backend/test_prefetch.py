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

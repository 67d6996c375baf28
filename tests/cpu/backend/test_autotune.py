"""Triton's autotuner, heuristics and do_bench on this backend."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
import triton.testing

CONFIGS = [triton.Config({"B": block}, num_warps=warps) for block in (16, 256) for warps in (1, 4)]


@triton.autotune(configs=CONFIGS, key=["n"], restore_value=["x"])
@triton.heuristics({"EVEN": lambda args: args["n"] % args["B"] == 0})
@triton.jit
def increment(x, y, n, B: tl.constexpr, EVEN: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    mask = None if EVEN else o < n
    v = tl.load(x + o, mask=mask)
    tl.store(x + o, v + 1, mask=mask)
    tl.store(y + o, v * 2, mask=mask)


def test_autotune_restores_and_picks_one_config() -> None:
    for n in (1000, 1024):
        x, y = torch.randn(n), torch.empty(n)
        before = x.clone()
        increment[lambda meta: (triton.cdiv(meta["n"], meta["B"]),)](x, y, n)
        assert torch.equal(x, before + 1)
        assert torch.equal(y, before * 2)
        assert increment.best_config in CONFIGS


@triton.autotune(configs=CONFIGS, key=[], reset_to_zero=["total"])
@triton.jit
def accumulate(x, total, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    tl.atomic_add(total, tl.sum(tl.load(x + o, mask=o < n, other=0)))


def test_autotune_resets_to_zero() -> None:
    x, total = torch.randint(0, 9, (1000,)).float(), torch.zeros(1)
    accumulate[lambda meta: (triton.cdiv(1000, meta["B"]),)](x, total, 1000)
    assert total.item() == x.sum().item()


def test_do_bench() -> None:
    x = torch.randn(100)
    assert 0 < triton.testing.do_bench(lambda: x.add_(1), warmup=1, rep=2) < 1000
    low, high = triton.testing.do_bench(lambda: x.add_(1), warmup=1, rep=2, quantiles=[0.2, 0.8])
    assert 0 < low <= high

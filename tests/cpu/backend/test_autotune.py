"""Triton's autotuner, heuristics and do_bench on this backend."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
import triton.testing

from runtime.cpu import GraphStateError, HostGraph

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


@triton.autotune(configs=CONFIGS, key=["n"])
@triton.jit
def double(x, y, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + o, tl.load(x + o, mask=o < n) * 2, mask=o < n)


slowly_tuned = triton.autotune(CONFIGS, key=["n"], do_bench=triton.testing.do_bench)(double.fn)


@pytest.mark.parametrize("kernel", [double, slowly_tuned], ids=["driver's benchmarker", "do_bench"])
def test_tuning_is_refused_inside_a_capture_and_fine_before_it(kernel: Any) -> None:
    x, y = torch.randn(100), torch.zeros(100)

    def launch() -> None:
        kernel[lambda meta: (triton.cdiv(100, meta["B"]),)](x, y, 100)

    graph = HostGraph()
    with graph.capture():
        with pytest.raises(GraphStateError, match="call the kernel once with such arguments before the capture"):
            launch()
        assert graph.num_launches == 0
    assert not y.any()
    launch()
    graph = HostGraph()
    with graph.capture():
        launch()
    [recorded] = graph.launches
    assert dict(recorded.constexprs)["B"] == kernel.best_config.kwargs["B"]
    y.zero_()
    graph.replay()
    assert torch.equal(y, x * 2)


def test_another_thread_may_tune_during_a_capture() -> None:
    x, y = torch.randn(77), torch.zeros(77)
    graph = HostGraph()
    with graph.capture():
        other = threading.Thread(target=lambda: double[lambda meta: (triton.cdiv(77, meta["B"]),)](x, y, 77))
        other.start()
        other.join()
    assert graph.num_launches == 0 and torch.equal(y, x * 2)


def test_do_bench() -> None:
    x = torch.randn(100)
    assert 0 < triton.testing.do_bench(lambda: x.add_(1), warmup=1, rep=2) < 1000
    low, high = triton.testing.do_bench(lambda: x.add_(1), warmup=1, rep=2, quantiles=[0.2, 0.8])
    assert 0 < low <= high

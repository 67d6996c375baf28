"""`runtime.cpu.profile`: time per kernel over launches and replays."""

from __future__ import annotations

import io

import torch
import triton
import triton.language as tl

from runtime.cpu import checked, profile
from runtime.cpu.graph import HostGraph


@triton.jit
def twice(x, y, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + o, tl.load(x + o) * 2)


@triton.jit
def negate(x, y, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + o, -tl.load(x + o))


def test_launches_and_replays_are_counted() -> None:
    x, y, out = torch.randn(1 << 16), torch.empty(1 << 16), io.StringIO()
    graph = HostGraph()
    with graph.capture():
        twice[(64,)](x, y, B=1024)
        negate[(64,)](y, y, B=1024)
    with profile(out) as collected:
        twice[(64,)](x, y, B=1024)
        graph.replay()
        graph.replay()
        with checked():
            negate[(64,)](x, y, B=1024)
    counts = {row.kernel: row.launches for row in collected.kernels()}
    assert counts == {"twice": 3, "negate": 3}
    assert all(0 < row.longest <= row.seconds for row in collected.kernels())
    first, *rows = out.getvalue().splitlines()
    assert first.split()[0] == "kernel" and {row.split()[0] for row in rows} == {"twice", "negate"}
    graph.replay()
    assert {row.kernel: row.launches for row in collected.kernels()} == counts

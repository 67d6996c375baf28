"""What one small kernel of a host graph costs."""

from __future__ import annotations

from statistics import median

import torch
import triton
import triton.language as tl

from runtime.cpu.graph import HostGraph

from .measure import Figure, burst

REQUIRED_US = 0.4
LAUNCHES, PROGRAMS, BLOCK, REPLAYS = 200, 2, 16, 20


@triton.jit
def increment(x, BLOCK: tl.constexpr):
    """Add 1 to BLOCK elements."""
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + o, tl.load(x + o) + 1.0)


def measure(rounds: int) -> Figure:
    """Microseconds per launch of a graph of LAUNCHES tiny kernels, median over rounds of bursts."""
    x, graph = torch.zeros(PROGRAMS * BLOCK), HostGraph()
    with graph.capture():
        for _ in range(LAUNCHES):
            increment[(PROGRAMS,)](x, BLOCK=BLOCK)
    found = [1e6 * burst(graph.replay, REPLAYS) / LAUNCHES for _ in range(2 * rounds)]
    if x[0] != 2 * rounds * (REPLAYS + 2) * LAUNCHES:
        raise AssertionError("a launch of the graph did not run")
    return Figure("graph replay", f"{LAUNCHES} kernels of {PROGRAMS} programs", median(found), "us", REQUIRED_US, {})

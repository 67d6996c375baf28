"""Time the canonical matmul through Triton and check that its rows are bitwise equal for every number of rows.

    python benchmarks/canonical_matmul.py [--json FILE] [--seconds 1.0]

One program per panel of `width` columns; weights lie as [N/width][K/2][width][2] bf16. "L3": 4 MB of weights, replayed
from cache; "memory": 134 MB. Times are the fastest replay: other processes on the machine only add to them.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch
import triton
import triton.language as tl

from runtime.cpu import set_num_threads
from runtime.cpu.graph import HostGraph

K = 2048
SIZES = {"L3": 1024, "memory": 32768}
WIDTHS = (32, 64)
ROWS = (1, 2, 4, 8, 256)


@triton.jit(do_not_specialize=["rows"])
def canonical_matmul(
    x, w, y, rows, K: tl.constexpr, N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, WIDTH: tl.constexpr
):
    """y[m, n] = sum_k x[m, k] w[n, k], k pairs ascending. x [rows, K] bf16, w panels, y [rows, N] fp32."""
    i_n = tl.program_id(0)
    o_n = i_n * WIDTH + tl.arange(0, WIDTH)
    p_w = w + i_n.to(tl.int64) * (K * WIDTH)
    for m0 in range(tl.program_id(1) * BLOCK_M, rows, tl.num_programs(1) * BLOCK_M):
        o_m = m0 + tl.arange(0, BLOCK_M)
        m_m = o_m[:, None] < rows
        acc = tl.zeros((BLOCK_M, WIDTH), tl.float32)
        for k0 in range(0, K, BLOCK_K):
            b_x = tl.load(x + o_m[:, None] * K + (k0 + tl.arange(0, BLOCK_K))[None, :], mask=m_m, other=0.0)
            flat = tl.load(p_w + k0 * WIDTH + tl.arange(0, BLOCK_K * WIDTH))
            b_w = tl.reshape(tl.permute(tl.reshape(flat, (BLOCK_K // 2, WIDTH, 2)), (0, 2, 1)), (BLOCK_K, WIDTH))
            acc = tl.dot(b_x, b_w, acc)
        tl.store(y + o_m[:, None] * N + o_n[None, :], acc, mask=m_m)


def panels(w: torch.Tensor, width: int) -> torch.Tensor:
    """[N, K] -> [N/width][K/2][width][2]."""
    n, k = w.shape
    return w.reshape(n // width, width, k // 2, 2).permute(0, 2, 1, 3).contiguous()


def capture(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor, width: int) -> HostGraph:
    rows, n = y.shape
    graph = HostGraph()
    with graph.capture():
        canonical_matmul[(n // width, 1)](
            x, w, y, rows, K=K, N=n, BLOCK_M=min(rows, 64), BLOCK_K=K if rows <= 8 else 256, WIDTH=width
        )
    return graph


def fastest(graph: HostGraph, seconds: float) -> float:
    """Microseconds of the fastest replay within about `seconds`, at least 20 replays."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 20 or time.perf_counter() < end:
        start = time.perf_counter()
        graph.replay()
        times.append(time.perf_counter() - start)
    return min(times) * 1e6


def measure(place: str, width: int, threads: int, seconds: float) -> list[dict]:
    n = SIZES[place]
    torch.manual_seed(0)
    w = panels(torch.randn(n, K).bfloat16(), width)
    x = torch.randn(max(ROWS), K).bfloat16()
    set_num_threads(threads)
    results, first_row = [], None
    for rows in ROWS:
        if rows > 8 and place == "memory":
            continue
        y = torch.empty(rows, n)
        graph = capture(x[:rows].contiguous(), w, y, width)
        us = fastest(graph, seconds)
        first_row = y[0].clone() if first_row is None else first_row
        results.append(
            {
                "weights": place, "width": width, "threads": threads, "rows": rows, "us": round(us, 1),
                "gb_per_s": round(n * K * 2 / us / 1e3, 1), "gflop_per_s": round(2 * rows * n * K / us / 1e3),
                "same_bits": bool(torch.equal(y[0], first_row)),
            }
        )  # fmt: skip
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--seconds", type=float, default=1.0, help="time per figure")
    options = parser.parse_args()
    threads = sorted({1, len(os.sched_getaffinity(0))})
    results = []
    print(
        f"{'weights':8} {'width':>5} {'threads':>7} {'rows':>4} {'us':>9} {'GB/s':>7} {'GFLOP/s':>8}  row 0 same bits"
    )
    for place in SIZES:
        for width in WIDTHS:
            for count in threads:
                for r in measure(place, width, count, options.seconds):
                    results.append(r)
                    print(
                        f"{r['weights']:8} {r['width']:5} {r['threads']:7} {r['rows']:4} {r['us']:9} {r['gb_per_s']:7} "
                        f"{r['gflop_per_s']:8}  {'yes' if r['same_bits'] else 'NO'}",
                        flush=True,
                    )
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Time the attention kernel by rows per program: what a prefill chunk costs after a long context.

    python -m benchmarks.attention_tiles [--json] [--repeats 40]

64 rows of one slot after 1,500 keys, head dim and page 64, one thread; the fastest of the repeats, in microseconds:
other processes on the machine only add to it. The kernel is the one that `codegen build` renders.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import triton

from codegen.lower import lower
from codegen.lower.targets import resolve_target
from codegen.plan import Kernel, Plan
from codegen.render import render_kernel
from dsl import load_spec
from runtime.cpu import set_num_threads
from runtime.cpu.graph import HostGraph

ROOT = Path(__file__).resolve().parents[1]
ROWS, CONTEXT, KV_HEADS, DIM = 64, 1500, 2, 64
PAGE = DIM
PAGES = triton.cdiv(CONTEXT + ROWS, PAGE)
QUERIES = (1, 2, 3, 4, 8)


def rendered(plan: Plan, queries: int, tiles: tuple[int, ...], folder: Path) -> ModuleType:
    """The module of the attention kernel with so many query heads per kv head."""
    heads = queries * KV_HEADS
    constants = {
        "HEADS": heads,
        "KV_HEADS": KV_HEADS,
        "QUERIES_PER_KV": queries,
        "D": DIM,
        "BLOCK_D": DIM,
        "PAGE": PAGE,
        "PAGES_PER_SLOT": PAGES,
        "SCALE_LOG2": DIM**-0.5 * math.log2(math.e),
        "MIN_DOT": 1,
    }
    kernel = Kernel(f"attention_{heads}", "kernels/attention.py.j2", tuple(constants.items()), tiles, 1)
    path = folder / f"{kernel.name}.py"
    path.write_text(render_kernel(plan, kernel, "python -m benchmarks.attention_tiles"))
    spec = importlib.util.spec_from_file_location(kernel.name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def operands(queries: int) -> dict[str, torch.Tensor]:
    """What the kernel gets, contents random."""
    draw = torch.Generator().manual_seed(queries)
    heads = queries * KV_HEADS
    pages = [torch.randn(PAGES, KV_HEADS, PAGE * DIM, generator=draw).bfloat16() for _ in "kv"]
    return {
        "row_slot": torch.zeros(ROWS, dtype=torch.int32),
        "row_pos": torch.arange(CONTEXT, CONTEXT + ROWS, dtype=torch.int32),
        "row_first": torch.zeros(1, dtype=torch.int32),
        "row_count": torch.tensor([ROWS], dtype=torch.int32),
        "q": torch.randn(ROWS, heads, DIM, generator=draw).bfloat16(),
        "page_table": torch.randperm(PAGES, generator=draw).to(torch.int32),
        "k_cache": pages[0],
        "v_cache": pages[1],
        "context": torch.empty(ROWS, heads * DIM, dtype=torch.bfloat16),
    }


def measure(queries: int, repeats: int) -> Iterator[dict[str, Any]]:
    """Microseconds of every tile that a CPU may take."""
    plan = lower(load_spec(ROOT / "specs" / "tiny-hybrid.yaml"), "cpu")
    tiles = resolve_target("cpu").slot_tiles(queries)
    with tempfile.TemporaryDirectory() as folder:
        kernel = getattr(rendered(plan, queries, tiles, Path(folder)), f"attention_{queries * KV_HEADS}")
        given = operands(queries)
        for rows in tiles:
            graph = HostGraph()
            with graph.capture():
                kernel[(1, triton.cdiv(ROWS, rows), KV_HEADS)](**given, BLOCK_M=rows, enable_fp_fusion=False)
            yield {"queries": queries, "rows": rows, "us": fastest(graph, repeats)}


def fastest(graph: HostGraph, repeats: int) -> float:
    """Microseconds of the fastest replay."""
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        graph.replay()
        times.append(time.perf_counter() - begun)
    return 1e6 * min(times)


def main() -> None:
    """Print one line per number of queries and tile."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON list instead of text")
    parser.add_argument("--repeats", type=int, default=40, help="replays of each tile (default 40)")
    options = parser.parse_args()
    set_num_threads(1)
    rows = [row for queries in QUERIES for row in measure(queries, max(1, options.repeats))]
    if options.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print(f"{row['queries']} queries per kv head, {row['rows']:2} rows: {row['us']:7.0f} us")


if __name__ == "__main__":
    main()

"""y = W x, bf16 and int8, weights larger than every cache, against a C loop that only reads them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from runtime.coding import BYTES, code_panels, head_rows
from runtime.device import coded_groups

from .measure import Burst, Contest, Run
from .read_loop import read_loop

REQUIRED, REQUIRED_INT8, REQUIRED_CODED = 0.9, 0.85, 1.1
ROWS, DEPTH, WIDTH = 32768, 2048, 64
INT8_ROWS = 2 * ROWS


@triton.jit
def gemv(w, x, y, K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """One program: BLOCK_N rows of row-major weights [N, K] bf16, x [K] bf16, y [N] fp32."""
    o_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    for k in range(0, K, BLOCK_K):
        o_k = k + tl.arange(0, BLOCK_K)
        b_x = tl.load(x + o_k).to(tl.float32)
        b_w = tl.load(w + o_n[:, None].to(tl.int64) * K + o_k[None, :]).to(tl.float32)
        acc += b_w * b_x[None, :]
    tl.store(y + o_n, tl.sum(acc, axis=1))


@triton.jit
def gemv_whole_rows(w, x, y, K: tl.constexpr, BLOCK_N: tl.constexpr):
    """The same with whole rows as one block."""
    o_n, o_k = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, K)
    b_w = tl.load(w + o_n[:, None].to(tl.int64) * K + o_k[None, :]).to(tl.float32)
    tl.store(y + o_n, tl.sum(b_w * tl.load(x + o_k).to(tl.float32)[None, :], axis=1))


@triton.jit
def gemv_panels(w, x, y, K: tl.constexpr, WIDTH: tl.constexpr):
    """One program: one panel of WIDTH columns, weights [N / WIDTH, K / 2, WIDTH, 2] (docs/cpu-backend.md)."""
    i_n = tl.program_id(0)
    flat = tl.load(w + i_n.to(tl.int64) * (K * WIDTH) + tl.arange(0, K * WIDTH))
    b_w = tl.reshape(tl.permute(tl.reshape(flat, (K // 2, WIDTH, 2)), (0, 2, 1)), (K, WIDTH))
    b_x = tl.load(x + tl.arange(0, K))[None, :]
    acc = tl.dot(b_x, b_w)
    tl.store(y + i_n * WIDTH + tl.arange(0, WIDTH)[None, :], acc)


@triton.jit
def gemv_int8(w, x, y, K: tl.constexpr, WIDTH: tl.constexpr):
    """One program: one panel of WIDTH columns, weights [N / WIDTH, K / 4, WIDTH, 4] int8, x [K] int8, y [N] int32."""
    i_n = tl.program_id(0)
    flat = tl.load(w + i_n.to(tl.int64) * (K * WIDTH) + tl.arange(0, K * WIDTH))
    b_w = tl.reshape(tl.permute(tl.reshape(flat, (K // 4, WIDTH, 4)), (0, 2, 1)), (K, WIDTH))
    acc = tl.dot(tl.load(x + tl.arange(0, K))[None, :], b_w)
    tl.store(y + i_n * WIDTH + tl.arange(0, WIDTH)[None, :], acc)


@triton.jit
def gemv_coded(w, escapes, x, y, K: tl.constexpr, WIDTH: tl.constexpr):
    """gemv_panels whose weights lie in 12 bits an element (runtime/coding.py), fewer than are read beside it."""
    i_n = tl.program_id(0)
    groups = coded_groups(w, escapes, i_n.to(tl.int64), 0, K // 2, WIDTH, K // 2)
    b_w = tl.reshape(tl.permute(groups, (0, 2, 1)), (K, WIDTH))
    acc = tl.dot(tl.load(x + tl.arange(0, K))[None, :], b_w)
    tl.store(y + i_n * WIDTH + tl.arange(0, WIDTH)[None, :], acc)


def contests() -> Iterator[tuple[Contest, Burst]]:
    """134 MB of weights: bf16 row-major (two ways to write it), as panels and as panels in codes, int8 as panels."""
    yield from _bf16()
    yield _int8()


def _int8() -> tuple[Contest, Burst]:
    w, x = (torch.randint(-127, 128, shape, dtype=torch.int8) for shape in ((INT8_ROWS, DEPTH), (DEPTH,)))
    panels = w.reshape(INT8_ROWS // WIDTH, WIDTH, DEPTH // 4, 4).permute(0, 2, 1, 3).contiguous()
    y, expected = torch.empty(INT8_ROWS, dtype=torch.int32), (w.double() @ x.double()).to(torch.int32)

    def run() -> None:
        gemv_int8[(INT8_ROWS // WIDTH,)](panels, x, y, K=DEPTH, WIDTH=WIDTH)

    def check() -> None:
        run()
        assert torch.equal(y, expected)

    contest = Contest("gemv int8", f"{INT8_ROWS}x{DEPTH} panels", REQUIRED_INT8, run, check, "c_read")
    return contest, read_loop(panels)


def _bf16() -> Iterator[tuple[Contest, Burst]]:
    w, x, y = torch.randn(ROWS, DEPTH).bfloat16(), torch.randn(DEPTH).bfloat16(), torch.empty(ROWS)
    panels = w.reshape(ROWS // WIDTH, WIDTH, DEPTH // 2, 2).permute(0, 2, 1, 3).contiguous()
    expected, read, read_panels = w.float() @ x.float(), read_loop(w), read_loop(panels)
    coded = torch.zeros(len(panels), head_rows(DEPTH // 2, WIDTH) + DEPTH // 2, BYTES, WIDTH, dtype=torch.uint8)
    escapes = torch.zeros(len(panels), DEPTH // 2, WIDTH, dtype=torch.uint8)
    code_panels(panels, coded, escapes)
    runs = {
        "row-major, loop over k": lambda: gemv[(ROWS // 8,)](w, x, y, K=DEPTH, BLOCK_N=8, BLOCK_K=128),
        "row-major, whole rows": lambda: gemv_whole_rows[(ROWS // 8,)](w, x, y, K=DEPTH, BLOCK_N=8),
        "panels": lambda: gemv_panels[(ROWS // WIDTH,)](panels, x, y, K=DEPTH, WIDTH=WIDTH),
        "panels in codes": lambda: gemv_coded[(ROWS // WIDTH,)](coded, escapes, x, y, K=DEPTH, WIDTH=WIDTH),
    }
    for name, run in runs.items():

        def check(run: Run = run) -> None:
            run()
            torch.testing.assert_close(y, expected, atol=1e-2, rtol=1e-2)

        asked = REQUIRED_CODED if name == "panels in codes" else REQUIRED
        loop = read_panels if name.startswith("panels") else read
        yield Contest("gemv bf16", f"{ROWS}x{DEPTH} {name}", asked, run, check, "c_read"), loop

"""y = W x, bf16, int8 and int4, weights larger than every cache, against a C loop that only reads them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from runtime.coding import BYTES, code_panels, head_rows
from runtime.device import coded_groups, panel_operand
from runtime.quantise import INT4_GROUP, fill_int4_panels, grouped

from .measure import Burst, Contest, Run
from .read_loop import read_loop

REQUIRED, REQUIRED_INT8, REQUIRED_INT4, REQUIRED_CODED = 0.9, 0.85, 0.7, 1.1
ROWS, DEPTH, WIDTH = 32768, 2048, 64
INT8_ROWS, INT4_ROWS = 2 * ROWS, 4 * ROWS


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
def gemv_int4(w, x, y, K: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr):
    """One program: one panel of WIDTH columns, in blocks of two groups [N / WIDTH, K / 128, 2 + 64, WIDTH] uint8."""
    i_n, o_k = tl.program_id(0), tl.arange(0, GROUP)
    p_w = w + i_n.to(tl.int64) * (K // (2 * GROUP) * (2 + GROUP) * WIDTH)
    acc = tl.zeros((1, WIDTH), tl.int32)
    for i_k in range(0, K, 2 * GROUP):
        p_block = p_w + i_k // (2 * GROUP) * ((2 + GROUP) * WIDTH)
        b_w = tl.load(p_block + 2 * WIDTH + tl.arange(0, GROUP * WIDTH))
        low = panel_operand(((b_w & 15) - 8).to(tl.int8), GROUP, WIDTH, 4)
        high = panel_operand(((b_w >> 4) - 8).to(tl.int8), GROUP, WIDTH, 4)
        of_low = tl.dot(tl.load(x + i_k + o_k)[None, :], low, out_dtype=tl.int32)
        of_high = tl.dot(tl.load(x + i_k + GROUP + o_k)[None, :], high, out_dtype=tl.int32)
        m_low = tl.load(p_block + tl.arange(0, WIDTH)).to(tl.int32)
        m_high = tl.load(p_block + WIDTH + tl.arange(0, WIDTH)).to(tl.int32)
        acc += of_low * m_low[None, :] + of_high * m_high[None, :]
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
    """134 MB of weights: bf16 row-major (two ways to write it), as panels and as panels in codes, int8 and int4."""
    yield from _bf16()
    yield _int8()
    yield _int4()


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


def _int4() -> tuple[Contest, Burst]:
    w, x = torch.randn(INT4_ROWS, DEPTH).bfloat16(), torch.randint(-127, 128, (DEPTH,), dtype=torch.int8)
    panels = torch.zeros(INT4_ROWS // WIDTH, DEPTH // (2 * INT4_GROUP), 2 + INT4_GROUP, WIDTH, dtype=torch.uint8)
    fill_int4_panels(panels, w)
    y, groups = torch.empty(INT4_ROWS, dtype=torch.int32), x.double().view(-1, INT4_GROUP)
    parts = [((values.double() * groups).sum(2) * multipliers).sum(1) for values, multipliers, _ in grouped(w)]
    expected = torch.cat(parts).to(torch.int32)

    def run() -> None:
        gemv_int4[(INT4_ROWS // WIDTH,)](panels, x, y, K=DEPTH, WIDTH=WIDTH, GROUP=INT4_GROUP)

    def check() -> None:
        run()
        assert torch.equal(y, expected)

    contest = Contest("gemv int4", f"{INT4_ROWS}x{DEPTH} panels", REQUIRED_INT4, run, check, "c_read")
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

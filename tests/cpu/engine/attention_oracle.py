"""Attention with one program per row and kv head, so no row knows of another: what tiles of rows must equal."""

from __future__ import annotations

import triton
import triton.language as tl

from runtime.device import attend_page, panel_operand


@triton.jit
def attention_by_row(
    row_slot,
    row_pos,
    q,
    page_table,
    k_cache,
    v_cache,
    context,
    SCALE_LOG2: tl.constexpr,
    BLOCK_G: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    QUERIES_PER_KV: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PAGE: tl.constexpr,
    PAGES_PER_SLOT: tl.constexpr,
):
    """Buffers as in templates/kernels/attention.py.j2; one program per row and kv head."""
    i_r = tl.program_id(0)
    i_kv = tl.program_id(1)
    slot = tl.load(row_slot + i_r)
    if slot < 0:
        return
    o_g = tl.arange(0, BLOCK_G)
    o_d = tl.arange(0, BLOCK_D)
    o_j = tl.arange(0, PAGE)
    o_tile = tl.arange(0, PAGE * BLOCK_D)
    m_g = o_g < QUERIES_PER_KV
    o_q = i_kv * QUERIES_PER_KV + o_g
    p_q = q + (i_r * HEADS + o_q[:, None]) * BLOCK_D + o_d[None, :]
    b_q = tl.load(p_q, mask=m_g[:, None], other=0.0)
    length = tl.load(row_pos + i_r) + 1
    pages = page_table + slot * PAGES_PER_SLOT
    top = tl.full((BLOCK_G,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_G, PAGE), tl.float32)
    acc = tl.zeros((BLOCK_G, BLOCK_D), tl.float32)
    for i_page in range(length // PAGE):
        tile = (tl.load(pages + i_page).to(tl.int64) * KV_HEADS + i_kv) * (PAGE * BLOCK_D)
        b_k = panel_operand(tl.load(k_cache + tile + o_tile), BLOCK_D, PAGE)
        b_v = panel_operand(tl.load(v_cache + tile + o_tile), PAGE, BLOCK_D)
        top, total, acc = attend_page(tl.dot(b_q, b_k) * SCALE_LOG2, b_v, top, total, acc)
    tail = length % PAGE
    if tail > 0:
        tile = (tl.load(pages + length // PAGE).to(tl.int64) * KV_HEADS + i_kv) * (PAGE * BLOCK_D)
        b_k = panel_operand(tl.load(k_cache + tile + o_tile), BLOCK_D, PAGE)
        scores = tl.where(o_j[None, :] < tail, tl.dot(b_q, b_k) * SCALE_LOG2, -float("inf"))
        m_v = (o_tile // (2 * BLOCK_D)) * 2 + o_tile % 2 < tail
        b_v = panel_operand(tl.load(v_cache + tile + o_tile, mask=m_v, other=0.0), PAGE, BLOCK_D)
        top, total, acc = attend_page(scores, b_v, top, total, acc)
    m_c = m_g[:, None] & (o_d[None, :] < D)
    p_context = context + (i_r * HEADS + o_q[:, None]) * D + o_d[None, :]
    tl.store(p_context, (acc / tl.sum(total, axis=1)[:, None]).to(tl.bfloat16), mask=m_c)

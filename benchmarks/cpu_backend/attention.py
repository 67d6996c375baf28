"""Attention of one new token per slot over a cache of keys and values."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from .measure import Contest

REQUIRED = 1.5
D, BLOCK_L = 64, 64
#: (slots, query heads, kv heads, length): 130M parameters without and 1B with grouped queries.
SIZES = ((1, 12, 12, 1024), (8, 12, 12, 1024), (1, 32, 8, 4096), (8, 32, 8, 1024))


@triton.jit
def decode(q, k, v, out, length, scale, HKV: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BLOCK_L: tl.constexpr):
    """One program: the G query heads of one kv head of one slot, online softmax over blocks of BLOCK_L positions.

    q, out [slots, HKV * G, D] bf16, k, v [slots, HKV, length, D] bf16; length divides by BLOCK_L."""
    head, slot = tl.program_id(0), tl.program_id(1)
    o_g, o_d, o_l = tl.arange(0, G), tl.arange(0, D), tl.arange(0, BLOCK_L)
    p_q = ((slot * HKV + head) * G + o_g[:, None]) * D + o_d[None, :]
    b_q = tl.load(q + p_q)
    base = (slot * HKV + head).to(tl.int64) * length * D
    m = tl.full((G,), -float("inf"), tl.float32)
    total = tl.zeros((G,), tl.float32)
    acc = tl.zeros((G, D), tl.float32)
    for start in range(0, length, BLOCK_L):
        p_kv = base + (start + o_l)[:, None] * D + o_d[None, :]
        b_k = tl.load(k + p_kv)
        s = tl.dot(b_q, tl.trans(b_k)) * scale
        m_new = tl.maximum(m, tl.max(s, axis=1))
        alpha, p = tl.exp(m - m_new), tl.exp(s - m_new[:, None])
        b_v = tl.load(v + p_kv)
        acc = tl.dot(p.to(tl.bfloat16), b_v, acc * alpha[:, None])
        total = total * alpha + tl.sum(p, axis=1)
        m = m_new
    tl.store(out + p_q, acc / total[:, None])


def contests() -> Iterator[Contest]:
    """Every size of SIZES."""
    for slots, heads, kv_heads, length in SIZES:
        yield _contest(slots, heads, kv_heads, length)


def _contest(slots: int, heads: int, kv_heads: int, length: int) -> Contest:
    q = torch.randn(slots, heads, 1, D).bfloat16()
    k, v = (torch.randn(slots, kv_heads, length, D).bfloat16() for _ in range(2))
    out, group = torch.empty_like(q), heads // kv_heads

    def ours() -> None:
        decode[(kv_heads, slots)](q, k, v, out, length, D**-0.5, HKV=kv_heads, G=group, D=D, BLOCK_L=BLOCK_L)

    def theirs() -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=group > 1)

    def check() -> None:
        ours()
        torch.testing.assert_close(out, theirs(), atol=2e-2, rtol=2e-2)

    size = f"{slots} slots, {heads}/{kv_heads} heads, {length} keys"
    return Contest("attention decode bf16", size, REQUIRED, ours, check, theirs=theirs)

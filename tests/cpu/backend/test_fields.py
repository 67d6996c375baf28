"""Products whose right operand is small numbers out of bytes that lie as a panel: read in place, or any other way."""

from __future__ import annotations

import re
from contextlib import nullcontext

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

import runtime.cpu

FAST = "cp_dot_fields("


@triton.jit
def panel(flat, K: tl.constexpr, N: tl.constexpr):
    return tl.reshape(tl.permute(tl.reshape(flat, (K // 4, N, 4)), (0, 2, 1)), (K, N))


@triton.jit
def fields(
    x,
    w,
    out,
    rows,
    K: tl.constexpr,
    N: tl.constexpr,
    M: tl.constexpr,
    SHIFT: tl.constexpr,
    MASK: tl.constexpr,
    BIAS: tl.constexpr,
):
    """Two products of one load: of bits SHIFT .. of its bytes, and of their low bits; the second one adds up."""
    o_m, o_k, o_n = tl.arange(0, M), tl.arange(0, K), tl.arange(0, N)
    acc = tl.zeros((M, N), tl.int32)
    for i in range(2):
        a = tl.load(x + o_m[:, None] * (2 * K) + (i * K + o_k)[None, :], mask=o_m[:, None] < rows, other=0)
        flat = tl.load(w + i * K * N + tl.arange(0, K * N))
        part = tl.dot(a, panel((((flat >> SHIFT) & MASK) - BIAS).to(tl.int8), K, N), out_dtype=tl.int32)
        acc = tl.dot(a, panel((flat & 7).to(tl.int8), K, N), acc + 3 * part, out_dtype=tl.int32)
    tl.store(out + o_m[:, None] * N + o_n[None, :], acc, mask=o_m[:, None] < rows)


def operands(depth: int, n: int, m: int, dtype: torch.dtype = torch.uint8) -> tuple[torch.Tensor, torch.Tensor]:
    """x [m, depth] int8, bytes [depth, n] of `dtype` and all values."""
    x, w = torch.randint(-128, 128, (m, depth)), torch.randint(0, 256, (depth, n))
    return x.to(torch.int8), w.to(torch.uint8).view(dtype)


def quads(w: torch.Tensor) -> torch.Tensor:
    """[K, N] as a panel [K / 4, N, 4]."""
    return w.reshape(w.shape[0] // 4, 4, w.shape[1]).permute(0, 2, 1).contiguous()


@given(st.data())
def test_any_field_is_multiplied(data: st.DataObject) -> None:
    shift = data.draw(st.integers(0, 7))
    mask = data.draw(st.integers(1, 255 >> shift))
    bias = data.draw(st.integers(max(0, mask - 127), 128))
    k, n, m = data.draw(st.sampled_from([(16, 16, 1), (32, 64, 4), (64, 32, 8)]))
    rows = data.draw(st.integers(1, m))
    x, w = operands(2 * k, n, m)
    out = torch.full((m, n), 77, dtype=torch.int32)
    fields[(1,)](x, quads(w), out, rows, k, n, m, shift, mask, bias)
    by = (((w.long() >> shift) & mask) - bias) * 3 + (w.long() & 7)
    assert torch.equal(out[:rows].long(), x[:rows].long() @ by) and (out[rows:] == 77).all()


def test_fields_are_read_where_they_lie_and_fetched_once() -> None:
    x, w = operands(64, 32, 4)
    source = fields[(1,)](x, quads(w), torch.empty(4, 32, dtype=torch.int32), 4, 32, 32, 4, 4, 15, 8).asm["c"]
    assert source.count(FAST) == 2 and "memcpy" not in source
    assert source.count("CP_BLOCK_AHEAD(1024)") == 1 and "(cp_fields){4, 15, 8}" in source


@triton.jit
def one(x, w, out, KIND: tl.constexpr, K: tl.constexpr, N: tl.constexpr, M: tl.constexpr):
    """One product of a field that is computed in the way KIND."""
    o_m, o_k, o_n = tl.arange(0, M), tl.arange(0, K), tl.arange(0, N)
    a = tl.load(x + o_m[:, None] * K + o_k[None, :])
    p_w = w + tl.arange(0, K * N)
    m_w = tl.arange(0, K * N) < (K * N - 5 if KIND == "masked load" else K * N)
    flat = tl.load(p_w, mask=m_w, other=0) if KIND == "masked load" else tl.load(p_w)
    if KIND == "signed shift":
        b = flat >> 4
    elif KIND == "signed shift and mask":
        b = ((flat >> 4) & 15) - 8
    elif KIND == "added":
        b = (flat & 15) + 246
    elif KIND == "wraps":
        b = (flat & 127) + 100
    elif KIND == "zero point":
        b = flat - 128
    elif KIND == "groups first":
        b = tl.reshape((tl.reshape(flat, (K // 4, N, 4)) & 15) - 8, (K * N,))
    else:
        b = (flat & 15) - 8
    if KIND == "overwritten":
        tl.store(p_w, flat * 0)
    if KIND == "stored as well":
        tl.store(out + M * N + tl.arange(0, K * N), b.to(tl.int32))
    acc = tl.dot(a, panel(b.to(tl.int8), K, N), out_dtype=tl.int32)
    tl.store(out + o_m[:, None] * N + o_n[None, :], acc)


FORMS = {
    "plain": (torch.uint8, True, lambda w: (w & 15) - 8),
    "signed shift and mask": (torch.int8, True, lambda w: ((w >> 4) & 15) - 8),
    "added": (torch.uint8, True, lambda w: (w & 15) - 10),
    "zero point": (torch.uint8, True, lambda w: w - 128),
    "groups first": (torch.uint8, True, lambda w: (w & 15) - 8),
    "signed shift": (torch.int8, False, lambda w: w >> 4),
    "wraps": (torch.uint8, False, lambda w: (w & 127) + 100),
    "masked load": (torch.uint8, False, lambda w: (w & 15) - 8),
    "overwritten": (torch.uint8, False, lambda w: (w & 15) - 8),
    "stored as well": (torch.uint8, None, lambda w: (w & 15) - 8),
}


@pytest.mark.parametrize("checks", [False, True], ids=["plain", "checked"])
@pytest.mark.parametrize("n", [8, 32])
@pytest.mark.parametrize("kind", FORMS)
def test_every_way_to_compute_a_field(kind: str, n: int, checks: bool) -> None:
    dtype, fast, meaning = FORMS[kind]
    k, m = 32, 4
    x, w = operands(k, n, m, dtype)
    if kind == "masked load":
        w[-4:] = 0  # the last five of the panel are among them
    given, out = quads(w), torch.zeros(m * n + k * n, dtype=torch.int32)
    values = meaning(w.long())
    with runtime.cpu.checked() if checks else nullcontext():
        source = one[(1,)](x, given, out, kind, k, n, m).asm["c"]
    expected = x.long() @ values.to(torch.int8).long()
    assert torch.equal(out[: m * n].view(m, n).long(), expected)
    if kind == "stored as well":
        assert torch.equal(out[m * n :].long(), quads(values).flatten() & 0xFF)
    elif checks or n < 16:
        assert FAST not in source
    else:
        assert (FAST in source) is fast


@triton.jit
def two_blocks(x, w, out, K: tl.constexpr, N: tl.constexpr, M: tl.constexpr):
    """A load in front of a loop, whose fields every round multiplies."""
    o_m, o_k, o_n = tl.arange(0, M), tl.arange(0, K), tl.arange(0, N)
    flat = tl.load(w + tl.arange(0, K * N))
    acc = tl.zeros((M, N), tl.int32)
    for i in range(3):
        a = tl.load(x + i * M * K + o_m[:, None] * K + o_k[None, :])
        acc = tl.dot(a, panel(((flat >> 4) - 8).to(tl.int8), K, N), acc, out_dtype=tl.int32)
        tl.store(x + i * M * K + o_m[:, None] * K + o_k[None, :], a * 0)
    tl.store(out + o_m[:, None] * N + o_n[None, :], acc)


def test_a_field_of_a_load_in_front_of_a_loop_that_stores() -> None:
    k, n, m = 32, 32, 2
    x, w = operands(k, n, 3 * m)
    expected = x.view(3, m, k).sum(0, dtype=torch.int64) @ ((w.long() >> 4) - 8)
    out = torch.empty(m, n, dtype=torch.int32)
    two_blocks[(1,)](x, quads(w), out, k, n, m)
    assert torch.equal(out.long(), expected) and not x.any()


@triton.jit
def shared_rows(x, chosen, w, out, K: tl.constexpr, N: tl.constexpr, M: tl.constexpr):
    o_m, o_k, o_n = tl.arange(0, M)[:, None], tl.arange(0, K)[None, :], tl.arange(0, N)[None, :]
    a = tl.load(x + o_m * K + o_k, mask=tl.load(chosen + o_k) > 0, other=0)
    b = tl.load(w + tl.arange(0, K * N))
    low = tl.dot(a, panel(((b & 15) - 8).to(tl.int8), K, N), out_dtype=tl.int32)
    high = tl.dot(a, panel(((b >> 4) - 8).to(tl.int8), K, N), out_dtype=tl.int32)
    tl.store(out + o_m * N + o_n, low * 3 + high)


def test_rows_that_several_products_read_are_copied_once() -> None:
    k, n, m = 64, 32, 4
    (x, w), chosen = operands(k, n, m), torch.randint(0, 2, (k,), dtype=torch.int32)
    out = torch.zeros(m, n, dtype=torch.int32)
    source = shared_rows[(1,)](x, chosen, quads(w), out, k, n, m).asm["c"]
    by = ((w.long() & 15) - 8) * 3 + (w.long() >> 4) - 8
    assert torch.equal(out.long(), (x.long() * chosen) @ by)
    assert len(re.findall(rf"int8_t \w+\[{m * k}\]", source)) == 1

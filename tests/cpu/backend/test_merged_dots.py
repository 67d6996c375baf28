"""Loops that add up dots along k run as one dot (analysis/merged_dots.py), with the bits of the loop as written."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.coding import BYTES, code_panels, head_rows
from runtime.cpu import checked
from runtime.device import coded_groups, load_rows, panel_operand

N, BLOCK = 32, 64
LOOP = "+= (64))"  # the head of a loop along k


@triton.jit
def panels(
    x,
    w,
    y,
    rows,
    K: tl.constexpr,
    K_PADDED: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Of bf16 with GROUP 2, of int8 with GROUP 4."""
    o_m, o_n = tl.arange(0, M), tl.program_id(0) * N + tl.arange(0, N)
    p_w = w + tl.program_id(0).to(tl.int64) * (K_PADDED * N)
    acc = tl.zeros((M, N), y.dtype.element_ty)
    for i_k in range(0, K_PADDED, BLOCK):
        b_x = load_rows(x, o_m, rows, i_k, K, K_PADDED, BLOCK)
        b_w = panel_operand(tl.load(p_w + i_k * N + tl.arange(0, BLOCK * N)), BLOCK, N, GROUP)
        acc = tl.dot(b_x, b_w, acc, out_dtype=y.dtype.element_ty)
    tl.store(y + o_m[:, None] * (tl.num_programs(0) * N) + o_n[None, :], acc, mask=o_m[:, None] < rows)


@triton.jit
def codes(
    x,
    w,
    escapes,
    y,
    rows,
    K: tl.constexpr,
    K_PADDED: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Two products of one operand, of panels in codes; the second starts from the rows' first columns."""
    o_m, o_n = tl.arange(0, M), tl.program_id(0) * N + tl.arange(0, N)
    panel = tl.program_id(0).to(tl.int64)
    first = tl.zeros((M, N), tl.float32)
    second = load_rows(x, o_m, rows, 0, K, K_PADDED, N).to(tl.float32)
    for i_k in range(0, K_PADDED, BLOCK):
        b_x = load_rows(x, o_m, rows, i_k, K, K_PADDED, BLOCK)
        b_w = coded_groups(w, escapes, panel, i_k // 2, BLOCK // 2, N, K_PADDED // 2)
        b_v = coded_groups(w, escapes, panel + 1, i_k // 2, BLOCK // 2, N, K_PADDED // 2)
        first = tl.dot(b_x, panel_operand(b_w, BLOCK, N), first)
        second = tl.dot(b_x, panel_operand(b_v, BLOCK, N), second)
    p_y = y + o_m[:, None] * (tl.num_programs(0) * N) + o_n[None, :]
    tl.store(p_y, first - 0.5 * second, mask=o_m[:, None] < rows)


def padded(k: int) -> int:
    return -(-k // BLOCK) * BLOCK


def operands(kind: str, rows: int, k: int, programs: int, seed: int) -> list[torch.Tensor]:
    """x and what a kernel reads of weights: of bf16, of int8, or of bf16 in codes, a fifth of whose rows escape."""
    generator = torch.Generator().manual_seed(seed)
    size = padded(k)
    if kind == "int8":
        shapes = (rows, k), (programs, size * N)
        return [torch.randint(-127, 128, shape, generator=generator).to(torch.int8) for shape in shapes]
    x = torch.randn(rows, k, generator=generator).to(torch.bfloat16)
    w = torch.randn(programs + 1, size // 2, N, 2, generator=generator)
    if kind == "bf16":
        return [x, w.to(torch.bfloat16)]
    tiny = torch.rand(w.shape, generator=generator) < 1 / 300
    coded, escapes = coded_shapes(w)
    code_panels((w * torch.where(tiny, 2.0**-60, 1.0)).to(torch.bfloat16), coded, escapes)
    assert escapes.any()
    return [x, coded, escapes]


def coded_shapes(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Room for the codes of panels [P, R, N, 2] and for their escapes."""
    count, pairs, n, _ = w.shape
    coded = torch.zeros(count, head_rows(pairs, n) + pairs, BYTES, n, dtype=torch.uint8)
    return coded, torch.zeros(count, pairs, n, dtype=torch.uint8)


def run(kind: str, inputs: list[torch.Tensor], rows: int, k: int, m: int, programs: int) -> tuple[torch.Tensor, str]:
    y = torch.zeros(rows, programs * N, dtype=torch.int32 if kind == "int8" else torch.float32)
    kernel, group = (codes, {}) if kind == "codes" else (panels, {"GROUP": 4 if kind == "int8" else 2})
    compiled = kernel[(programs,)](*inputs, y, rows, K=k, K_PADDED=padded(k), M=m, N=N, BLOCK=BLOCK, **group)
    return y, compiled.asm["c"]


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["bf16", "int8", "codes"]),
    rows=st.integers(1, 8),
    k=st.sampled_from([65, 96, 128, 576, 768]),
    programs=st.integers(1, 3),
    seed=st.integers(0, 1 << 20),
)
def test_bits_are_those_of_the_loop_as_written(kind: str, rows: int, k: int, programs: int, seed: int) -> None:
    m = triton.next_power_of_2(rows)
    inputs = operands(kind, rows, k, programs, seed)
    merged, text = run(kind, inputs, rows, k, m, programs)
    assert LOOP not in text
    with checked():  # nothing is merged where every access is checked
        written, text = run(kind, inputs, rows, k, m, programs)
    assert LOOP in text
    assert torch.equal(merged, written)
    assert merged.abs().sum() > 0


@triton.jit
def variant(x, w, y, k, KIND: tl.constexpr, LOW: tl.constexpr, M: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr):
    """Loops of dots, of which some are one dot and others are not."""
    o_m, o_n, o_k = tl.arange(0, M)[:, None], tl.arange(0, N), tl.arange(0, BLOCK)[None, :]
    acc = tl.zeros((M, N), tl.float32)
    if KIND == "from what is loaded":
        acc += tl.load(x + o_m * N + o_n[None, :]).to(tl.float32)
    start = acc
    high = k if KIND == "rounds of a number" else 256
    for i_k in range(LOW, high, BLOCK):
        o_x = i_k + o_k
        o_w = i_k * N + tl.arange(0, BLOCK * N)
        mask = o_m >= 0
        if KIND == "overlapping":
            o_x = i_k // 2 + o_k
        elif KIND == "quotients":
            o_x = i_k // 32 * 32 + o_k
        elif KIND == "coarse quotients":
            o_x = i_k // 128 * 128 + o_k
        elif KIND == "repeated":
            o_x = o_k + tl.zeros((1, 1), tl.int32)
        elif KIND == "descending":
            o_x = 600 - i_k - o_k
        elif KIND == "remainders":
            o_x = (i_k + o_k) % 96
        elif KIND == "bits":
            o_x = (i_k + o_k) & 100
        elif KIND == "rows of rounds":
            o_x = i_k * 8 + o_k
        elif KIND == "gathered":
            o_x = tl.load(w + i_k + o_k).to(tl.int32) & 255
        elif KIND == "half leaves 32 bits":
            o_x = (((k + o_k).to(tl.int64) + (i_k - k)) >> 1).to(tl.int32)
        elif KIND == "columns":
            mask = mask & (i_k + o_k < 100)
        elif KIND == "distance to the end":
            mask = mask & (o_k < 201 - i_k)
        elif KIND == "every third":
            mask = mask & ((i_k + o_k) % 3 != 0)
        elif KIND == "rounds":
            mask = mask & (i_k + o_k * 0 < 100)
        elif KIND == "mask leaves 32 bits":
            mask = mask & (o_k + (k + i_k).to(tl.int64) > 0)
        elif KIND == "backwards":
            o_w += (512 - 2 * i_k) * N
        elif KIND == "one panel":
            o_w = tl.arange(0, BLOCK * N)
        elif KIND == "with gaps":
            o_w = 2 * o_w
        b_x = tl.load(x + o_m * 256 + o_x, mask=mask, other=0.5)
        if KIND == "of scaled columns":
            b_x = (b_x * tl.load(w + i_k + o_k)).to(tl.bfloat16)
        elif KIND == "of numbers":
            b_x = ((i_k + o_k) * (1 + o_m)).to(tl.bfloat16)
        elif KIND == "of scaled rounds":
            b_x = (b_x * i_k.to(tl.float32)).to(tl.bfloat16)
        elif KIND == "one of two" or KIND == "one of two, by round":
            other = tl.load(x + 1000 + o_m * 256 + o_x)
            if (k + 1 if KIND == "one of two" else i_k // 64) > 1:
                b_x = other
        if KIND == "acc used":
            acc = acc * 0.5
        acc = tl.dot(b_x, panel_operand(tl.load(w + o_w), BLOCK, N), acc)
        if KIND == "acc stored":
            tl.store(y + M * N + o_m * N + o_n[None, :], acc)
    tl.store(y + o_m * N + o_n[None, :], acc)
    if KIND == "from what is loaded":
        tl.store(y + M * N + o_m * N + o_n[None, :], start)


MERGED = [
    *("plain", "quotients", "descending", "remainders", "bits", "columns", "every third"),
    *("of scaled columns", "of numbers", "one of two", "from what is loaded"),
]
STAYING = [
    *("overlapping", "coarse quotients", "repeated", "rows of rounds", "half leaves 32 bits", "rounds"),
    *("mask leaves 32 bits", "backwards", "one panel", "with gaps", "of scaled rounds", "one of two, by round"),
    *("acc used", "acc stored", "rounds of a number"),
]
EITHER = ["gathered", "distance to the end"]
NUMBERS = {"half leaves 32 bits": 2**31 - 101, "mask leaves 32 bits": 2**31 - 101}


KINDS = [*MERGED, *EITHER, *STAYING]
FROM_LATER = ["plain", "quotients", "coarse quotients", "columns", "of numbers", "one panel"]  # where it matters


@pytest.mark.parametrize(
    ("kind", "low"), [*((kind, 0) for kind in KINDS), *((kind, low) for kind in FROM_LATER for low in (32, 64))]
)
def test_which_loops_are_one_dot(kind: str, low: int) -> None:
    m = 2
    torch.manual_seed(7)
    x, w = torch.randn(m, 2048).to(torch.bfloat16), torch.randn(1024 * N).to(torch.bfloat16)

    def result() -> tuple[torch.Tensor, str]:
        y = torch.zeros(2 * m * N)
        number = NUMBERS.get(kind, 256)
        compiled = variant[(1,)](x, w, y, number, KIND=kind, LOW=low, M=m, N=N, BLOCK=BLOCK)
        return y, compiled.asm["c"]

    found, text = result()
    if kind not in EITHER:
        assert (LOOP in text) == (kind in STAYING)
    with checked():
        written, _ = result()
    assert torch.equal(found, written)


@triton.jit
def nested(x, w, y, rounds, M: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr):
    """Two loops of dots in a loop, the second from the first's sums, which are used once more."""
    o_m, o_n, o_k = tl.arange(0, M)[:, None], tl.arange(0, N), tl.arange(0, BLOCK)[None, :]
    for i in range(rounds):
        first = tl.zeros((M, N), tl.float32)
        for i_k in range(0, 256, BLOCK):
            b_w = tl.load(w + i_k * N + tl.arange(0, BLOCK * N))
            first = tl.dot(tl.load(x + i * 512 + o_m * 256 + i_k + o_k), panel_operand(b_w, BLOCK, N), first)
        second = first
        for i_k in range(256, 512, BLOCK):
            b_w = tl.load(w + i_k * N + tl.arange(0, BLOCK * N))
            second = tl.dot(tl.load(x + i * 512 + o_m * 256 + i_k + o_k), panel_operand(b_w, BLOCK, N), second)
        tl.store(y + i * M * N + o_m * N + o_n[None, :], second - 0.25 * first)


def test_loops_in_a_loop() -> None:
    x, w = torch.randn(4096).to(torch.bfloat16), torch.randn(512 * N).to(torch.bfloat16)
    found, written = torch.zeros(3, 2 * N), torch.zeros(3, 2 * N)
    assert LOOP not in nested[(1,)](x, w, found, 3, M=2, N=N, BLOCK=BLOCK).asm["c"]
    with checked():
        nested[(1,)](x, w, written, 3, M=2, N=N, BLOCK=BLOCK)
    assert torch.equal(found, written)


def test_many_rows_stay_in_pieces() -> None:
    k, m = 576, 32
    _, text = run("bf16", operands("bf16", m, k, 1, 0), m, k, m, 1)
    assert LOOP in text

"""coded_bf16, alone and in a dot: its hand-written form on every instruction set, against panel and text."""

from __future__ import annotations

import ctypes
import functools
from itertools import product

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_dot_native import ISA_LEVELS, supported
from triton.compiler.errors import CompilationError

from runtime.cpu import OutOfBounds, checked, pool, toolchain
from runtime.cpu.functions import coded_bf16

SOURCE = """
#include "coded.h"
#define CODED const uint8_t *rows, const uint8_t *escapes, const uint8_t *codebook, const uint8_t *escaped
void decode(int pairs, int N, CODED, uint16_t *out) {
  const cp_coded w = {rows, escapes, codebook, escaped};
  cp_decode(pairs, N, &w, out);
}
#define WITH(START) \\
  cp_dot_coded(M, N, pairs, A, 2 * pairs, (cp_coded){rows, escapes, codebook, escaped}, C, N, START, scale)
#define PLAIN(START) cp_dot_panel(M, N, pairs, A, 2 * pairs, P, 2 * N, C, N, START, scale, 0)
void coded(int M, int N, int pairs, const uint16_t *A, CODED, float *C, int start, const float *scale) {
  if (start == 0) WITH(CP_FROM_C); else if (start == 1) WITH(CP_FROM_ZERO); else WITH(CP_FROM_SCALED);
}
void plain(int M, int N, int pairs, const uint16_t *A, const uint16_t *P, float *C, int start, const float *scale) {
  if (start == 0) PLAIN(CP_FROM_C); else if (start == 1) PLAIN(CP_FROM_ZERO); else PLAIN(CP_FROM_SCALED);
}
"""
WIDTHS = [16, 32, 64, 128]
Start = tuple[int, bool]  # of the C functions above; whether all is so small that products are denormal
STARTS = st.tuples(st.integers(0, 2), st.booleans())


@functools.cache
def native(isa: str) -> ctypes.CDLL:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEPFORGE_CPU_ISA", isa)
        return pool.load_object("coded", toolchain.build_kernel(SOURCE, "coded"))


class Coded:
    """Random rows, a fifth of them escaped, and the words [rows, N, 2] that they stand for.

    least: smallest high byte of four, either sign; None: any bits.
    """

    def __init__(self, rows: int, n: int, seed: int, least: int | None = 0x3C) -> None:
        generator = torch.Generator().manual_seed(seed)

        def drawn(*shape: int) -> torch.Tensor:
            return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)

        def high(*shape: int) -> torch.Tensor:
            some = drawn(*shape)
            return some if least is None else (some & 0x80) | (least + (some & 3))

        low, codes, self.codebook, self.escapes = drawn(rows, 2 * n), drawn(rows, n), high(16), high(rows, n)
        self.escaped = (torch.rand(rows, generator=generator) < 0.2).to(torch.uint8) * 3
        at = self.escaped[:, None] != 0
        codes = torch.where(at, high(rows, n), codes)
        numbers = torch.cat([codes & 15, codes >> 4], 1).long()
        bytes_ = torch.where(at, torch.cat([codes, self.escapes], 1), self.codebook[numbers])
        self.rows = torch.cat([low, codes], 1)
        self.words = (bytes_.int() << 8 | low.int()).to(torch.uint16).view(torch.bfloat16).view(rows, n, 2)

    @property
    def parts(self) -> tuple[torch.Tensor, ...]:
        return self.rows, self.escapes, self.codebook, self.escaped


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.int16 if x.dtype is torch.bfloat16 else torch.int32)


def at(*tensors: torch.Tensor) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]


@pytest.mark.parametrize("isa", ISA_LEVELS)
@given(st.sampled_from(WIDTHS), st.integers(1, 70), st.integers(0, 999))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_words_are_decoded(isa: str, n: int, rows: int, seed: int) -> None:
    """NaNs, infinities and denormals among them: nothing is computed with."""
    if not supported(isa):
        pytest.skip(f"this machine has no {isa}")
    coded, out = Coded(rows, n, seed, least=None), torch.zeros(rows, n, 2, dtype=torch.bfloat16)
    native(isa).decode(rows, n, *at(*coded.parts, out))
    assert torch.equal(bits(out), bits(coded.words))


@pytest.mark.parametrize("isa", ISA_LEVELS)
@given(
    st.sampled_from(WIDTHS),
    st.integers(1, 12),
    st.integers(1, 600),
    st.integers(0, 2),
    st.booleans(),
    st.integers(0, 999),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_dot_has_the_bits_of_the_plain_panel(
    isa: str, n: int, m: int, rows: int, start: int, tiny: bool, seed: int
) -> None:
    """Whatever the number of rows, in registers or through decoded pieces, and what accumulators start from."""
    if not supported(isa):
        pytest.skip(f"this machine has no {isa}")
    coded, generator = Coded(rows, n, seed, least=0x15 if tiny else 0x3C), torch.Generator().manual_seed(seed)
    a, scale = torch.randn(m, 2 * rows, generator=generator).bfloat16(), torch.rand(m, generator=generator)
    if tiny:  # products below the smallest normal number: flushed, wherever that happens
        a = a * 1e-12
    found = torch.randn(m, n, generator=generator) * (1e-39 if tiny else 1)
    wanted = found.clone()
    native(isa).coded(m, n, rows, *at(a, *coded.parts, found), start, *at(scale))
    native(isa).plain(m, n, rows, *at(a, coded.words, wanted), start, *at(scale))
    assert torch.equal(bits(found), bits(wanted))


@triton.jit
def decode(rows, escapes, codebook, escaped, out, R: tl.constexpr, N: tl.constexpr):
    words = coded_bf16(rows, escapes, codebook, escaped, R, N)
    tl.store(out + tl.arange(0, R * N * 2), tl.reshape(words, (R * N * 2,)))


@triton.jit
def multiply(
    x, rows, escapes, codebook, escaped, y, M: tl.constexpr, K: tl.constexpr, N: tl.constexpr, R: tl.constexpr
):
    o_m, o_n = tl.arange(0, M), tl.arange(0, N)
    acc = tl.zeros((M, N), tl.float32)
    for r in range(0, K // 2, R):
        b_x = tl.load(x + o_m[:, None] * K + 2 * r + tl.arange(0, 2 * R)[None, :])
        b_w = coded_bf16(rows + r * 3 * N, escapes + r * N, codebook, escaped + r, R, N)
        acc = tl.dot(b_x, tl.reshape(tl.permute(b_w, (0, 2, 1)), (2 * R, N)), acc)
    tl.store(y + o_m[:, None] * N + o_n[None, :], acc)


@triton.jit
def twice(x, rows, escapes, codebook, escaped, y, M: tl.constexpr, N: tl.constexpr, R: tl.constexpr):
    """Words that a dot and a sum read: decoded once, into an array."""
    o_m, o_n = tl.arange(0, M), tl.arange(0, N)
    b_w = coded_bf16(rows, escapes, codebook, escaped, R, N)
    b_x = tl.load(x + o_m[:, None] * (2 * R) + tl.arange(0, 2 * R)[None, :])
    dot = tl.dot(b_x, tl.reshape(tl.permute(b_w, (0, 2, 1)), (2 * R, N)))
    tl.store(y + o_m[:, None] * N + o_n[None, :], dot)
    tl.store(y + M * N + o_n, tl.max(tl.max(b_w.to(tl.float32), axis=2), axis=0))


@triton.jit
def other_width(x, rows, escapes, codebook, escaped, y, M: tl.constexpr, N: tl.constexpr, W: tl.constexpr):
    """32 rows of words in panels of another width than they were coded in."""
    K: tl.constexpr = 64 * N // W
    o_m, o_n = tl.arange(0, M), tl.arange(0, W)
    groups = tl.reshape(coded_bf16(rows, escapes, codebook, escaped, 32, N), (K // 2, W, 2))
    b_x = tl.load(x + o_m[:, None] * K + tl.arange(0, K)[None, :])
    dot = tl.dot(b_x, tl.reshape(tl.permute(groups, (0, 2, 1)), (K, W)))
    tl.store(y + o_m[:, None] * W + o_n[None, :], dot)


@triton.jit
def in_front_of_a_loop(x, rows, escapes, codebook, escaped, y, M: tl.constexpr, N: tl.constexpr, R: tl.constexpr):
    """Words that the dots of a loop read, and a dot behind it; a left operand of them too."""
    o_m, o_n, o_k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, 2 * R)
    b_w = tl.reshape(tl.permute(coded_bf16(rows, escapes, codebook, escaped, R, N), (0, 2, 1)), (2 * R, N))
    acc = tl.zeros((M, N), tl.float32)
    for i in range(3):
        b_x = tl.load(x + (i * M + o_m[:, None]) * (2 * R) + o_k[None, :])
        acc = tl.dot(b_x, b_w, acc)
    tl.store(y + o_m[:, None] * N + o_n[None, :], acc)
    left = tl.reshape(coded_bf16(rows, escapes, codebook, escaped, R, N), (2 * R, N))
    tl.store(y + M * N + o_k[:, None] * N + o_n[None, :], tl.dot(left, b_w))


@triton.jit(noinline=True)
def doubled(rows, escapes, codebook, escaped, R: tl.constexpr, N: tl.constexpr):
    return coded_bf16(rows, escapes, codebook, escaped, R, N) * 2.0


@triton.jit
def through_another_function(rows, escapes, codebook, escaped, out, R: tl.constexpr, N: tl.constexpr):
    words = doubled(rows, escapes, codebook, escaped, R, N).to(tl.bfloat16)
    tl.store(out + tl.arange(0, R * N * 2), tl.reshape(words, (R * N * 2,)))


@triton.jit
def overwritten(x, rows, escapes, codebook, escaped, y, M: tl.constexpr, N: tl.constexpr, R: tl.constexpr):
    """The codebook changes between the call and the dot: the dot has the words of before."""
    o_m, o_n = tl.arange(0, M), tl.arange(0, N)
    b_w = coded_bf16(rows, escapes, codebook, escaped, R, N)
    tl.store(codebook + tl.arange(0, 16), tl.zeros((16,), tl.uint8))
    b_x = tl.load(x + o_m[:, None] * (2 * R) + tl.arange(0, 2 * R)[None, :])
    dot = tl.dot(b_x, tl.reshape(tl.permute(b_w, (0, 2, 1)), (2 * R, N)))
    tl.store(y + o_m[:, None] * N + o_n[None, :], dot)


def plain_dot(a: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(a.shape[0], words.shape[1])
    native("native").plain(*out.shape, words.shape[0], *at(a, words, out), 1, None)
    return out


@pytest.mark.parametrize(("n", "m"), list(product([8, *WIDTHS, 256], [1, 2, 8, 16])))
def test_kernels_decode_and_multiply(n: int, m: int) -> None:
    """Of 8 and of 256 columns there is no hand-written form: the text of the function is compiled."""
    coded, k = Coded(64, n, seed=n + m), 128
    x, y = torch.randn(m, k).bfloat16(), torch.zeros(m, n)
    out = torch.zeros(64, n, 2, dtype=torch.bfloat16)
    decode[(1,)](*coded.parts, out, R=64, N=n)
    assert torch.equal(bits(out), bits(coded.words))
    kernel = multiply[(1,)](x, *coded.parts, y, M=m, K=k, N=n, R=16)
    assert ("cp_dot_coded" in kernel.asm["c"]) == (n in WIDTHS)
    if n in WIDTHS:
        assert torch.equal(bits(y), bits(plain_dot(x, coded.words)))
    torch.testing.assert_close(y, x.float() @ coded.words.permute(0, 2, 1).reshape(k, n).float(), rtol=1e-4, atol=1e-3)


def test_words_that_are_read_twice_or_outlive_their_memory() -> None:
    coded = Coded(32, 64, seed=5)
    x, y = torch.randn(4, 64).bfloat16(), torch.zeros(5, 64)
    wanted = plain_dot(x, coded.words)
    twice[(1,)](x, *coded.parts, y, M=4, N=64, R=32)
    assert torch.equal(bits(y[:4]), bits(wanted)) and torch.equal(y[4], coded.words.float().amax((0, 2)))
    y.zero_()
    overwritten[(1,)](x, *coded.parts, y, M=4, N=64, R=32)
    assert torch.equal(bits(y[:4]), bits(wanted)) and not coded.codebook.any()


@pytest.mark.parametrize("width", [8, 32, 128, 256])
def test_words_in_panels_of_another_width(width: int) -> None:
    coded = Coded(32, 64, seed=width)
    k = 2 * 32 * 64 // width
    x, y = torch.randn(2, k).bfloat16(), torch.zeros(2, width)
    other_width[(1,)](x, *coded.parts, y, M=2, N=64, W=width)
    words = coded.words.reshape(-1, width, 2).permute(0, 2, 1).reshape(k, width)
    torch.testing.assert_close(y, x.float() @ words.float(), rtol=1e-4, atol=1e-3)


def test_words_that_other_blocks_and_left_operands_read() -> None:
    coded = Coded(32, 64, seed=9)
    x, y = torch.randn(3, 2, 64).bfloat16(), torch.zeros(2 + 64, 64)
    in_front_of_a_loop[(1,)](x, *coded.parts, y, M=2, N=64, R=32)
    words = coded.words.permute(0, 2, 1).reshape(64, 64).float()
    torch.testing.assert_close(y[:2], (x.float() @ words).sum(0), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(y[2:], coded.words.reshape(64, 64).float() @ words, rtol=1e-3, atol=1e-2)


def test_a_function_that_calls_it_is_inlined() -> None:
    coded, out = Coded(32, 64, seed=3), torch.zeros(32, 64, 2, dtype=torch.bfloat16)
    through_another_function[(1,)](*coded.parts, out, R=32, N=64)
    assert torch.equal(out, coded.words * 2)


def test_other_types_than_bytes_are_refused() -> None:
    coded = Coded(32, 64, seed=3)
    rows, *others = coded.parts
    with pytest.raises(CompilationError, match="coded_bf16"):
        decode[(1,)](rows.view(torch.int8), *others, torch.zeros(32, 64, 2, dtype=torch.bfloat16), R=32, N=64)


def test_checked_kernels_look_at_every_byte_that_is_read() -> None:
    """Escapes end one row early: found where a row of them is read, and nowhere else."""
    coded, out = Coded(32, 16, seed=1), torch.zeros(32, 16, 2, dtype=torch.bfloat16)
    rows, escapes, codebook, escaped = coded.parts
    escaped[-1] = 0
    with checked():
        decode[(1,)](rows, escapes[:-1].clone(), codebook, escaped, out, R=32, N=16)
        escaped[-1] = 1
        with pytest.raises(OutOfBounds, match="escapes"):
            decode[(1,)](rows, escapes[:-1].clone(), codebook, escaped, out, R=32, N=16)

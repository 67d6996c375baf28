"""tl.dot through Triton: packed, masked and row-major operands give the bits of one order, for every number of rows."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
import triton
import triton.language as tl
from dot_oracle import dot, same_bits

import runtime.cpu
from runtime.cpu.analysis.affine import is_positive_zero
from runtime.cpu.ttir.parser import parse_module


def pack(w: torch.Tensor, width: int) -> torch.Tensor:
    """[K, N] -> panels [N/width][K/2][width][2]."""
    depth, columns = w.shape
    return w.reshape(depth // 2, 2, columns // width, width).permute(2, 0, 3, 1).contiguous()


@triton.jit
def packed_matmul(
    x, w, y, rows, K: tl.constexpr, NT: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, N: tl.constexpr
):
    panel = tl.program_id(0)
    o_n = panel * N + tl.arange(0, N)
    for m0 in range(tl.program_id(1) * BM, rows, tl.num_programs(1) * BM):
        o_m = m0 + tl.arange(0, BM)
        acc = tl.zeros((BM, N), tl.float32)
        for k0 in range(0, K, BK):
            o_k = k0 + tl.arange(0, BK)
            a = tl.load(x + o_m[:, None] * K + o_k[None, :], mask=o_m[:, None] < rows, other=0.0)
            flat = tl.load(w + panel * K * N + k0 * N + tl.arange(0, BK * N))
            b = tl.reshape(tl.permute(tl.reshape(flat, (BK // 2, N, 2)), (0, 2, 1)), (BK, N))
            acc = tl.dot(a, b, acc)
        tl.store(y + o_m[:, None] * NT + o_n[None, :], acc, mask=o_m[:, None] < rows)


def packed(x: torch.Tensor, w: torch.Tensor, width: int, BM: int, BK: int, splits: int = 1) -> torch.Tensor:
    (rows, depth), columns = x.shape, w.shape[1]
    y = torch.full((rows, columns), float("nan"))
    grid = (columns // width, splits)
    packed_matmul[grid](x, pack(w, width), y, rows, K=depth, NT=columns, BM=BM, BK=BK, N=width)
    return y


def test_every_number_of_rows_gives_the_same_rows() -> None:
    x, w = torch.randn(256, 128).bfloat16(), torch.randn(128, 128).bfloat16()
    expected = dot(x, w, torch.zeros(256, 128))
    for width, BM, BK, rows, splits in (
        (32, 1, 128, 1, 1), (32, 4, 64, 4, 1), (64, 8, 32, 8, 1), (64, 8, 32, 3, 1), (32, 64, 64, 256, 2),
        (16, 16, 128, 250, 3),
    ):  # fmt: skip
        assert same_bits(packed(x[:rows].contiguous(), w, width, BM, BK, splits), expected[:rows]), (
            width,
            BM,
            BK,
            rows,
        )


@triton.jit
def every_form(x, w, wt, panel, out, rows, strip, K: tl.constexpr, N: tl.constexpr, M: tl.constexpr):
    o_m, o_n, o_k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    o_out = o_m[:, None] * N + o_n[None, :]
    a = tl.load(x + o_m[:, None] * K + o_k[None, :], mask=o_m[:, None] < rows, other=0.0)
    # row-major
    tl.store(out + o_out, tl.dot(a, tl.load(w + o_k[:, None] * N + o_n[None, :])))
    # transposed
    tl.store(out + M * N + o_out, tl.dot(a, tl.trans(tl.load(wt + o_n[:, None] * K + o_k[None, :]))))
    # three-dimensional panel
    o_pair = tl.arange(0, K // 2)[:, None, None] * (2 * N) + o_n[None, :, None] * 2 + tl.arange(0, 2)[None, None, :]
    b = tl.reshape(tl.permute(tl.load(panel + o_pair), (0, 2, 1)), (K, N))
    tl.store(out + 2 * M * N + o_out, tl.dot(a, b))
    # rows of the panel further apart, known at run time only
    o_far = tl.arange(0, K // 2)[:, None, None] * strip + o_n[None, :, None] * 2 + tl.arange(0, 2)[None, None, :]
    b = tl.reshape(tl.permute(tl.load(panel + o_far), (0, 2, 1)), (K, N))
    tl.store(out + 3 * M * N + o_out, tl.dot(a, b))
    # masked: materialised first
    b = tl.reshape(tl.permute(tl.load(panel + o_pair, mask=o_pair < K * N, other=0.0), (0, 2, 1)), (K, N))
    tl.store(out + 4 * M * N + o_out, tl.dot(a, b))
    # left operand computed, accumulator given
    tl.store(out + 5 * M * N + o_out, tl.dot((a * 2).to(tl.bfloat16), b, tl.full((M, N), 1.0, tl.float32)))


@pytest.mark.parametrize(("M", "N", "K"), [(1, 32, 64), (4, 16, 32), (16, 64, 16), (2, 8, 32), (8, 1, 2)])
def test_every_form_of_the_right_operand(M: int, N: int, K: int) -> None:
    x, w = torch.randn(M, K).bfloat16(), torch.randn(K, N).bfloat16()
    out = torch.empty(6, M, N)
    every_form[(1,)](x, w, w.t().contiguous(), pack(w, N), out, M, 2 * N, K=K, N=N, M=M)
    expected = dot(x, w, torch.zeros(M, N))
    for k in range(5):
        assert same_bits(out[k], expected), f"form {k}"
    assert same_bits(out[5], dot(x * 2, w, torch.ones(M, N)))


def quads(w: torch.Tensor) -> torch.Tensor:
    """[K, N] int8 -> one panel [K/4][N][4]."""
    depth, columns = w.shape
    return w.reshape(depth // 4, 4, columns).permute(0, 2, 1).contiguous()


@triton.jit
def every_int8_form(x, w, wt, panel, out, rows, strip, K: tl.constexpr, N: tl.constexpr, M: tl.constexpr):
    o_m, o_n, o_k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    o_out = o_m[:, None] * N + o_n[None, :]
    a = tl.load(x + o_m[:, None] * K + o_k[None, :], mask=o_m[:, None] < rows, other=0)
    # row-major, transposed
    tl.store(out + o_out, tl.dot(a, tl.load(w + o_k[:, None] * N + o_n[None, :])))
    tl.store(out + M * N + o_out, tl.dot(a, tl.trans(tl.load(wt + o_n[:, None] * K + o_k[None, :]))))
    # three-dimensional panel, flat panel, rows of the panel further apart
    o_quad = tl.arange(0, K // 4)[:, None, None] * (4 * N) + o_n[None, :, None] * 4 + tl.arange(0, 4)[None, None, :]
    b = tl.reshape(tl.permute(tl.load(panel + o_quad), (0, 2, 1)), (K, N))
    tl.store(out + 2 * M * N + o_out, tl.dot(a, b))
    flat = tl.load(panel + tl.arange(0, K * N))
    b = tl.reshape(tl.permute(tl.reshape(flat, (K // 4, N, 4)), (0, 2, 1)), (K, N))
    tl.store(out + 3 * M * N + o_out, tl.dot(a, b))
    o_far = tl.arange(0, K // 4)[:, None, None] * strip + o_n[None, :, None] * 4 + tl.arange(0, 4)[None, None, :]
    b = tl.reshape(tl.permute(tl.load(panel + o_far), (0, 2, 1)), (K, N))
    tl.store(out + 4 * M * N + o_out, tl.dot(a, b))
    # masked: materialised first
    b = tl.reshape(tl.permute(tl.load(panel + o_quad, mask=o_quad < K * N, other=0), (0, 2, 1)), (K, N))
    tl.store(out + 5 * M * N + o_out, tl.dot(a, b))
    # left operand computed, accumulator given
    tl.store(out + 6 * M * N + o_out, tl.dot((a * 2).to(tl.int8), b, tl.full((M, N), 9, tl.int32), out_dtype=tl.int32))


@pytest.mark.parametrize("checks", [nullcontext, runtime.cpu.checked], ids=["plain", "checked"])
@pytest.mark.parametrize(("M", "N", "K"), [(1, 32, 64), (4, 16, 32), (16, 64, 16), (2, 8, 32), (8, 1, 4)])
def test_every_form_of_an_int8_operand(M: int, N: int, K: int, checks) -> None:
    x, w = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((M, K), (K, N)))
    out = torch.empty(7, M, N, dtype=torch.int32)
    with checks():
        kernel = every_int8_form[(1,)](x, w, w.t().contiguous(), quads(w), out, M, 4 * N, K=K, N=N, M=M)
    for k in range(6):
        assert torch.equal(out[k].double(), x.double() @ w.double()), f"form {k}"
    assert torch.equal(out[6].double(), (x * 2).double() @ w.double() + 9)
    in_place = N >= 16  # narrower ones are padded
    assert c_source(kernel).count("cp_dot_quads(") == 7
    assert c_source(kernel).count("cp_pack_quads") <= (1 if in_place else 7)


def c_source(kernel) -> str:
    return kernel.asm["c"]


def test_panels_are_read_in_place() -> None:
    x, w, y = torch.randn(4, 64).bfloat16(), torch.randn(64 * 32).bfloat16(), torch.empty(4, 32)
    source = c_source(packed_matmul[(1, 1)](x, w, y, 4, K=64, NT=32, BM=4, BK=32, N=32))
    assert "cp_pack_panel" not in source
    assert source.count("cp_dot_panel(") == 1


@triton.jit
def store_between(x, w, y, K: tl.constexpr, N: tl.constexpr):
    a = tl.load(x + tl.arange(0, 4)[:, None] * K + tl.arange(0, K)[None, :])
    flat = tl.load(w + tl.arange(0, K * N))
    b = tl.reshape(tl.permute(tl.reshape(flat, (K // 2, N, 2)), (0, 2, 1)), (K, N))
    tl.store(w + tl.arange(0, K * N), tl.zeros((K * N,), tl.bfloat16))
    tl.store(y + tl.arange(0, 4)[:, None] * N + tl.arange(0, N)[None, :], tl.dot(a, b))


def test_a_store_between_load_and_dot_makes_a_copy() -> None:
    x, w, y = torch.randn(4, 32).bfloat16(), torch.randn(32, 16).bfloat16(), torch.empty(4, 16)
    memory = pack(w, 16)
    store_between[(1,)](x, memory, y, K=32, N=16)
    assert same_bits(y, dot(x, w, torch.zeros(4, 16)))
    assert not memory.any()


@triton.jit
def two_products(x, w, v, y, z, rows, K: tl.constexpr, N: tl.constexpr, M: tl.constexpr, BK: tl.constexpr):
    o_m, o_n, o_k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, BK)
    left, right = tl.zeros((M, N), tl.float32), tl.zeros((M, N), tl.float32)
    for k0 in range(0, K, BK):
        a = tl.load(x + o_m[:, None] * K + (k0 + o_k)[None, :], mask=o_m[:, None] < rows, other=0.0)
        left = tl.dot(a, tl.load(w + (k0 + o_k)[:, None] * N + o_n[None, :]), left)
        right = tl.dot(a, tl.load(v + (k0 + o_k)[:, None] * N + o_n[None, :]), right)
    tl.store(y + o_m[:, None] * N + o_n[None, :], left, mask=o_m[:, None] < rows)
    tl.store(z + o_m[:, None] * N + o_n[None, :], right, mask=o_m[:, None] < rows)


@pytest.mark.parametrize("rows", [8, 5, 1])
def test_two_products_read_one_left_operand_where_it_lies(rows: int) -> None:
    """Behind the last row lies a NaN: who reads it under the mask shows it."""
    x, w, v = torch.randn(9, 128).bfloat16(), torch.randn(128, 32).bfloat16(), torch.randn(128, 32).bfloat16()
    x[rows:] = float("nan")
    y, z = torch.full((rows, 32), float("nan")), torch.full((rows, 32), float("nan"))
    source = c_source(two_products[(1,)](x, w, v, y, z, rows, K=128, N=32, M=8, BK=32))
    assert source.count("const uint16_t *left") == 1  # found out once, for both
    for got, weights in ((y, w), (z, v)):
        assert same_bits(got, dot(x[:rows], weights, torch.zeros(rows, 32)))


@triton.jit
def rescaled(x, w, factors, y, steps, M: tl.constexpr, K: tl.constexpr, N: tl.constexpr):
    o_m, o_n, o_k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    acc = tl.load(y + o_m[:, None] * N + o_n[None, :])
    for step in range(steps):
        a = tl.load(x + step * M * K + o_m[:, None] * K + o_k[None, :])
        b = tl.load(w + step * K * N + o_k[:, None] * N + o_n[None, :])
        factor = tl.load(factors + step * M + o_m)
        acc = tl.dot(a, b, acc * factor[:, None])
    tl.store(y + o_m[:, None] * N + o_n[None, :], acc)


@pytest.mark.parametrize(("M", "N"), [(1, 16), (5, 64), (8, 8), (16, 128)])
def test_a_dot_scales_the_rows_of_its_accumulator(M: int, N: int) -> None:
    M = triton.next_power_of_2(M)
    x, w = torch.randn(3, M, 32).bfloat16(), torch.randn(3, 32, N).bfloat16()
    factors, y = torch.randn(3, M), torch.randn(M, N)
    expected = y
    for a, b, factor in zip(x, w, factors, strict=True):
        expected = dot(a, b, expected * factor[:, None])
    source = c_source(rescaled[(1,)](x, w, factors, y, 3, M=M, K=32, N=N))
    assert source.count("CP_FROM_SCALED") == 1
    assert same_bits(y, expected)


@triton.jit
def from_a_constant(x, w, y, START: tl.constexpr, M: tl.constexpr, K: tl.constexpr, N: tl.constexpr):
    o_m, o_n, o_k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a, b = tl.load(x + o_m[:, None] * K + o_k[None, :]), tl.load(w + o_k[:, None] * N + o_n[None, :])
    tl.store(y + o_m[:, None] * N + o_n[None, :], tl.dot(a, b, tl.full((M, N), START, tl.float32)))


@pytest.mark.parametrize(("start", "zero"), [(0.0, True), (1.5, False)])
def test_a_dot_that_starts_from_zero_needs_no_accumulator(start: float, zero: bool) -> None:
    x, w, y = torch.full((4, 32), -0.0).bfloat16(), torch.ones(32, 16).bfloat16(), torch.empty(4, 16)
    source = c_source(from_a_constant[(1,)](x, w, y, START=start, M=4, K=32, N=16))
    assert ("CP_FROM_ZERO" in source) is zero
    assert same_bits(y, dot(x, w, torch.full((4, 16), start)))


@pytest.mark.parametrize(("text", "zero"), [("0.000000e+00", True), ("-0.000000e+00", False), ("1.0", False)])
def test_a_negative_zero_is_none_to_start_from(text: str, zero: bool) -> None:
    """Triton makes no such constant today."""
    source = f"""module {{
      tt.func public @f() {{
        %a = arith.constant dense<{text}> : tensor<4xf32>
        tt.return
      }}
    }}"""
    constant = next(op for op in parse_module(source)[0].walk() if op.name == "arith.constant")
    assert is_positive_zero(constant.result) is zero


@triton.jit
def other_types(a, b, c, D: tl.constexpr, M: tl.constexpr):
    o_m, o = tl.arange(0, M), tl.arange(0, D)
    x, y = tl.load(a + o_m[:, None] * D + o[None, :]), tl.load(b + o[:, None] * D + o[None, :])
    tl.store(c + o_m[:, None] * D + o[None, :], tl.dot(x, y, out_dtype=c.dtype.element_ty))


@pytest.mark.parametrize("depth", [1, 2, 4, 16])
def test_int8_of_every_depth(depth: int) -> None:
    a, b = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((8, depth), (depth, depth)))
    c = torch.empty(8, depth, dtype=torch.int32)
    other_types[(1,)](a, b, c, D=depth, M=8)
    assert torch.equal(c.double(), a.double() @ b.double())


@pytest.mark.parametrize(
    ("dtype", "result"),
    [
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
        (torch.float16, torch.float32),
        (torch.float16, torch.float16),
        (torch.int8, torch.int32),
    ],
    ids=str,
)
def test_other_types(dtype: torch.dtype, result: torch.dtype) -> None:
    a, b = (torch.randint(-9, 9, (m, 32)).to(dtype) for m in (8, 32))
    c = torch.empty(8, 32, dtype=result)
    other_types[(1,)](a, b, c, D=32, M=8)
    assert torch.equal(c.double(), a.double() @ b.double())


@triton.jit
def batched(a, b, c, N: tl.constexpr, D: tl.constexpr, precision: tl.constexpr):
    o = tl.arange(0, D)
    o = tl.arange(0, N)[:, None, None] * D * D + o[None, :, None] * D + o[None, None, :]
    tl.store(c + o, tl.dot(tl.load(a + o), tl.load(b + o), input_precision=precision))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8], ids=str)
def test_batches(dtype: torch.dtype) -> None:
    a, b = (torch.randint(-9, 9, (4, 16, 16)).to(dtype) for _ in range(2))
    c = torch.empty(4, 16, 16, dtype=torch.int32 if dtype == torch.int8 else torch.float32)
    batched[(1,)](a, b, c, N=4, D=16, precision=None)
    assert torch.equal(c.double(), a.double() @ b.double())


def test_every_input_precision_is_f32() -> None:
    a, b = torch.randn(2, 16, 16), torch.randn(2, 16, 16)
    results = []
    for precision in ("ieee", "tf32", "tf32x3", "bf16x3", "bf16x6"):
        c = torch.empty(2, 16, 16)
        batched[(1,)](a, b, c, N=2, D=16, precision=precision)
        results.append(c)
    torch.testing.assert_close(results[0], a @ b)
    assert all(same_bits(c, results[0]) for c in results)


def test_f32_rows_do_not_depend_on_their_number() -> None:
    a, b = torch.randn(16, 32), torch.randn(32, 32)
    full, one = torch.empty(16, 32), torch.empty(1, 32)
    other_types[(1,)](a, b, full, D=32, M=16)
    other_types[(1,)](a[:1].contiguous(), b, one, D=32, M=1)
    assert same_bits(one, full[:1])
    torch.testing.assert_close(full, a @ b)


@triton.jit
def attention_tile(q, k, v, out, D: tl.constexpr, PAGE: tl.constexpr, M: tl.constexpr):
    o_m, o_d = tl.arange(0, M), tl.arange(0, D)
    queries = tl.load(q + o_m[:, None] * D + o_d[None, :])
    keys = tl.reshape(
        tl.permute(tl.reshape(tl.load(k + tl.arange(0, D * PAGE)), (D // 2, PAGE, 2)), (0, 2, 1)), (D, PAGE)
    )
    values = tl.reshape(
        tl.permute(tl.reshape(tl.load(v + tl.arange(0, D * PAGE)), (PAGE // 2, D, 2)), (0, 2, 1)), (PAGE, D)
    )
    p = tl.exp(tl.dot(queries, keys) * 0.1)
    tl.store(out + o_m[:, None] * D + o_d[None, :], tl.dot(p.to(tl.bfloat16), values))


def test_attention_on_packed_pages() -> None:
    q, k, v = torch.randn(8, 32).bfloat16(), torch.randn(16, 32).bfloat16(), torch.randn(16, 32).bfloat16()
    out = torch.empty(8, 32)
    kernel = attention_tile[(1,)](q, pack(k.t(), 16), pack(v, 32), out, D=32, PAGE=16, M=8)
    expected = (((q.float() @ k.float().t()) * 0.1).exp().bfloat16().float()) @ v.float()
    torch.testing.assert_close(out, expected, rtol=2e-2, atol=2e-2)
    assert "cp_pack_panel" not in c_source(kernel)

"""Elementwise operations against torch and numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

N = 512
FLOAT_TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INT_TYPES = [torch.int8, torch.int16, torch.int32, torch.int64]


@triton.jit
def float_ops(x, y, z, out, n: tl.constexpr):
    i = tl.arange(0, n)
    a, b, c = tl.load(x + i), tl.load(y + i), tl.load(z + i)
    tl.store(out + i, (a + b).to(out.dtype.element_ty))
    tl.store(out + n + i, (a - b).to(out.dtype.element_ty))
    tl.store(out + 2 * n + i, (a * b).to(out.dtype.element_ty))
    tl.store(out + 3 * n + i, (a / b).to(out.dtype.element_ty))
    tl.store(out + 4 * n + i, (-a).to(out.dtype.element_ty))
    tl.store(out + 5 * n + i, tl.abs(a).to(out.dtype.element_ty))
    tl.store(out + 6 * n + i, tl.maximum(a, b))
    tl.store(out + 7 * n + i, tl.minimum(a, b))
    tl.store(out + 8 * n + i, tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL))
    tl.store(out + 9 * n + i, tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL))
    tl.store(out + 10 * n + i, tl.where(a < b, a, c))
    tl.store(out + 11 * n + i, tl.where((a >= b) | (a == c), b, c))
    tl.store(out + 12 * n + i, tl.clamp(a, -1.0, 1.0).to(out.dtype.element_ty))


def special_floats(dtype: torch.dtype) -> torch.Tensor:
    values = torch.randn(N, dtype=torch.float64) * 3
    values[:12] = torch.tensor(
        [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1.0, -1.0, 1e-3, 65504.0, 2.0, 0.5, 7.0]
    )
    return values[torch.randperm(N)].to(dtype)


@pytest.mark.parametrize("dtype", FLOAT_TYPES, ids=str)
def test_float_operations_round_once(dtype: torch.dtype) -> None:
    a, b, c = (special_floats(dtype) for _ in range(3))
    out = torch.empty(13, N, dtype=dtype)
    float_ops[(1,)](a, b, c, out, n=N)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    fa, fb = a.to(wide), b.to(wide)
    expected = [
        fa + fb, fa - fb, fa * fb, fa / fb, -fa, fa.abs(), torch.fmax(a, b), torch.fmin(a, b), torch.maximum(a, b),
        torch.minimum(a, b), torch.where(a < b, a, c), torch.where((a >= b) | (a == c), b, c),
        torch.fmin(torch.fmax(fa, torch.tensor(-1.0, dtype=wide)), torch.tensor(1.0, dtype=wide)),
    ]  # fmt: skip
    for k, value in enumerate(expected):
        torch.testing.assert_close(out[k], value.to(dtype), rtol=0, atol=0, equal_nan=True, msg=f"row {k}")


@triton.jit
def int_ops(x, y, out, n: tl.constexpr, bits: tl.constexpr):
    i = tl.arange(0, n)
    a, b = tl.load(x + i), tl.load(y + i)
    s = b & (bits - 1)
    tl.store(out + i, a + b)
    tl.store(out + n + i, a - b)
    tl.store(out + 2 * n + i, a * b)
    tl.store(out + 3 * n + i, a // b)
    tl.store(out + 4 * n + i, a % b)
    tl.store(out + 5 * n + i, a & b)
    tl.store(out + 6 * n + i, a | b)
    tl.store(out + 7 * n + i, a ^ b)
    tl.store(out + 8 * n + i, a << s)
    tl.store(out + 9 * n + i, a >> s)
    tl.store(out + 10 * n + i, tl.maximum(a, b))
    tl.store(out + 11 * n + i, tl.minimum(a, b))
    tl.store(out + 12 * n + i, tl.where(a < b, -a, ~b))
    tl.store(out + 13 * n + i, tl.abs(a))


@pytest.mark.parametrize("dtype", INT_TYPES, ids=str)
def test_integers_wrap(dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    a, b = (torch.randint(info.min, info.max, (N,), dtype=dtype) for _ in range(2))
    a[0], b[0], b[b == 0] = info.min, -1, 3
    out = torch.empty(14, N, dtype=dtype)
    int_ops[(1,)](a, b, out, n=N, bits=info.bits)
    x, y = a.numpy(), b.numpy()
    with np.errstate(all="ignore"):
        shift = y & (info.bits - 1)
        divisor = b.clone()
        divisor[0] = 1  # MIN / -1 wraps to MIN; torch traps
        quotient = torch.div(a, divisor, rounding_mode="trunc")
        expected = [
            x + y, x - y, x * y, quotient.numpy(), x - quotient.numpy() * y, x & y, x | y, x ^ y,
            x << shift, x >> shift, np.maximum(x, y), np.minimum(x, y), np.where(x < y, -x, ~y), np.abs(x),
        ]  # fmt: skip
    for k, value in enumerate(expected):
        assert np.array_equal(out[k].numpy(), value), f"row {k}"


@triton.jit
def unsigned_ops(x, y, out, wide, n: tl.constexpr):
    i = tl.arange(0, n)
    a, b = tl.load(x + i).to(tl.uint32, bitcast=True), tl.load(y + i).to(tl.uint32, bitcast=True)
    tl.store(out + i, (a // b).to(tl.int32, bitcast=True))
    tl.store(out + n + i, (a % b).to(tl.int32, bitcast=True))
    tl.store(out + 2 * n + i, (a >> 3).to(tl.int32, bitcast=True))
    tl.store(out + 3 * n + i, tl.umulhi(a, b).to(tl.int32, bitcast=True))
    tl.store(out + 4 * n + i, tl.where(a < b, 1, 0))
    tl.store(wide + i, a.to(tl.int64))
    tl.store(wide + n + i, (a.to(tl.float64)).to(tl.int64))


def test_unsigned() -> None:
    a, b = (torch.randint(-(2**31), 2**31 - 1, (N,), dtype=torch.int32) for _ in range(2))
    out, wide = torch.empty(5, N, dtype=torch.int32), torch.empty(2, N, dtype=torch.int64)
    unsigned_ops[(1,)](a, b, out, wide, n=N)
    x, y = a.numpy().view(np.uint32), b.numpy().view(np.uint32)
    high = (x.astype(np.uint64) * y.astype(np.uint64)) >> np.uint64(32)
    expected = [x // y, x % y, x >> 3, high.astype(np.uint32), x < y]
    for k, value in enumerate(expected):
        assert np.array_equal(out[k].numpy().view(np.uint32), value.astype(np.uint32)), f"row {k}"
    assert np.array_equal(wide[0].numpy(), x.astype(np.int64))
    assert np.array_equal(wide[1].numpy(), x.astype(np.int64))


@triton.jit
def division_by_zero(x, y, out, n: tl.constexpr):
    i = tl.arange(0, n)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(out + i, a // b + a % b)
    tl.store(out + n + i, tl.where(b == 0, -7, a // b))


def test_division_by_zero_does_not_trap() -> None:
    for dtype in (torch.int32, torch.int64):
        a, b = torch.arange(N, dtype=dtype), torch.arange(N, dtype=dtype) % 5
        out = torch.empty(2, N, dtype=dtype)
        division_by_zero[(1,)](a, b, out, n=N)
        assert torch.equal(out[1], torch.where(b == 0, -7, a // torch.where(b == 0, 1, b)))


@triton.jit
def convert(x, out, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(out + i, tl.load(x + i).to(out.dtype.element_ty))


@pytest.mark.parametrize("target", [torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.int8], ids=str)
def test_conversions_from_f32(target: torch.dtype) -> None:
    bits = torch.randint(-(2**31), 2**31 - 1, (1 << 14,), dtype=torch.int32)
    x = bits.view(torch.float32)
    if not target.is_floating_point:
        x = (torch.randn(1 << 14) * 30).clamp(-120, 120)
    out = torch.empty(x.numel(), dtype=target)
    convert[(1,)](x, out, n=1 << 14)
    torch.testing.assert_close(out, x.to(target), rtol=0, atol=0, equal_nan=True)


def test_float_to_int_saturates_and_nan_is_zero() -> None:
    x = torch.tensor([3e9, -3e9, float("nan"), float("inf"), -float("inf"), 2147483520.0, -2147483648.0, 1.9] * 2)
    out = torch.empty(16, dtype=torch.int32)
    convert[(1,)](x, out, n=16)
    top, low = 2**31 - 1, -(2**31)
    assert out[:8].tolist() == [top, low, 0, top, low, 2147483520, low, 1]


def test_f64_to_bf16_rounds_once() -> None:
    half_way = 1 + 2**-8
    x = torch.tensor([half_way + 2**-30, half_way - 2**-30, half_way, -half_way - 2**-30] * 4, dtype=torch.float64)
    out = torch.empty(16, dtype=torch.bfloat16)
    convert[(1,)](x, out, n=16)
    assert out[:4].float().tolist() == [1 + 2**-7, 1.0, 1.0, -1 - 2**-7]


@triton.jit
def contraction(x, y, z, out, n: tl.constexpr):
    i = tl.arange(0, n)
    a, b, c = tl.load(x + i), tl.load(y + i), tl.load(z + i)
    tl.store(out + i, a * b + c)
    tl.store(out + n + i, tl.fma(a, b, c))


def test_products_are_contracted_only_where_asked() -> None:
    a, b, c = (torch.randn(N) for _ in range(3))
    out = torch.empty(2, N)
    contraction[(1,)](a, b, c, out, n=N)
    exact = a.double() * b.double() + c.double()
    assert torch.equal(out[0], a * b + c)
    assert torch.equal(out[1], exact.float())
    assert not torch.equal(out[0], out[1])


@triton.jit
def bit_casts(x, out, n: tl.constexpr):
    i = tl.arange(0, n)
    bits = tl.load(x + i).to(tl.int32, bitcast=True)
    tl.store(out + i, (bits ^ -0x80000000).to(tl.float32, bitcast=True))


def test_bitcast_flips_the_sign() -> None:
    x, out = torch.randn(N), torch.empty(N)
    bit_casts[(1,)](x, out, n=N)
    assert torch.equal(out, -x)


@triton.jit
def device_functions(x, out, n: tl.constexpr):
    i = tl.arange(0, n)
    a = tl.load(x + i)
    tl.store(out + i, libdevice.tanh(a))
    tl.store(out + n + i, libdevice.pow(tl.abs(a), a))
    tl.store(out + 2 * n + i, tl.floor(a))
    tl.store(out + 3 * n + i, tl.ceil(a))
    tl.store(out + 4 * n + i, tl.sin(a))
    tl.store(out + 5 * n + i, tl.erf(a))


def test_device_functions() -> None:
    x, out = torch.randn(N) * 3, torch.empty(6, N)
    device_functions[(1,)](x, out, n=N)
    expected = [x.tanh(), x.abs().pow(x), x.floor(), x.ceil(), x.sin(), x.erf()]
    for k, value in enumerate(expected):
        torch.testing.assert_close(out[k], value, rtol=2e-6, atol=1e-7, msg=f"row {k}")


@triton.jit
def philox(seed, out, n: tl.constexpr):
    i = tl.arange(0, n)
    a, b, c, d = tl.randint4x(seed, i)
    tl.store(out + i, a)
    tl.store(out + n + i, b)
    tl.store(out + 2 * n + i, c)
    tl.store(out + 3 * n + i, d)


def reference_philox(seed: int, count: int) -> np.ndarray:
    """Philox 4x32-10 (Salmon et al., 2011) with counter (i, 0, 0, 0) and key (seed, 0)."""
    mask = np.uint64(0xFFFFFFFF)
    c = [np.arange(count, dtype=np.uint64), *(np.zeros(count, dtype=np.uint64) for _ in range(3))]
    key = [np.uint64(seed), np.uint64(0)]
    for _ in range(10):
        first, second = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [
            (second >> np.uint64(32)) ^ c[1] ^ key[0],
            second & mask,
            (first >> np.uint64(32)) ^ c[3] ^ key[1],
            first & mask,
        ]
        key = [(key[0] + np.uint64(0x9E3779B9)) & mask, (key[1] + np.uint64(0xBB67AE85)) & mask]
    return np.stack(c).astype(np.uint32)


def test_philox() -> None:
    out = torch.empty(4, N, dtype=torch.int32)
    philox[(1,)](1234, out, n=N)
    assert np.array_equal(out.numpy().view(np.uint32), reference_philox(1234, N))

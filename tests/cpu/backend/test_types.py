"""Every element type: conversions between all pairs, unsigned arithmetic, math in f64, comparisons, random numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

N = 256
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@triton.jit
def to_every_type(x, a, b, c, d, e, f, g, h, i, j, k, m, B: tl.constexpr):
    o = tl.arange(0, B)
    v = tl.load(x + o)
    for target in tl.static_range(12):
        p = (a, b, c, d, e, f, g, h, i, j, k, m)[target]
        tl.store(p + o, v.to(p.dtype.element_ty))


@pytest.mark.parametrize("source", [torch.bool, *INTEGERS, *FLOATS], ids=str)
def test_conversions_between_all_types(source: torch.dtype) -> None:
    signed = source.is_signed and source != torch.bool
    values = torch.randint(-100 if signed else 0, 100, (N,)) % (2 if source == torch.bool else 128)
    values = torch.where(torch.arange(N) % 2 == 0, values, -values if signed else values)
    x = (values.double() + (0.25 if source.is_floating_point else 0)).to(source)
    outs = [torch.empty(N, dtype=dtype) for dtype in (*INTEGERS, *FLOATS)]
    to_every_type[(1,)](x, *outs, B=N)
    for out in outs:
        if out.dtype.is_floating_point or out.dtype.is_signed or not signed:
            assert torch.equal(out, x.double().to(out.dtype) if source != torch.bool else x.to(out.dtype)), out.dtype
        elif not source.is_floating_point:  # integers wrap; a negative float has no unsigned value
            assert torch.equal(out, x.long().to(out.dtype)), out.dtype


@pytest.mark.parametrize("source", [torch.int32, torch.uint32, torch.int64, torch.uint64], ids=str)
def test_integers_are_rounded_to_bf16_once(source: torch.dtype) -> None:
    """Half-way points of bf16 and their neighbours, which f32 (and from 2^53 on f64) does not tell apart."""
    top = torch.iinfo(source).bits - 2
    halves = [(1 << k) + (1 << (k - 8)) for k in range(24, top + 1)]
    values = [half + step for half in halves for step in (-1, 0, 1)]
    values += [-v for v in values] if source.is_signed else []
    values += [0] * (-len(values) % N)
    x, out = torch.tensor(values, dtype=source), torch.empty(len(values), dtype=torch.bfloat16)
    for start in range(0, len(values), N):
        to_bf16[(1,)](x[start:], out[start:], B=N)
    assert out.double().tolist() == [float(_nearest_bf16(v)) for v in values]


def _nearest_bf16(value: int) -> int:
    """Nearest integer with 8 significant bits, ties to even."""
    size = abs(value)
    step = 1 << max(0, size.bit_length() - 8)
    down, rest = size // step, size % step
    up = 2 * rest > step or (2 * rest == step and down % 2 == 1)
    return (down + up) * step * (1 if value >= 0 else -1)


@triton.jit
def to_bf16(x, out, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, tl.load(x + i).to(tl.bfloat16))


@triton.jit
def unsigned_ops(x, y, out, n: tl.constexpr, bits: tl.constexpr):
    i = tl.arange(0, n)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(out + i, a + b)
    tl.store(out + n + i, a - b)
    tl.store(out + 2 * n + i, a * b)
    tl.store(out + 3 * n + i, a // b)
    tl.store(out + 4 * n + i, a % b)
    tl.store(out + 5 * n + i, a >> (b % bits).to(a.dtype))
    tl.store(out + 6 * n + i, a << (b % bits).to(a.dtype))
    tl.store(out + 7 * n + i, tl.maximum(a, b))
    tl.store(out + 8 * n + i, tl.minimum(a, b))
    tl.store(out + 9 * n + i, tl.where(a < b, a ^ b, a & b))
    tl.store(out + 10 * n + i, tl.where((a >= b) | (a == 0), ~a, a | b))


@pytest.mark.parametrize("dtype", INTEGERS[4:], ids=str)
def test_unsigned_arithmetic(dtype: torch.dtype) -> None:
    width = dtype.itemsize
    a, b = (np.frombuffer(np.random.default_rng(k).bytes(N * width), f"u{width}").copy() for k in range(2))
    a[:2], b[b == 0] = 0, 1
    out = torch.empty(11, N, dtype=dtype)
    unsigned_ops[(1,)](torch.from_numpy(a), torch.from_numpy(b), out, n=N, bits=8 * width)
    shift = b % (8 * width)
    expected = [
        a + b, a - b, a * b, a // b, a % b, a >> shift, a << shift, np.maximum(a, b), np.minimum(a, b),
        np.where(a < b, a ^ b, a & b), np.where((a >= b) | (a == 0), ~a, a | b),
    ]  # fmt: skip
    for k, value in enumerate(expected):
        assert np.array_equal(out[k].numpy(), value), f"row {k}"


@triton.jit
def high_halves(x, y, out, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(out + i, tl.umulhi(tl.load(x + i), tl.load(y + i)))


def test_high_half_of_a_64_bit_product() -> None:
    a, b = (np.frombuffer(np.random.default_rng(k).bytes(N * 8), "u8").copy() for k in range(2))
    out = torch.empty(N, dtype=torch.uint64)
    high_halves[(1,)](torch.from_numpy(a), torch.from_numpy(b), out, n=N)
    assert out.tolist() == [int(p) * int(q) >> 64 for p, q in zip(a, b, strict=True)]


@triton.jit
def math_functions(x, out, n: tl.constexpr):
    i = tl.arange(0, n)
    a = tl.load(x + i).to(tl.float64 if x.dtype.element_ty == tl.float64 else tl.float32)
    p = tl.abs(a) + 0.5
    tl.store(out + i, tl.exp(a))
    tl.store(out + n + i, tl.exp2(a))
    tl.store(out + 2 * n + i, tl.log(p))
    tl.store(out + 3 * n + i, tl.log2(p))
    tl.store(out + 4 * n + i, tl.sin(a))
    tl.store(out + 5 * n + i, tl.cos(a))
    tl.store(out + 6 * n + i, tl.sqrt(p))
    tl.store(out + 7 * n + i, tl.rsqrt(p))
    tl.store(out + 8 * n + i, tl.erf(a))
    tl.store(out + 9 * n + i, tl.floor(a))
    tl.store(out + 10 * n + i, tl.ceil(a))
    tl.store(out + 11 * n + i, tl.fma(a, a, p))
    tl.store(out + 12 * n + i, tl.sigmoid(a))
    tl.store(out + 13 * n + i, tl.softmax(a))
    tl.store(out + 14 * n + i, libdevice.tanh(a))
    tl.store(out + 15 * n + i, libdevice.pow(p, a))
    tl.store(out + 16 * n + i, libdevice.log1p(p))
    tl.store(out + 17 * n + i, libdevice.expm1(a))
    tl.store(out + 18 * n + i, libdevice.rint(a * 2))
    tl.store(out + 19 * n + i, libdevice.round(a * 2))
    tl.store(out + 20 * n + i, libdevice.trunc(a))
    tl.store(out + 21 * n + i, libdevice.fmod(a, p))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_math_functions(dtype: torch.dtype) -> None:
    x, out = (torch.randn(N) * 3).to(dtype), torch.empty(22, N, dtype=dtype)
    math_functions[(1,)](x, out, n=N)
    a = x.to(torch.float64)
    p = (x.to(torch.float64 if dtype == torch.float64 else torch.float32).abs() + 0.5).double()
    away = torch.sign(a) * torch.floor(a.abs() * 2 + 0.5)
    expected = torch.stack([
        a.exp(), a.exp2(), p.log(), p.log2(), a.sin(), a.cos(), p.sqrt(), p.rsqrt(), a.erf(), a.floor(), a.ceil(),
        a * a + p, a.sigmoid(), a.softmax(0), a.tanh(), p.pow(a), p.log1p(), a.expm1(), (a * 2).round(), away,
        a.trunc(), torch.fmod(a, p),
    ])  # fmt: skip
    bits = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}[dtype]
    tolerance = 2.0**-bits * (1.01 if bits < 24 else 16)
    torch.testing.assert_close(
        out.double(), expected.to(dtype).double(), rtol=tolerance, atol=tolerance * 2**-8 + 2.0**-25 * (bits == 11)
    )


@triton.jit
def more_device_functions(x, out, flags, n: tl.constexpr):
    i = tl.arange(0, n)
    a = tl.load(x + i)
    u = tl.abs(a) / 4
    tl.store(out + i, libdevice.tan(a))
    tl.store(out + n + i, libdevice.sinh(a))
    tl.store(out + 2 * n + i, libdevice.cosh(a))
    tl.store(out + 3 * n + i, libdevice.asin(u))
    tl.store(out + 4 * n + i, libdevice.acos(u))
    tl.store(out + 5 * n + i, libdevice.atan(a))
    tl.store(out + 6 * n + i, libdevice.asinh(a))
    tl.store(out + 7 * n + i, libdevice.acosh(1 + u))
    tl.store(out + 8 * n + i, libdevice.atanh(u))
    tl.store(out + 9 * n + i, libdevice.erfc(a))
    tl.store(out + 10 * n + i, libdevice.log10(u))
    tl.store(out + 11 * n + i, libdevice.exp10(a))
    tl.store(out + 12 * n + i, libdevice.atan2(a, u))
    tl.store(out + 13 * n + i, libdevice.hypot(a, u))
    tl.store(out + 14 * n + i, libdevice.copysign(u, a))
    tl.store(out + 15 * n + i, libdevice.lgamma(u))
    tl.store(out + 16 * n + i, libdevice.cbrt(a))
    tl.store(out + 17 * n + i, libdevice.div_rn(a, 3 + u))
    tl.store(out + 18 * n + i, libdevice.sqrt_rn(u))
    inf = a / 0.0
    tl.store(flags + i, libdevice.isinf(inf).to(tl.int32) + 2 * libdevice.isnan(inf - inf).to(tl.int32))
    tl.store(flags + n + i, libdevice.signbit(a).to(tl.int32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_more_device_functions(dtype: torch.dtype) -> None:
    x, out, flags = torch.rand(N, dtype=dtype) * 6 - 3, torch.empty(19, N, dtype=dtype), torch.empty(2, N).int()
    more_device_functions[(1,)](x, out, flags, n=N)
    a, u = x.double(), (x.abs() / 4).double()
    expected = torch.stack([
        a.tan(), a.sinh(), a.cosh(), u.asin(), u.acos(), a.atan(), a.asinh(), (1 + x.abs() / 4).double().acosh(),
        u.atanh(), a.erfc(), u.log10(), 10**a, torch.atan2(a, u), torch.hypot(a, u), u.copysign(a), u.lgamma(),
        a.sign() * a.abs().pow(1 / 3), a / (3 + x.abs() / 4).double(), u.sqrt(),
    ])  # fmt: skip
    tolerance = 1e-6 if dtype == torch.float32 else 1e-14
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)
    assert (flags[0] == 3).all()
    assert torch.equal(flags[1], (x < 0).int())


@triton.jit
def bit_functions(x, out, n: tl.constexpr):
    i = tl.arange(0, n)
    a = tl.load(x + i)
    tl.store(out + i, libdevice.popc(a))
    tl.store(out + n + i, libdevice.clz(a))
    tl.store(out + 2 * n + i, libdevice.ffs(a))
    tl.store(out + 3 * n + i, libdevice.brev(a))


@pytest.mark.parametrize("bits", [32, 64])
def test_bit_functions(bits: int) -> None:
    dtype = torch.int32 if bits == 32 else torch.int64
    x, out = torch.randint(-(2**31), 2**31, (N,)).to(dtype), torch.empty(4, N, dtype=torch.int64)
    x[0] = 0
    bit_functions[(1,)](x, out, n=N)
    for k, value in enumerate(x.tolist()):
        text = f"{value & (1 << bits) - 1:0{bits}b}"
        mirrored = int(text[::-1], 2)
        mirrored -= (mirrored >> (bits - 1)) << bits
        expected = [text.count("1"), (text + "1").index("1"), (text[::-1].find("1") + 1), mirrored]
        assert out[:, k].tolist() == expected, value


@triton.jit
def comparisons(x, y, out, n: tl.constexpr):
    i = tl.arange(0, n)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(out + i, a < b)
    tl.store(out + n + i, a <= b)
    tl.store(out + 2 * n + i, a > b)
    tl.store(out + 3 * n + i, a >= b)
    tl.store(out + 4 * n + i, a == b)
    tl.store(out + 5 * n + i, a != b)
    tl.store(out + 6 * n + i, (a < b) & (a > 0))
    tl.store(out + 7 * n + i, not_(a == b))


@triton.jit
def not_(flag):
    return flag == 0


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS[:4], torch.uint8], ids=str)
def test_comparisons(dtype: torch.dtype) -> None:
    low = -3 if dtype.is_signed else 0
    a, b = (torch.randint(low, 4, (N,)).to(dtype) for _ in range(2))
    if dtype.is_floating_point:
        a[::17], b[::13] = float("nan"), float("nan")
    out = torch.empty(8, N, dtype=torch.bool)
    comparisons[(1,)](a, b, out, n=N)
    expected = [a < b, a <= b, a > b, a >= b, a == b, a != b, (a < b) & (a > 0), ~(a == b)]
    for k, value in enumerate(expected):
        assert torch.equal(out[k], value), f"row {k}"


@triton.jit
def rounding(x, half, brain, n: tl.constexpr):
    i = tl.arange(0, n)
    v = tl.load(x + i)
    tl.store(half + i, v.to(tl.float16, fp_downcast_rounding="rtz"))
    tl.store(brain + i, v.to(tl.bfloat16, fp_downcast_rounding="rtz"))


def test_rounding_towards_zero() -> None:
    x = torch.randint(-(2**31), 2**31 - 1, (1 << 14,), dtype=torch.int32).view(torch.float32)
    x = torch.where(torch.arange(1 << 14) % 2 == 0, x, torch.randn(1 << 14) * 1e-5)
    half, brain = torch.empty(1 << 14, dtype=torch.float16), torch.empty(1 << 14, dtype=torch.bfloat16)
    rounding[(1,)](x, half, brain, n=1 << 14)
    for found in (half, brain):
        nearest = x.to(found.dtype)
        towards_zero = torch.where(
            nearest.double().abs() > x.double().abs(), nearest.nextafter(torch.zeros_like(nearest)), nearest
        )
        finite = x.isfinite()
        assert torch.equal(found[finite], towards_zero[finite])
        assert torch.equal(found.isnan(), x.isnan())


@triton.jit
def random_numbers(seed, out, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(out + i, tl.rand(seed, i))
    tl.store(out + n + i, tl.randn(seed, i))


def test_random_numbers() -> None:
    out = torch.empty(2, 1 << 14)
    random_numbers[(1,)](77, out, n=1 << 14)
    uniform, normal = out
    assert 0 <= uniform.min() < 0.001
    assert 0.999 < uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 0.01
    assert abs(normal.mean()) < 0.03
    assert abs(normal.std() - 1) < 0.02

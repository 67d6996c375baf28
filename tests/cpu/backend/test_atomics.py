"""Atomics of every kind and type, and compare-and-swap."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

N = 512


@triton.jit
def integer_atomics(x, out, old, n: tl.constexpr, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + o)
    tl.store(old + o, tl.atomic_add(out + tl.zeros_like(o), v))
    tl.atomic_and(out + 1, tl.max(v | 3, axis=0))
    tl.atomic_or(out + 2 + tl.zeros_like(o), v)
    tl.atomic_xor(out + 3 + tl.zeros_like(o), v)
    tl.atomic_max(out + 4 + tl.zeros_like(o), v)
    tl.atomic_min(out + 5 + tl.zeros_like(o), v)
    tl.atomic_xchg(out + 6 + o, v, mask=v > 0)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_integers(dtype: torch.dtype, threads) -> None:
    threads(2)
    x, old = torch.randint(-1000, 1000, (N,), dtype=dtype), torch.empty(N, dtype=dtype)
    out = torch.zeros(6 + N, dtype=dtype)
    out[1] = -1
    integer_atomics[(16,)](x, out, old, n=N, B=N // 16)
    either, both = 0, 0
    for value in x.tolist():
        either, both = either | value, both ^ value
    ends = (x.reshape(16, -1) | 3).amax(1).tolist()
    conjunction = -1
    for value in ends:
        conjunction &= value
    assert out[:6].tolist() == [x.sum(), conjunction, either, both, max(x.max(), 0), min(x.min(), 0)]
    assert torch.equal(out[6:], torch.where(x > 0, x, 0))
    # partial sums form a chain: each is the old value of one addition and the new value of another
    assert sorted([*old.tolist(), out[0].item()]) == sorted([0, *(old + x).tolist()])


@triton.jit
def unsigned_atomics(x, out, B: tl.constexpr):
    v = tl.load(x + tl.arange(0, B)).to(tl.uint32, bitcast=True)
    p = out.to(tl.pointer_type(tl.uint32))
    tl.atomic_max(p + tl.zeros_like(v), v)
    tl.atomic_min(p + 1 + tl.zeros_like(v), v)


def test_unsigned() -> None:
    x = torch.randint(-(2**31), 2**31 - 1, (N,), dtype=torch.int32)
    out = torch.tensor([0, -1], dtype=torch.int32)
    unsigned_atomics[(1,)](x, out, B=N)
    values = x.long() & 0xFFFFFFFF
    assert (out.long() & 0xFFFFFFFF).tolist() == [values.max(), values.min()]


@triton.jit
def float_atomics(x, out, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + o)
    tl.atomic_add(out + o % 8, v)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_float_sums(dtype: torch.dtype, threads) -> None:
    threads(2)
    x, out = torch.randint(-3, 4, (N,)).to(dtype), torch.zeros(8, dtype=dtype)
    float_atomics[(8,)](x, out, B=N // 8)
    assert torch.equal(out, x.reshape(-1, 8).sum(0))


@triton.jit
def float_extremes(x, out, B: tl.constexpr):
    v = tl.load(x + tl.arange(0, B))
    tl.atomic_max(out + tl.zeros([B], tl.int32), v)
    tl.atomic_min(out + 1 + tl.zeros([B], tl.int32), v)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_float_extremes(dtype: torch.dtype) -> None:
    x, out = torch.randn(N, dtype=dtype), torch.zeros(2, dtype=dtype)
    float_extremes[(1,)](x, out, B=N)
    assert out.tolist() == [x.max(), x.min()]


@triton.jit
def swaps(x, compare, value, old, B: tl.constexpr):
    o = tl.arange(0, B)
    tl.store(old + o, tl.atomic_cas(x + o // 2, tl.load(compare + o), tl.load(value + o)))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32], ids=str)
def test_compare_and_swap_of_tensors(dtype: torch.dtype) -> None:
    x = torch.randint(0, 3, (8,)).to(dtype)
    compare, value = torch.randint(0, 3, (16,)).to(dtype), torch.randint(3, 6, (16,)).to(dtype)
    old, expected, expected_old = torch.empty(16, dtype=dtype), x.clone(), []
    for k in range(16):  # elements in order: the second of a pair sees what the first left
        expected_old.append(expected[k // 2].item())
        if expected[k // 2] == compare[k]:
            expected[k // 2] = value[k]
    swaps[(1,)](x, compare, value, old, B=16)
    assert torch.equal(x, expected)
    assert old.tolist() == expected_old


@triton.jit
def lock_per_row(locks, counts, B: tl.constexpr):
    row = tl.program_id(0) % B
    while tl.atomic_cas(locks + row, 0, 1, sem="acquire") == 1:
        pass
    tl.store(counts + row, tl.load(counts + row) + 1)
    tl.atomic_xchg(locks + row, 0, sem="release")


def test_locks(threads) -> None:
    threads(2)
    locks, counts = torch.zeros(4, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    lock_per_row[(400,)](locks, counts, B=4)
    assert counts.tolist() == [100] * 4

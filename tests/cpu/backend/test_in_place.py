"""Carried tensors are updated in place and take over the arrays of their initial values: only when nobody can tell."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def initial_used_later(x, y, n, A: tl.constexpr, B: tl.constexpr):
    o = tl.arange(0, A)[:, None] * B + tl.arange(0, B)[None, :]
    first = tl.load(x + o)
    doubled = first * 2  # not stored: evaluated inside and after the loop
    s = first
    t = tl.sum(first, axis=0)
    for i in range(n):
        s = s + doubled * i
        t = t + tl.sum(s, axis=0)
    tl.store(y + o, s)
    tl.store(y + A * B + o, first)
    tl.store(y + 2 * A * B + tl.arange(0, B), t)


def test_the_initial_value_survives_if_it_is_used_later() -> None:
    A, B = 8, 32
    x, y = torch.randint(-9, 9, (A, B)).float(), torch.zeros(3, A, B)
    initial_used_later[(1,)](x, y, 4, A=A, B=B)
    s, t = x.clone(), x.sum(0)
    for i in range(4):
        s = s + x * 2 * i
        t = t + s.sum(0)
    assert torch.equal(y[0], s)
    assert torch.equal(y[1], x)
    assert torch.equal(y[2, 0], t)


@triton.jit
def loops_in_a_row(x, y, mid, outer, inner, A: tl.constexpr, B: tl.constexpr):
    o = tl.arange(0, A)[:, None] * B + tl.arange(0, B)[None, :]
    s = tl.load(x + o)
    for i in range(outer):
        for j in range(inner):
            s = s * 2 + j
        if i == 1:
            tl.store(mid + o, s)
        for _ in range(inner):
            s = s - 3
    tl.store(y + o, s)


def test_nested_loops_and_a_checkpoint_between_them() -> None:
    A, B = 4, 16
    x, y, mid = torch.randint(-9, 9, (A, B)).int(), torch.zeros(A, B).int(), torch.zeros(A, B).int()
    loops_in_a_row[(1,)](x, y, mid, 3, 2, A=A, B=B)
    s = x.clone()
    for i in range(3):
        for j in range(2):
            s = s * 2 + j
        if i == 1:
            assert torch.equal(mid, s)
        s = s - 6
    assert torch.equal(y, s)


@triton.jit
def update_with_readers(x, y, z, n, A: tl.constexpr, B: tl.constexpr):
    """The new state is reduced twice, stored, transposed, and the old state is read after the new one exists."""
    a, b = tl.arange(0, A), tl.arange(0, B)
    o = a[:, None] * B + b[None, :]
    s = tl.load(x + o)
    r = tl.load(x + o)
    for i in range(n):
        new = s * 2 + i
        tl.store(y + i * B + b, tl.sum(new, axis=0))
        tl.store(z + i * A + a, tl.max(new * 3, axis=1))
        s = new + tl.trans(tl.trans(s))
        r_new = r + tl.load(x + o)
        tl.store(z + n * A + a, tl.sum(r_new, axis=1))
        r = r_new
    tl.store(x + o, s + r)


def test_updates_with_several_readers() -> None:
    A, B, n = 8, 16, 3
    x, y, z = torch.randint(-9, 9, (A, B)).float(), torch.zeros(n, B), torch.zeros(n + 1, A)
    s, r, base = x.clone(), x.clone(), x.clone()
    update_with_readers[(1,)](x, y, z, n, A=A, B=B)
    for i in range(n):
        new = s * 2 + i
        assert torch.equal(y[i], new.sum(0))
        assert torch.equal(z[i], (new * 3).amax(1))
        s, r = new + s, r + base
    assert torch.equal(z[n], r.sum(1))
    assert torch.equal(x, s + r)


@triton.jit
def rescaled_accumulator(q, k, out, log, n, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, LOG: tl.constexpr):
    m, c, d = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    o = m[:, None] * N + c[None, :]
    left = tl.load(q + m[:, None] * K + d[None, :])
    acc = tl.zeros((M, N), tl.float32)
    for i in range(n):
        right = tl.load(k + i * K * N + d[:, None] * N + c[None, :])
        if LOG:
            tl.store(log + i * M * N + o, acc)
        acc = tl.dot(left, right, acc * 0.5)
    tl.store(out + o, acc)


def test_a_dot_accumulates_into_the_rescaled_accumulator() -> None:
    M, N, K, n = 4, 16, 8, 3
    q, k = torch.randint(-4, 4, (M, K)).bfloat16(), torch.randint(-4, 4, (n, K, N)).bfloat16()
    for keep in (False, True):
        out, log = torch.empty(M, N), torch.zeros(n, M, N)
        rescaled_accumulator[(1,)](q, k, out, log, n, M=M, N=N, K=K, LOG=keep)
        acc = torch.zeros(M, N)
        for i in range(n):
            assert not keep or torch.equal(log[i], acc)
            acc = acc * 0.5 + q.float() @ k[i].float()
        assert torch.equal(out, acc)


@triton.jit
def swapped(x, y, n, B: tl.constexpr):
    o = tl.arange(0, B)
    a = tl.load(x + o)
    b = tl.load(x + B + o)
    for i in range(n):
        total = a + b
        a = b * 2
        b = total - i
    tl.store(y + o, a)
    tl.store(y + B + o, b)


def test_two_carried_tensors_that_feed_each_other() -> None:
    x, y = torch.randint(-9, 9, (2, 32)).int(), torch.empty(2, 32).int()
    swapped[(1,)](x, y, 5, B=32)
    a, b = x[0], x[1]
    for i in range(5):
        a, b = b * 2, a + b - i
    assert torch.equal(y, torch.stack([a, b]))

"""Loops, conditionals, early returns, carried tensors and pointers, device functions."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl


@triton.jit
def recurrence(state, x, b, c, decay, y, steps, N: tl.constexpr, P: tl.constexpr):
    """S = S * decay + b u^T; y = S^T c: a state carried through a loop, with pointers that advance."""
    o_n, o_p = tl.arange(0, N), tl.arange(0, P)
    p_state = state + o_n[:, None] * P + o_p[None, :]
    s = tl.load(p_state)
    p_x, p_y = x + o_p, y + o_p
    for t in range(steps):
        s = s * tl.load(decay + t) + tl.load(b + t * N + o_n)[:, None] * tl.load(p_x)[None, :]
        tl.store(p_y, tl.sum(s * tl.load(c + t * N + o_n)[:, None], axis=0))
        p_x += P
        p_y += P
    tl.store(p_state, s)


def test_carried_state() -> None:
    T, N, P = 5, 16, 32
    state, x, b, c, decay = (torch.randn(*s) for s in ((N, P), (T, P), (T, N), (T, N), (T,)))
    s, y, expected = state.clone(), torch.empty(T, P), torch.empty(T, P)
    recurrence[(1,)](s, x, b, c, decay, y, T, N=N, P=P)
    for t in range(T):
        state = state * decay[t] + b[t][:, None] * x[t][None, :]
        products = state * c[t][:, None]
        expected[t] = products[0]
        for n in range(1, N):
            expected[t] += products[n]
    assert torch.equal(s, state)
    assert torch.equal(y, expected)
    recurrence[(1,)](s, x, b, c, decay, y, 0, N=N, P=P)
    assert torch.equal(s, state)


@triton.jit
def swaps(x, y, n, B: tl.constexpr):
    o = tl.arange(0, B)
    a = tl.load(x + o)
    b = a * 0 + 1
    for _ in range(n):
        a, b = b, a + b
    t = tl.reshape(tl.trans(tl.reshape(a, (B // 4, 4))), (B,))
    for _ in range(n):
        t = tl.reshape(tl.trans(tl.reshape(t, (B // 4, 4))), (B,)) + a
    tl.store(y + o, t)


def test_parallel_assignment() -> None:
    x = torch.arange(32, dtype=torch.int32)
    y = torch.empty_like(x)
    swaps[(1,)](x, y, 5, B=32)
    a, b = x.clone(), torch.ones_like(x)
    for _ in range(5):
        a, b = b, a + b
    t = a.reshape(8, 4).T.reshape(-1)
    for _ in range(5):
        t = t.reshape(8, 4).T.reshape(-1) + a
    assert torch.equal(y, t)


@triton.jit
def branches(x, y, n, flag, B: tl.constexpr):
    o = tl.arange(0, B)
    v = tl.load(x + o)
    if flag > 0:
        v = v * 2
        k = 5
    else:
        v = v + 7
        k = 9
    i = 0
    while i * i < n:
        i += 1
        v = v + i
    tl.store(y + o, v + k)


def test_if_and_while() -> None:
    x = torch.arange(64, dtype=torch.int32)
    for flag in (0, 1, 2):
        y = torch.empty_like(x)
        branches[(1,)](x, y, 17, flag, B=64)
        assert torch.equal(y, (x * 2 + 5 if flag else x + 16) + 15)


@triton.jit
def early_return(x, y, n, limit, B: tl.constexpr):
    p = tl.program_id(0)
    if p >= limit:
        return
    o = p * B + tl.arange(0, B)
    v = tl.load(x + o, mask=o < n, other=0.0)
    if p == 1:
        tl.store(y + o, v * 3, mask=o < n)
        return
    tl.store(y + o, v * 2, mask=o < n)


def test_early_return() -> None:
    x, y = torch.randn(1000), torch.zeros(1000)
    early_return[(10,)](x, y, 1000, 3, B=128)
    expected = torch.zeros(1000)
    expected[:384] = x[:384] * 2
    expected[128:256] = x[128:256] * 3
    assert torch.equal(y, expected)


@triton.jit(noinline=True)
def scaled(v, factor):
    total = v * factor
    for _ in range(3):
        total += 1
    return total, v


@triton.jit
def calls(x, y, B: tl.constexpr):
    o = tl.arange(0, B)
    a, b = scaled(tl.load(x + 3), 2)
    c, _ = scaled(a, 10)
    tl.store(y + o, tl.load(x + o) + b + c)


def test_functions_that_are_not_inlined() -> None:
    x = torch.arange(16, dtype=torch.int32)
    y = torch.empty_like(x)
    calls[(1,)](x, y, B=16)
    assert torch.equal(y, x + 3 + (3 * 2 + 3) * 10 + 3)


@triton.jit(noinline=True)
def classify(value, limit):
    if value < 0:
        return -1, 0
    if value > limit:
        if value > 2 * limit:
            return 2, value
        steps = 0
        while value > limit:
            value -= 3
            steps += 1
        return 1, steps
    return 0, value * value


@triton.jit(noinline=True)
def nested(value, limit):
    kind, rest = classify(value, limit)
    if kind == 2:
        return classify(rest - 100, limit)
    return kind, rest


@triton.jit
def calls_with_early_returns(x, y, n, limit):
    for k in range(n):
        if k % 2 == 0:
            kind, rest = nested(tl.load(x + k), limit)
            tl.store(y + 2 * k, kind)
            tl.store(y + 2 * k + 1, rest)


def python_classify(value: int, limit: int) -> tuple[int, int]:
    if value < 0:
        return -1, 0
    if value > 2 * limit:
        return 2, value
    return (1, -(-(value - limit) // 3)) if value > limit else (0, value * value)


def test_early_returns_of_functions_that_are_not_inlined() -> None:
    x, y = torch.arange(-20, 80, dtype=torch.int32), torch.zeros(100, 2, dtype=torch.int32)
    calls_with_early_returns[(1,)](x, y, 100, 20)
    for value, found in zip(x[::2].tolist(), y[::2].tolist(), strict=True):
        kind, rest = python_classify(value, 20)
        assert tuple(found) == (python_classify(rest - 100, 20) if kind == 2 else (kind, rest)), value
    assert not y[1::2].any()


@triton.jit
def grid_shape(y):
    x, i, j = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    at = (j * tl.num_programs(1) + i) * tl.num_programs(0) + x
    tl.store(y + at, x * 100 + i * 10 + j)


def test_three_dimensional_grid() -> None:
    y = torch.empty(4, 3, 5, dtype=torch.int32)
    grid_shape[(5, 3, 4)](y)
    j, i, x = torch.meshgrid(torch.arange(4), torch.arange(3), torch.arange(5), indexing="ij")
    assert torch.equal(y, (x * 100 + i * 10 + j).int())


@triton.jit
def arguments(out, a: tl.int32, b: tl.int64, c, flag, nothing, pair):
    tl.store(out, a + b)
    tl.store(out + 1, (c * 2).to(tl.int64))
    if flag:
        tl.store(out + 2, 1)
    if nothing is None:
        tl.store(out + 3, pair[0] * 10 + pair[1])


def test_argument_kinds() -> None:
    out = torch.zeros(4, dtype=torch.int64)
    arguments[(1,)](out, -5, 1 << 40, 2.5, True, None, (7, 3))
    assert out.tolist() == [(1 << 40) - 5, 5, 1, 73]


@triton.jit
def collatz(value, limit):
    if value <= 0:
        return 0, value
    steps = 0
    while (value != 1) & (steps < limit):
        if value % 2 == 0:
            value = value // 2
        else:
            value *= 3
            value += 1
        steps += 1
    return steps, value


@triton.jit
def cross(a0, a1, b0, b1):
    return a0 * b1, a1 * b0


@triton.jit
def mapped(x, steps, last, crossed, A: tl.constexpr, B: tl.constexpr):
    o = tl.arange(0, A)[:, None] * B + tl.arange(0, B)[None, :]
    v = tl.load(x + o)
    count, end = tl.map_elementwise(collatz, v, v * 0 + 50)
    tl.store(steps + o, count)
    tl.store(last + o, end)
    # pairs of neighbours of a row vector
    i = tl.arange(0, B)
    tl.store(crossed + i, tl.map_elementwise(cross, tl.load(x + i), tl.load(x + B + i), pack=2)[0])


def python_collatz(value: int) -> tuple[int, int]:
    steps = 0
    while value > 0 and value != 1 and steps < 50:
        value, steps = value // 2 if value % 2 == 0 else 3 * value + 1, steps + 1
    return steps, value


def test_map_elementwise_with_loops_and_early_returns() -> None:
    x = torch.randint(-5, 100, (8, 16), dtype=torch.int32)
    steps, last, crossed = torch.empty_like(x), torch.empty_like(x), torch.empty(16, dtype=torch.int32)
    mapped[(1,)](x, steps, last, crossed, A=8, B=16)
    expected = torch.tensor([python_collatz(value) for value in x.flatten().tolist()], dtype=torch.int32)
    assert torch.equal(torch.stack([steps, last], -1).reshape(-1, 2), expected)
    assert torch.equal(crossed.reshape(-1, 2), x[0].reshape(-1, 2) * x[1].reshape(-1, 2).flip(1))


@triton.jit
def ranges(x, y, n, B: tl.constexpr):
    o = tl.arange(0, B)
    acc = tl.zeros((B,), tl.int32)
    for i in tl.range(0, n, 2, num_stages=3, loop_unroll_factor=2):
        acc = acc * 3 + tl.load(x + i * B + o)
    for i in range(n - 1, -1, -3):
        acc = acc * 5 + tl.load(x + i * B + o)
    for i in tl.static_range(2):
        acc += i
    for _ in tl.range(0, n, flatten=True, disallow_acc_multi_buffer=True):
        acc += 1
    tl.store(y + o, acc)


def test_ranges() -> None:
    for n in (0, 1, 9):
        x, y = torch.randint(0, 5, (9, 16), dtype=torch.int32), torch.empty(16, dtype=torch.int32)
        ranges[(1,)](x, y, n, B=16)
        expected = torch.zeros(16, dtype=torch.int32)
        for i in range(0, n, 2):
            expected = expected * 3 + x[i]
        for i in range(n - 1, -1, -3):
            expected = expected * 5 + x[i]
        assert torch.equal(y, expected + 1 + n)


@triton.jit
def repeated_squares(x, y, n, B: tl.constexpr):
    o = tl.arange(0, B)
    v = tl.load(x + o)
    for _ in range(n):
        v = v * v
    tl.store(y + o, v)
    a, b = tl.load(x), tl.load(x + B - 1)
    while n > 0:
        a, b, n = a * a, b * b, n - 1
    tl.store(y + B, a)
    tl.store(y + B + 1, b)


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_repeated_squares_of_integers(dtype: torch.dtype, size: int) -> None:
    """gcc 12 takes `x = x * x` in a loop for a reduction, and vectorises it wrongly."""
    x, rounds = torch.arange(3, 3 + 2 * size, 2).to(dtype), 7
    y = torch.empty(size + 2, dtype=dtype)
    repeated_squares[(1,)](x, y, rounds, B=size)
    expected = x.clone()
    for _ in range(rounds):
        expected *= expected
    assert torch.equal(y[:size], expected)
    assert torch.equal(y[size:], expected[[0, -1]])

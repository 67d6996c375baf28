"""Sums down the columns of one tile, and a store of it, run in one loop nest: only when nobody can tell."""

from __future__ import annotations

import re

import pytest
import torch
import triton
import triton.language as tl


@triton.jit
def recurrence(state, b, c, y, n, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TOKENS: tl.constexpr):
    """Each token: s = s / 2 + b, y = sum of c * s over the rows. The state after the first token is stored."""
    i, j = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    m = (i < n)[:, None] & (j < n)[None, :]
    p = state + i[:, None] * COLUMNS + j[None, :]
    s = tl.load(p, mask=m, other=0.0)
    o_t = tl.arange(0, TOKENS)
    out = tl.zeros((TOKENS, COLUMNS), tl.float32)
    kept = s
    for t in tl.static_range(TOKENS):
        s = s * 0.5 + tl.load(b + t * ROWS + i)[:, None]
        if t == 0:
            kept = s
        total = tl.sum(s * tl.load(c + t * ROWS + i)[:, None], axis=0)
        out = tl.where((o_t == t)[:, None], total[None, :], out)
    tl.store(p, kept, mask=m)
    tl.store(y + o_t[:, None] * COLUMNS + j[None, :], out)


def ascending(terms: torch.Tensor) -> torch.Tensor:
    """The sum of the rows, one after another: the order of a reduction that something follows."""
    total = terms[0].clone()
    for row in terms[1:]:
        total = total + row
    return total


def tiles(code: str, elements: int) -> int:
    """How many arrays of so many elements a kernel has."""
    return len(re.findall(rf"^float \w+\[{elements}\]", code, re.MULTILINE))


@pytest.mark.parametrize(
    ("rows", "columns", "n"), [(64, 64, 64), (16, 128, 128), (32, 16, 40), (128, 64, 50), (2, 32, 1)]
)
@pytest.mark.parametrize("tokens", [1, 2, 4])
def test_a_state_is_stored_and_read_out_token_by_token(rows: int, columns: int, n: int, tokens: int) -> None:
    state, b, c = torch.randn(rows, columns), torch.randn(tokens, rows), torch.randn(tokens, rows)
    y, before = torch.empty(tokens, columns), state.clone()
    compiled = recurrence[(1,)](state, b, c, y, n, ROWS=rows, COLUMNS=columns, TOKENS=tokens)
    inside = (torch.arange(rows) < n)[:, None] & (torch.arange(columns) < n)
    s = torch.where(inside, before, 0.0)
    for t in range(tokens):
        s = s * 0.5 + b[t][:, None]
        if t == 0:
            assert torch.equal(state, torch.where(inside, s, before))
        assert torch.equal(y[t], ascending(s * c[t][:, None]))
    assert tiles(compiled.asm["c"], rows * columns) == 0


@triton.jit
def many_sums(x, y, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    i, j = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    s = tl.load(x + i[:, None] * COLUMNS + j[None, :])
    k = tl.arange(0, 8)
    out = tl.zeros((8, COLUMNS), tl.float32)
    for t in tl.static_range(7):
        s = s * 0.75 + t
        out = tl.where((k == t)[:, None], tl.sum(s, axis=0)[None, :], out)
    tl.store(y + k[:, None] * COLUMNS + j[None, :], out)


def test_more_sums_than_one_nest_has_registers_for() -> None:
    x, y = torch.randn(32, 64), torch.empty(8, 64)
    many_sums[(1,)](x, y, ROWS=32, COLUMNS=64)
    s = x.clone()
    for t in range(7):
        s = s * 0.75 + t
        assert torch.equal(y[t], ascending(s))
    assert torch.equal(y[7], torch.zeros(64))


@triton.jit
def sums_that_are_read(x, y, z, w, HOW: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Two sums and a store, and something between them that must not move past the store, or come before the sums."""
    i, j = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    p = x + i[:, None] * COLUMNS + j[None, :]
    s = tl.load(p)
    first = tl.sum(s, axis=0)
    if HOW == "the tile":
        s = s + first[None, :]
    if HOW == "a sum":
        second = tl.sum(s - first[None, :], axis=0)
    elif HOW == "the mask":
        second = tl.sum(s * 2, axis=0)
        tl.store(p, s * 3, mask=(first > 0)[None, :] & (i < ROWS)[:, None])
    else:
        second = tl.sum(s * 2, axis=0)
    if HOW == "a long computation":
        slow = tl.exp(first / 64)
    if HOW == "a store":
        tl.store(z + j, first)
    if HOW == "a loop":
        for k in range(3):
            tl.store(z + k * COLUMNS + j, first + k)
    again = tl.load(p) if HOW == "a load" else s
    if HOW != "the mask":
        tl.store(p, s * 3)
    if HOW == "a long computation":
        tl.store(z + j, slow)
        tl.store(w + j, slow + 1)
    tl.store(y + j, first)
    tl.store(y + COLUMNS + j, second)
    tl.store(y + 2 * COLUMNS + j, tl.sum(again, axis=0))


@pytest.mark.parametrize(
    "how", ["nothing", "the tile", "a sum", "the mask", "a long computation", "a store", "a loop", "a load"]
)
def test_what_stands_between_sums_and_store(how: str) -> None:
    rows, columns = 16, 32
    x, y = torch.randint(-9, 9, (rows, columns)).float(), torch.empty(3, columns)
    z, w, s = torch.zeros(3, columns), torch.zeros(columns), x.clone()
    sums_that_are_read[(1,)](x, y, z, w, HOW=how, ROWS=rows, COLUMNS=columns)
    first = s.sum(0)
    s = s + first if how == "the tile" else s
    second = (s - first).sum(0) if how == "a sum" else (s * 2).sum(0)
    assert torch.equal(y, torch.stack((first, second, s.sum(0))))
    assert torch.equal(x, torch.where(first > 0, s * 3, s) if how == "the mask" else s * 3)
    written = torch.stack([first + k for k in range(3)])
    if how == "a long computation":
        torch.testing.assert_close(z[0], (first / 64).exp())
        assert torch.equal(w, z[0] + 1)
    if how == "a loop":
        assert torch.equal(z, written)
    if how == "a store":
        assert torch.equal(z[0], first)


@triton.jit
def stores_in_between(x, z, y, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A sum, a store that may change what is summed next, a second sum, and a store of the tile."""
    i, j = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    p = x + i[:, None] * COLUMNS + j[None, :]
    s = tl.load(p)
    first = tl.sum(s, axis=0)
    tl.store(z + j, first)
    t = tl.load(p)
    second = tl.sum(t * 2, axis=0)
    tl.store(p, s + t)
    tl.store(y + j, second)


@pytest.mark.parametrize("inside", [False, True])
def test_a_store_between_two_sums(inside: bool) -> None:
    x, y = torch.randint(-9, 9, (16, 32)).float(), torch.empty(32)
    z, s = x[5] if inside else torch.empty(32), x.clone()
    t = s.clone()
    if inside:
        t[5] = s.sum(0)
    stores_in_between[(1,)](x, z, y, ROWS=16, COLUMNS=32)
    assert torch.equal(y, (2 * t).sum(0))
    assert torch.equal(x, s + t)
    assert inside or torch.equal(z, s.sum(0))


@triton.jit
def beside_other_memory(state, b, y, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """`b` is read before the state is stored, and may lie inside it."""
    i, j = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    p = state + i[:, None] * COLUMNS + j[None, :]
    s = tl.load(p) + tl.load(b + i)[:, None] * tl.load(b + j)[None, :]
    total = tl.sum(s, axis=0)
    tl.store(p, s)
    tl.store(y + j, total)


@pytest.mark.parametrize("offset", [0, 1, 40, 32 * 31])
def test_operands_that_lie_inside_the_stored_tile(offset: int) -> None:
    state, y = torch.randint(-9, 9, (32, 32)).float(), torch.empty(32)
    b = state.view(-1)[offset : offset + 32]
    expected = state + b[:, None] * b[None, :]
    beside_other_memory[(1,)](state, b, y, ROWS=32, COLUMNS=32)
    assert torch.equal(state, expected)
    assert torch.equal(y, expected.sum(0))


@triton.jit
def moved_elements(x, y, HOW: tl.constexpr, SIZE: tl.constexpr):
    """What is stored, or summed beside the store, are elements of the same memory at other places."""
    i = tl.arange(0, SIZE)
    p = x + i[:, None] * SIZE + i[None, :]
    s = tl.load(p)
    if HOW == "trans":
        tl.store(p, tl.trans(s))
    if HOW == "reshape":
        tl.store(p, tl.reshape(tl.trans(tl.reshape(s, (SIZE // 2, 2 * SIZE))), (SIZE, SIZE)))
    if HOW == "trans, summed":
        total = tl.sum(tl.trans(s) * 2, axis=0)
        tl.store(p, s + 1)
        tl.store(y + i, total)
    if HOW == "trans of what is computed":
        total = tl.sum(s, axis=0)
        tl.store(p, tl.trans(s * 2 + 1))
        tl.store(y + i, total)


@pytest.mark.parametrize("size", [16, 64])
@pytest.mark.parametrize(
    ("how", "stored", "summed"),
    [
        ("trans", lambda x: x.T, None),
        ("reshape", lambda x: x.reshape(x.shape[0] // 2, -1).T.reshape(x.shape), None),
        ("trans, summed", lambda x: x + 1, lambda x: 2 * x.sum(1)),
        ("trans of what is computed", lambda x: (x * 2 + 1).T, lambda x: x.sum(0)),
    ],
)
def test_a_tile_written_over_itself_in_another_order(size: int, how: str, stored, summed) -> None:
    x, y = torch.randint(-9, 9, (size, size)).float(), torch.empty(size)
    before = x.clone()
    moved_elements[(1,)](x, y, HOW=how, SIZE=size)
    assert torch.equal(x, stored(before))
    assert summed is None or torch.equal(y, summed(before))


@triton.jit
def turned_row(x, N: tl.constexpr):
    o = tl.arange(0, N)
    tl.store(x + o, tl.reshape(tl.trans(tl.reshape(tl.load(x + o), (8, N // 8))), (N,)))


def test_a_row_written_over_itself_in_another_order() -> None:
    x = torch.arange(128.0)
    turned_row[(1,)](x, N=128)
    assert torch.equal(x, torch.arange(128.0).reshape(8, 16).T.reshape(-1))


@triton.jit
def carried(x, y, n, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Sums and a store in every round of a loop that carries the tile."""
    i, j = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    p = x + i[:, None] * COLUMNS + j[None, :]
    s = tl.load(p)
    for t in range(n):
        old = tl.sum(s, axis=0)
        s = s * 2 + t
        new = tl.sum(s * 3, axis=0)
        tl.store(p, s - 1)
        tl.store(y + t * COLUMNS + j, new - old)
    tl.store(p + ROWS * COLUMNS, s)


def test_sums_of_a_carried_tile() -> None:
    rows, columns, n = 16, 64, 4
    x, y = torch.randint(-9, 9, (2, rows, columns)).float(), torch.empty(n, columns)
    s = x[0].clone()
    carried[(1,)](x, y, n, ROWS=rows, COLUMNS=columns)
    for t in range(n):
        old, s = s.sum(0), s * 2 + t
        assert torch.equal(y[t], (s * 3).sum(0) - old)
    assert torch.equal(x, torch.stack((s - 1, s)))

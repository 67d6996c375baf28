"""Tiles whose places a loop reads from a table: each round fetches those of the next, and reads nothing else for it."""

from __future__ import annotations

import re

import pytest
import torch
import triton
import triton.language as tl
from alone import alone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.cpu import checked
from runtime.device import panel_operand

K, N, PAGES, ENTRIES = 32, 32, 9, 40


@triton.jit
def paged_products(
    x, table, keys, values, y, low, high, STEP: tl.constexpr, M: tl.constexpr, K: tl.constexpr, N: tl.constexpr
):
    """y [M, N] += x [M, K] keys[page] + x values[page] of every page that the table names; panels [K/2, N, 2]."""
    o_x = tl.arange(0, M)[:, None] * K + tl.arange(0, K)[None, :]
    o_y = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    o_tile = tl.arange(0, K * N)
    a, acc = tl.load(x + o_x), tl.load(y + o_y)
    for i in range(low, high, STEP):
        tile = tl.load(table + i).to(tl.int64) * (K * N)
        key = panel_operand(tl.load(keys + tile + o_tile), K, N)
        value = panel_operand(tl.load(values + tile + o_tile), K, N)
        acc = tl.dot(a, value, tl.dot(a, key, acc))
    tl.store(y + o_y, acc)


def whole(*shape: int) -> torch.Tensor:
    """Small whole numbers, whose sums of products are exact in any order."""
    return torch.randint(-4, 5, shape).to(torch.bfloat16)


def panel(matrices: torch.Tensor, group: int = 2) -> torch.Tensor:
    """[pages, K, N] as [pages, K/group, N, group]."""
    pages, depth, columns = matrices.shape
    return matrices.reshape(pages, depth // group, group, columns).permute(0, 1, 3, 2).contiguous()


def run(table: torch.Tensor, low: int, high: int, step: int, rows: int = 4, **options: int) -> str:
    """Launch, compare with torch, and return the C source."""
    x, keys, values, y = whole(rows, K), whole(PAGES, K, N), whole(PAGES, K, N), whole(rows, N).float()
    expected = y + sum(
        (x.float() @ (keys[p] + values[p].float()) for p in table[low:high:step].tolist()), torch.zeros(rows, N)
    )
    compiled = paged_products[(1,)](
        x, table, panel(keys), panel(values), y, low, high, STEP=step, M=rows, K=K, N=N, **options
    )
    assert torch.equal(y, expected)
    return next(text for name, text in compiled.asm.items() if name.endswith("c"))  # "c", of a checked one "bounds.c"


@given(
    table=st.lists(st.integers(0, PAGES - 1), min_size=ENTRIES, max_size=ENTRIES),
    low=st.integers(0, ENTRIES), high=st.integers(0, ENTRIES), step=st.sampled_from([1, 3]),
    rows=st.sampled_from([1, 4, 16]),
)  # fmt: skip
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_table_and_any_rounds(table: list[int], low: int, high: int, step: int, rows: int) -> None:
    run(torch.tensor(table, dtype=torch.int32), low, high, step, rows)


def argument_of(source: str, name: str) -> str:
    """The kernel's argument that a pointer of its C source is computed from."""
    while not re.fullmatch(r"a\d+", name):
        (name,) = re.findall(rf"\b{name} = \((?:const char \*\)\()?(\w+)", source)
    return name


def test_each_round_fetches_the_tiles_of_the_next() -> None:
    source = run(torch.arange(PAGES, dtype=torch.int32), 0, PAGES, 1)
    fetched = re.findall(r"cp_dot_panel\(.*\((next\d+) \? \1 - \(const char \*\)\((\w+)\) : 0\)\);", source)
    assert [(argument_of(source, following), argument_of(source, here)) for following, here in fetched] == [
        ("a2", "a2"),
        ("a3", "a3"),
    ]
    assert source.count("cp_prefetch(") == 1, "values of the first round, for which nobody fetched"


def test_a_distance_that_the_launch_asks_for_is_kept() -> None:
    source = run(torch.arange(PAGES, dtype=torch.int32), 0, PAGES, 1, prefetch_bytes=512)
    assert "next" not in source and source.count("CP_PREFETCH_BYTES);") == 2


def test_a_checked_kernel_fetches_nothing() -> None:
    with checked():
        source = run(torch.arange(PAGES, dtype=torch.int32), 0, PAGES, 1)
    assert "next" not in source


@triton.jit
def asserted(table, keys, y, rounds, count, K: tl.constexpr, N: tl.constexpr):
    """Ends by an assertion before it reads more than `count` entries."""
    ones, acc = tl.full((1, K), 1.0, tl.bfloat16), tl.zeros((1, N), tl.float32)
    for i in range(rounds):
        tl.device_assert(i < count, "past the table")
        tile = tl.load(keys + tl.load(table + i) % 2 * (K * N) + tl.arange(0, K * N))
        acc = tl.dot(ones, panel_operand(tile, K, N), acc)
    tl.store(y + tl.arange(0, N)[None, :], acc)


AT_THE_END = """
import ctypes, mmap, torch
import test_tiles as tiles
from runtime.cpu import DeviceAssertFailed

block = mmap.mmap(-1, 2 * mmap.PAGESIZE)
memory = torch.frombuffer(block, dtype=torch.int32)
count = mmap.PAGESIZE // 4
memory[:count] = torch.arange(count) % tiles.PAGES
libc = ctypes.CDLL(None, use_errno=True)
assert libc.mprotect(ctypes.c_void_p(memory.data_ptr() + mmap.PAGESIZE), mmap.PAGESIZE, 0) == 0
for low, step in ((count - 7, 1), (count - 7, 3), (count - 1, 1)):
    tiles.run(memory[:count], low, count, step)
keys, y = tiles.whole(2, tiles.K, tiles.N), torch.empty(1, tiles.N)
try:
    tiles.asserted[(1,)](memory[count - 4 : count], keys, y, 9, 4, K=tiles.K, N=tiles.N, debug=True)
except DeviceAssertFailed:
    print("ended by the assertion")
"""


def test_nothing_behind_the_last_round_is_read_from_the_table() -> None:
    """The page behind the table cannot be read: a look at one entry more would end the process."""
    assert alone(AT_THE_END) == "ended by the assertion"


@triton.jit
def linked(x, table, keys, y, rounds, KIND: tl.constexpr, K: tl.constexpr, N: tl.constexpr):
    """As above, of one matrix; the entry may be named by the round before or a second table, or hidden by a mask."""
    o_x, o_n = tl.arange(0, K)[None, :], tl.arange(0, N)[None, :]
    a, acc, page = tl.load(x + o_x), tl.zeros((1, N), tl.float32), 0
    for i in range(rounds):
        if KIND == "plain":
            page = tl.load(table + i)
        elif KIND == "carried":
            page = tl.load(table + page)
        elif KIND == "second":
            page = tl.load(table + tl.load(table + i))
        else:
            page = tl.load(table + i, mask=i < rounds - 1, other=0)
        tile = tl.load(keys + page * (K * N) + tl.arange(0, K * N))
        acc = tl.dot(a, panel_operand(tile, K, N), acc)
    tl.store(y + o_n, acc)


@pytest.mark.parametrize("kind", ["plain", "carried", "second", "masked"])
def test_what_the_counter_alone_does_not_tell_is_not_fetched(kind: str) -> None:
    table, x, keys, y = torch.randperm(PAGES).int(), whole(1, K), whole(PAGES, K, N), torch.empty(1, N)
    compiled = linked[(1,)](x, table, panel(keys), y, PAGES, KIND=kind, K=K, N=N)
    page, expected = 0, torch.zeros(1, N)
    for i in range(PAGES):
        if kind == "plain":
            page = int(table[i])
        elif kind == "carried":
            page = int(table[page])
        elif kind == "second":
            page = int(table[int(table[i])])
        else:
            page = int(table[i]) if i < PAGES - 1 else 0
        expected += x.float() @ keys[page].float()
    assert torch.equal(y, expected)
    assert ("next" in compiled.asm["c"]) is (kind == "plain")


@triton.jit
def other_forms(table, keys, y, rounds, FORM: tl.constexpr, K: tl.constexpr, N: tl.constexpr, GROUP: tl.constexpr):
    """y [2, N] += ones [2, K] keys[page], of each page once, or twice, or in a loop of its own."""
    ones, acc = tl.full((2, K), 1, keys.dtype.element_ty), tl.zeros((2, N), y.dtype.element_ty)
    for i in range(rounds):
        tile = tl.load(keys + tl.load(table + i) * (K * N) + tl.arange(0, K * N))
        key = panel_operand(tile, K, N, GROUP)
        if FORM == "loop":
            for _ in range(3):
                acc = tl.dot(ones, key, acc, out_dtype=acc.dtype)
        else:
            acc = tl.dot(ones, key, acc, out_dtype=acc.dtype)
            if FORM == "twice":
                acc = tl.dot(ones + ones, key, acc, out_dtype=acc.dtype)
    tl.store(y + tl.arange(0, 2)[:, None] * N + tl.arange(0, N)[None, :], acc)


@pytest.mark.parametrize(
    ("form", "dtype", "depth", "columns", "times", "fetches"),
    [
        ("once", torch.bfloat16, 32, 32, 1, 1),
        ("once", torch.int8, 64, 32, 1, 1),
        ("once", torch.bfloat16, 64, 8, 1, 0),  # copied into a wider panel
        ("once", torch.bfloat16, 16, 16, 1, 0),  # small
        ("twice", torch.bfloat16, 32, 32, 3, 1),  # the first one fetches
        ("loop", torch.bfloat16, 32, 32, 3, 0),
    ],
)
def test_a_tile_is_fetched_by_the_first_product_that_reads_it(form, dtype, depth, columns, times, fetches) -> None:
    group, table = (2, 4)[dtype is torch.int8], torch.randperm(PAGES).int()
    keys = torch.randint(-4, 5, (PAGES, depth, columns)).to(dtype)
    y = torch.empty(2, columns, dtype=torch.int32 if dtype is torch.int8 else torch.float32)
    compiled = other_forms[(1,)](table, panel(keys, group), y, PAGES, FORM=form, K=depth, N=columns, GROUP=group)
    assert torch.equal(y, times * keys.to(y.dtype).sum((0, 1)).expand(2, columns))
    assert len(re.findall(r"next\d+ \?", compiled.asm["c"])) == fetches

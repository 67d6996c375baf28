"""Check mode finds accesses of two programs, or two lanes, to one element, and no others."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from checked_kernels import copy_one, found, line, overlapping

from runtime.cpu import DataRace, LaneConflict, checked


def test_two_programs_store_to_one_element() -> None:
    x, y = torch.randn(48), torch.empty(48)
    fields = found(
        DataRace, "overlap", lambda: overlapping[(2,)](x, y, B=32), races=True,
        op="store", program=(1, 0, 0), lane=(0,), argument="y", element=16, other_program=(0, 0, 0), other_op="store",
    )  # fmt: skip
    assert fields["other_location"] == line("overlap")
    assert fields["source"] == fields["other_source"] == "tl.store(y + o, v)  # bug: overlap"
    assert (fields["other_argument"], fields["other_element"]) == ("y", 16)
    with checked(races=True, same_value=True):
        overlapping[(2,)](x, y, B=32)
    assert torch.equal(x, y)


@triton.jit
def shift_in_place(x, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + o + 1, mask=o + 1 < n, other=0)  # bug: reads right
    tl.store(x + o, v, mask=o < n)  # bug: writes left


def test_one_program_reads_what_another_writes() -> None:
    x = torch.randn(64)
    fields = found(
        DataRace, "writes left", lambda: shift_in_place[(2,)](x, 64, B=32), races=True,
        op="store", program=(1, 0, 0), lane=(0,), element=32, other_program=(0, 0, 0), other_op="load",
    )  # fmt: skip
    assert fields["other_location"] == line("reads right")
    assert "reads right" in fields["other_source"] and "writes left" in fields["source"]


def test_a_race_of_two_arguments_names_both() -> None:
    memory = torch.zeros(96)
    with checked(races=True), pytest.raises(DataRace) as caught:
        copy_one[(2,)](memory[:64], memory[32:], B=32)
    fields = caught.value.fields
    assert (fields["op"], fields["argument"], fields["element"]) == ("load", "x", 32)
    assert (fields["other_op"], fields["other_argument"], fields["other_element"]) == ("store", "y", 0)
    first = str(caught.value).splitlines()[0]
    assert "race on element 32 of x: load by program (1, 0, 0), lane 0, store through y (element 0) by" in first


@triton.jit
def prefix(x, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    before = tl.load(x + o - B, mask=(o >= B) & (o < n), other=0)  # bug: read after write
    tl.store(x + o, before + 1, mask=o < n)


def test_read_after_write_between_programs() -> None:
    x = torch.zeros(8, 16)
    found(
        DataRace, "read after write", lambda: prefix[(8,)](x, 128, B=16), races=True,
        op="load", program=(1, 0, 0), lane=(0,), element=0, other_program=(0, 0, 0), other_op="store",
    )  # fmt: skip


@triton.jit
def peek(counter, y):
    tl.store(y + tl.program_id(1), tl.load(counter))  # bug: peek
    tl.atomic_add(counter, 1)  # bug: update


def test_plain_load_of_what_others_update() -> None:
    counter, y = torch.zeros(1, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    fields = found(
        DataRace, "peek", lambda: peek[(1, 4)](counter, y), races=True,
        op="load", program=(0, 1, 0), other_program=(0, 0, 0), other_op="atomic",
    )  # fmt: skip
    assert fields["other_location"] == line("update")


@triton.jit
def unordered(data, flag, y):
    if tl.program_id(0) == 0:
        tl.store(data, 1.0)
        tl.atomic_xchg(flag, 1, sem="relaxed")
    else:
        while tl.atomic_add(flag, 0, sem="relaxed") == 0:
            pass
        tl.store(y, tl.load(data))  # bug: relaxed


def test_relaxed_atomics_order_nothing() -> None:
    data, flag, y = torch.zeros(1), torch.zeros(1, dtype=torch.int32), torch.zeros(1)
    found(DataRace, "relaxed", lambda: unordered[(2,)](data, flag, y), races=True, program=(1, 0, 0), argument="data")


@triton.jit
def last_one_sums(x, partial, counter, y, n, P: tl.constexpr, B: tl.constexpr):
    i = tl.program_id(0)
    o = i * B + tl.arange(0, B)
    tl.store(partial + i, tl.sum(tl.load(x + o, mask=o < n, other=0), axis=0))
    if tl.atomic_add(counter, 1) == P - 1:
        tl.store(y, tl.sum(tl.load(partial + tl.arange(0, P)), axis=0))


@triton.jit
def locked(lock, total):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(total, tl.load(total) + 1)
    tl.atomic_xchg(lock, 0)


def test_atomics_order_programs() -> None:
    x, partial, y = torch.ones(500), torch.empty(8), torch.empty(1)
    counter, total = torch.zeros(2, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    with checked(races=True):
        last_one_sums[(8,)](x, partial, counter, y, 500, P=8, B=64)
        locked[(20,)](counter[1:], total)
    assert (y.item(), total.item()) == (500, 20)


@triton.jit
def mixed_sizes(x, flags, y, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(flags + o, (tl.load(x + o) > 0).to(tl.int8))
    tl.store(y + o, tl.load(x + o).to(tl.float64))


def test_neighbours_of_any_size_do_not_race() -> None:
    x, flags, y = torch.randn(64), torch.empty(64, dtype=torch.int8), torch.empty(64, dtype=torch.float64)
    with checked(races=True):
        mixed_sizes[(64,)](x, flags, y, B=1)
        mixed_sizes[(4,)](x, flags, y, B=16)
    assert torch.equal(y, x.double())


@triton.jit
def scatter(x, index, y, B: tl.constexpr):
    o = tl.arange(0, B)
    i = tl.load(index + o)
    tl.store(y + i, tl.load(x + o))  # bug: scatter
    tl.store(y + i, 0.0)
    tl.store(y + 3, 1.0)  # another store may overwrite


def test_two_lanes_of_one_store() -> None:
    x, y, index = torch.randn(16), torch.empty(16), torch.arange(16)
    with checked(races=True):
        scatter[(1,)](x, index, y, B=16)
    index[11] = 4
    found(
        LaneConflict, "scatter", lambda: scatter[(1,)](x, index, y, B=16), races=True,
        op="store", lane=(11,), argument="y", element=4,
    )  # fmt: skip
    x[11] = x[4]
    with checked(races=True):
        scatter[(1,)](x, index, y, B=16)

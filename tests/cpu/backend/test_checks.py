"""Check mode finds planted bugs, with the right line, program, lane and element, and is silent elsewhere."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

import runtime.cpu
from codegen.catalogue import subclasses
from runtime.cpu import (
    BadArgument,
    CpuBackendError,
    DataRace,
    LaneConflict,
    OffsetOverflow,
    OutOfBounds,
    UninitialisedRead,
    checked,
    knobs,
    poison,
)
from runtime.cpu.checks import mode
from runtime.cpu.errors import BadKnob
from runtime.cpu.graph import HostGraph
from tests.cpu.fuzz import versions

HERE = Path(__file__)
LINES = HERE.read_text().split("\n")


def line(mark: str) -> str:
    """`file:line` of the statement that ends with the comment `# bug: mark`."""
    [number] = [k for k, text in enumerate(LINES, 1) if text.endswith(f"# bug: {mark}")]
    return f"{HERE}:{number}"


def found(error: type, mark: str, run: Callable[[], Any], *, races: bool = False, **expected: Any) -> dict:
    """Run in check mode, expect `error` at the marked line with these fields; returns all fields."""
    with checked(races=races), pytest.raises(error) as caught:
        run()
    fields = caught.value.fields
    assert type(caught.value) is error
    assert fields["location"].split(" called from ")[0] == line(mark)
    assert {name: fields[name] for name in expected} == expected
    assert fields["kernel"] in str(caught.value) and fields["location"] in str(caught.value)
    return fields


# ---- bounds


@triton.jit
def copy_up_to(x, y, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    m = o <= n
    v = tl.load(x + o, mask=m)  # bug: off by one
    tl.store(y + o, v, mask=m)


def test_mask_off_by_one() -> None:
    x, y = torch.randn(1000), torch.randn(1024)
    fields = found(
        OutOfBounds, "off by one", lambda: copy_up_to[(4,)](x, y, 1000, B=256),
        kernel="copy_up_to", op="load", program=(3, 0, 0), lane=(232,), argument="x", element=1000, low=0, high=999,
    )  # fmt: skip
    assert fields["shape"] == (256,)


@triton.jit
def unmasked_store(x, y, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + o, tl.load(x + o, mask=o < n))  # bug: no mask


def test_missing_mask_on_the_last_block_writes_nothing_outside() -> None:
    x, memory = torch.ones(1000), torch.zeros(2000)
    found(
        OutOfBounds, "no mask", lambda: unmasked_store[(4,)](x, memory[:1000], 1000, B=256),
        op="store", program=(3, 0, 0), lane=(232,), argument="y", element=1000, high=999,
    )  # fmt: skip
    assert memory[:1000].all() and not memory[1000:].any()


def test_grid_too_large() -> None:
    x, y = torch.ones(1024), torch.zeros(1024)
    found(
        OutOfBounds, "no mask", lambda: unmasked_store[(5,)](x, y, 1024, B=256),
        program=(4, 0, 0), lane=(0,), argument="y", element=1024,
    )  # fmt: skip


@triton.jit
def difference(x, y, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    before = tl.load(x + o - 1, mask=o < n)  # bug: negative
    tl.store(y + o, tl.load(x + o, mask=o < n) - before, mask=o < n)


def test_negative_index() -> None:
    x, y = torch.randn(100), torch.empty(100)
    found(
        OutOfBounds, "negative", lambda: difference[(1,)](x, y, 100, B=128),
        program=(0, 0, 0), lane=(0,), argument="x", element=-1,
    )  # fmt: skip


@triton.jit
def copy_rows(x, y, stride_row, stride_column, rows, columns, A: tl.constexpr, B: tl.constexpr):
    a, b = tl.program_id(0) * A + tl.arange(0, A), tl.arange(0, B)
    m = (a[:, None] < rows) & (b[None, :] < columns)
    v = tl.load(x + a[:, None] * stride_row + b[None, :] * stride_column, mask=m)  # bug: stride
    tl.store(y + a[:, None] * columns + b[None, :], v, mask=m)


def test_wrong_stride() -> None:
    x, y = torch.randn(6, 20), torch.empty(6, 20)
    found(
        OutOfBounds, "stride", lambda: copy_rows[(2,)](x, y, 21, 1, 6, 20, A=4, B=32),
        program=(1, 0, 0), lane=(1, 15), argument="x", element=120, high=119,
    )  # fmt: skip


def test_swapped_arguments() -> None:
    x, y = torch.randn(6, 20), torch.empty(6, 20)
    found(
        OutOfBounds, "stride", lambda: copy_rows[(2,)](x, y, 1, 20, 6, 20, A=4, B=32),
        program=(0, 0, 0), lane=(0, 6), argument="x", element=120,
    )  # fmt: skip
    copy_rows[(2,)](x, y, 20, 1, 6, 20, A=4, B=32)
    assert torch.equal(x, y)


def test_the_gap_of_a_view_belongs_to_nobody() -> None:
    memory, y = torch.randn(6, 40), torch.empty(6, 24)
    view = memory[:, :20]
    fields = found(
        OutOfBounds, "stride", lambda: copy_rows[(2,)](view, y, 40, 1, 6, 24, A=4, B=32),
        program=(0, 0, 0), lane=(0, 20), argument="x", element=20,
    )  # fmt: skip
    assert "strides (40, 1)" in fields["allowed"]
    with checked(extent="storage"):
        copy_rows[(2,)](view, y, 40, 1, 6, 24, A=4, B=32)
    assert torch.equal(y, memory[:, :24])


@triton.jit
def neighbour_row(x, y, columns, B: tl.constexpr):
    row, o = tl.program_id(0), tl.arange(0, B)
    v = tl.load(x + (row + 1) * columns + o, mask=o < columns, other=0)  # bug: neighbour
    tl.store(y + row * columns + o, v, mask=o < columns)


def test_reading_past_the_last_row() -> None:
    x, y = torch.randn(5, 12), torch.empty(5, 12)
    found(
        OutOfBounds, "neighbour", lambda: neighbour_row[(5,)](x, y, 12, B=16),
        program=(4, 0, 0), lane=(0,), element=60, high=59,
    )  # fmt: skip


def test_landing_in_another_tensor_is_out_of_bounds() -> None:
    memory = torch.zeros(2, 5, 12)
    x, y = memory[0], memory[1]
    fields = found(OutOfBounds, "neighbour", lambda: neighbour_row[(5,)](x, y, 12, B=16), argument="x", element=60)
    assert "element 0 of y" in fields["detail"]


@triton.jit
def take(x, index, y, n, B: tl.constexpr):
    o = tl.arange(0, B)
    i = tl.load(index + o, mask=o < n, other=1 << 30)
    v = tl.load(x + i, mask=o < n)  # bug: index
    tl.store(y + o, v, mask=o < n)


def test_gather_with_an_index_out_of_range() -> None:
    x, y, index = torch.randn(50), torch.empty(8), torch.arange(8)
    with checked():
        take[(1,)](x, index, y, 8, B=16)
    assert torch.equal(y, x[:8])
    index[5] = 50
    found(OutOfBounds, "index", lambda: take[(1,)](x, index, y, 8, B=16), lane=(5,), argument="x", element=50)
    index[3] = -7
    found(OutOfBounds, "index", lambda: take[(1,)](x, index, y, 8, B=16), lane=(3,), argument="x", element=-7)


@triton.jit
def take_from_tile(x, index, y, B: tl.constexpr):
    o = tl.arange(0, B)
    v = tl.gather(tl.load(x + o), tl.load(index + o), 0)  # bug: tile
    tl.store(y + o, v)


def test_gather_from_a_tile() -> None:
    x, y, index = torch.randn(16), torch.empty(16), torch.zeros(16, dtype=torch.int32)
    index[9] = 16
    found(OutOfBounds, "tile", lambda: take_from_tile[(1,)](x, index, y, B=16), lane=9, element=16, high=15)


@triton.jit
def count(x, bins, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    tl.atomic_add(bins + tl.load(x + o, mask=o < n), 1, mask=o < n)  # bug: bins


def test_atomic_out_of_range() -> None:
    x, bins = torch.zeros(100, dtype=torch.int32), torch.zeros(7, dtype=torch.int32)
    x[70] = 7
    found(OutOfBounds, "bins", lambda: count[(2,)](x, bins, 100, B=64), op="atomic", program=(1, 0, 0), lane=(6,))
    assert bins.tolist() == [70, 0, 0, 0, 0, 0, 0]


@triton.jit
def block_pointer(x, y, rows, columns, A: tl.constexpr, B: tl.constexpr):
    p = tl.make_block_ptr(x, (rows, columns), (columns, 1), (tl.program_id(0) * A, 0), (A, B), (1, 0))
    v = tl.load(p, boundary_check=(0, 1))  # bug: block pointer
    tl.store(y + tl.arange(0, A)[:, None] * B + tl.arange(0, B)[None, :], v)


@pytest.mark.skipif(not versions.holds(versions.BLOCK_POINTERS), reason="block pointers are gone")
def test_block_pointer_with_a_wrong_shape() -> None:
    x, y = torch.randn(6, 20), torch.empty(4, 32)
    with checked():
        block_pointer[(2,)](x, y, 6, 20, A=4, B=32)
    found(
        OutOfBounds, "block pointer", lambda: block_pointer[(2,)](x, y, 7, 20, A=4, B=32),
        op="load", program=(1, 0, 0), lane=(2, 0), argument="x", element=120,
    )  # fmt: skip


@triton.jit
def descriptor(x, y, rows, columns, A: tl.constexpr, B: tl.constexpr):
    d = tl.make_tensor_descriptor(y, [rows, columns], [columns, 1], [A, B])
    v = tl.load(x + tl.arange(0, A)[:, None] * B + tl.arange(0, B)[None, :])
    d.store([tl.program_id(0) * A, 0], v)  # bug: descriptor


def test_descriptor_with_a_wrong_shape() -> None:
    x, y = torch.randn(4, 32), torch.zeros(6, 32)
    with checked():
        descriptor[(2,)](x, y, 6, 32, A=4, B=32)
    found(
        OutOfBounds, "descriptor", lambda: descriptor[(2,)](x, y, 8, 32, A=4, B=32),
        op="store", program=(1, 0, 0), lane=(2, 0), argument="y", element=192,
    )  # fmt: skip


@triton.jit
def through_descriptor(d, n, y, B: tl.constexpr):
    v = d.load([tl.program_id(0) * 4, 0])  # bug: host descriptor
    tl.store(y + tl.arange(0, 4)[:, None] * B + tl.arange(0, B)[None, :], v + n)


def test_descriptor_made_by_the_host() -> None:
    x, y = torch.randn(6, 32), torch.empty(4, 32)
    good, bad = (TensorDescriptor(x, [rows, 32], [32, 1], [4, 32]) for rows in (6, 7))
    with checked():
        through_descriptor[(2,)](good, 1, y, B=32)
    found(
        OutOfBounds, "host descriptor", lambda: through_descriptor[(2,)](bad, 1, y, B=32),
        op="load", program=(1, 0, 0), lane=(2, 0), argument="d", element=192, high=191,
    )  # fmt: skip


@triton.jit
def sum_in_blocks(x, y, n, B: tl.constexpr):
    pointers, total = x + tl.arange(0, B), tl.zeros((B,), tl.float32)
    for _ in range(0, n, B):
        total += tl.load(pointers)  # bug: loop
        pointers += B
    tl.store(y, tl.sum(total, axis=0))


def test_loop_over_a_ragged_end() -> None:
    x, y = torch.randn(100), torch.empty(1)
    found(OutOfBounds, "loop", lambda: sum_in_blocks[(1,)](x, y, 100, B=32), lane=(4,), argument="x", element=100)


@triton.jit
def follow(links, y, steps):
    at = tl.load(links)
    k = 0
    while k < steps:
        at = tl.load(links + at)  # bug: scalar
        k += 1
    tl.store(y, at)


def test_scalar_loads_in_a_while_loop() -> None:
    links, y = torch.tensor([1, 2, 3, 11]), torch.zeros(1, dtype=torch.int64)
    with checked():
        follow[(1,)](links, y, 2)
    assert y.item() == 3
    found(OutOfBounds, "scalar", lambda: follow[(1,)](links, y, 4), lane=(), element=11, argument="links")


@triton.jit
def choose(x, y, out, use_y, B: tl.constexpr):
    o = tl.arange(0, B)
    source = x
    if use_y:
        source = y
    v = tl.load(source + o)  # bug: choice
    tl.store(out + o, v)


def test_a_pointer_of_two_arguments_may_touch_either() -> None:
    x, y, out = torch.randn(16), torch.randn(8), torch.empty(16)
    with checked():
        choose[(1,)](x, y, out, 0, B=16)
    found(OutOfBounds, "choice", lambda: choose[(1,)](x, y, out, 1, B=16), lane=(8,), argument="y", element=8)


@triton.jit
def through_helper(pointers, m):
    return tl.load(pointers, mask=m)  # bug: helper


@triton.jit
def calls_helper(x, y, n, B: tl.constexpr):
    o = tl.arange(0, B)
    v = through_helper(x + o, o < n)  # bug: caller
    tl.store(y + o, v)


def test_a_helper_names_its_caller_too() -> None:
    x, y = torch.randn(10), torch.empty(16)
    fields = found(OutOfBounds, "helper", lambda: calls_helper[(1,)](x, y, 11, B=16), lane=(10,))
    assert fields["location"].endswith(f" called from {line('caller')}")


@triton.jit
def fill(y, B: tl.constexpr):
    o = tl.arange(0, B)
    tl.store(y + o, o)  # bug: none


def test_an_empty_tensor_may_not_be_touched() -> None:
    fields = found(OutOfBounds, "none", lambda: fill[(1,)](torch.empty(0, dtype=torch.int32), B=8), lane=(0,))
    assert "empty" in fields["allowed"]


@triton.jit
def through_address(address, y, B: tl.constexpr):
    o = tl.arange(0, B)
    v = tl.load(tl.load(address).to(tl.pointer_type(tl.float32)) + o)  # bug: address
    tl.store(y + o, v)


def test_addresses_made_of_integers() -> None:
    x, y = torch.randn(16), torch.empty(16)
    address = torch.tensor([x.data_ptr()])
    for memory in (None, (x,)):
        y.zero_()
        with checked(races=True, memory=memory):
            through_address[(1,)](address, y, B=16)
        assert torch.equal(x, y)
    with checked(memory=(x[:10],)), pytest.raises(OutOfBounds) as caught:
        through_address[(1,)](address, y, B=16)
    assert (caught.value.fields["argument"], caught.value.fields["element"]) == ("memory[0]", 10)
    address.fill_(64)
    found(OutOfBounds, "address", lambda: through_address[(1,)](address, y, B=16), lane=(0,))


# ---- overflow


@triton.jit
def far(x, y, stride, B: tl.constexpr):
    o = tl.program_id(0) * stride + tl.arange(0, B)  # bug: wraps
    v = tl.load(x + o)  # bug: far
    tl.store(y + tl.arange(0, B), v)


def test_overflow_of_an_offset() -> None:
    x, y = torch.empty(2**31 + 64, dtype=torch.int8), torch.empty(16, dtype=torch.int8)
    fields = found(
        OffsetOverflow, "far", lambda: far[(3,)](x, y, 2**30 + 1, B=16),
        program=(2, 0, 0), lane=(0,), argument="x", exact=2**31 + 2, element=2 - 2**31, link_op="multiplication",
    )  # fmt: skip
    assert fields["link"] == line("wraps")


@triton.jit
def far_row(x, y, row, stride, B: tl.constexpr):
    p = x + row * stride  # bug: row
    v = tl.load(p + tl.arange(0, B))  # bug: wrong row
    tl.store(y + tl.arange(0, B), v)


def test_overflow_that_lands_inside_the_tensor() -> None:
    x, y = torch.zeros(64, dtype=torch.int8), torch.empty(16, dtype=torch.int8)
    fields = found(
        OffsetOverflow, "wrong row", lambda: far_row[(1,)](x, y, 4, 2**30, B=16), lane=(0,), element=0, exact=2**32
    )
    assert fields["link"] == line("row")


@triton.jit
def leaps(x, y, step, n, B: tl.constexpr):
    o, total = tl.arange(0, B), tl.zeros((B,), tl.int32)
    for _ in range(n):
        total += tl.load(x + o)  # bug: leaps
        o += step  # bug: leap
    tl.store(y + tl.arange(0, B), total)


def test_overflow_of_an_offset_that_grows_in_a_loop() -> None:
    x, y = torch.empty(2**31 + 64, dtype=torch.int8), torch.empty(16, dtype=torch.int32)
    with checked():
        leaps[(1,)](x, y, 2**30 - 8, 3, B=16)
    fields = found(OffsetOverflow, "leaps", lambda: leaps[(1,)](x, y, 2**30 + 1, 3, B=16), lane=(0,), exact=2**31 + 2)
    assert fields["link"] == line("leap")


@triton.jit
def back_and_forth(x, y, far, B: tl.constexpr):
    o = tl.arange(0, B) + far + far - far - far
    tl.store(y + o, tl.load(x + o))


def test_an_overflow_that_cancels_is_none() -> None:
    x, y = torch.randn(16), torch.empty(16)
    with checked():
        back_and_forth[(1,)](x, y, 2**31 - 2, B=16)
    assert torch.equal(x, y)


@triton.jit
def far_masked(x, y, stride, n, B: tl.constexpr):
    o = tl.program_id(0) * stride + tl.arange(0, B)
    m = (tl.program_id(0) == 0) & (o < n)
    tl.store(y + o, tl.load(x + o, mask=m), mask=m)


def test_masked_lanes_may_point_anywhere() -> None:
    x, y = torch.randn(10), torch.zeros(10)
    with checked(races=True):
        far_masked[(5,)](x, y, 2**30, 10, B=16)
    assert torch.equal(x, y)


# ---- races


@triton.jit
def overlapping(x, y, B: tl.constexpr):
    o = tl.program_id(0) * (B // 2) + tl.arange(0, B)
    v = tl.load(x + o)
    tl.store(y + o, v)  # bug: overlap


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


@triton.jit
def copy_one(x, y, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + o)  # bug: aliased load
    tl.store(y + o, v)  # bug: aliased store


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


# ---- uninitialised memory


@triton.jit
def accumulate(x, total, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    tl.atomic_add(total, tl.sum(tl.load(x + o, mask=o < n, other=0), axis=0))  # bug: accumulates


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_reading_what_nobody_wrote(dtype: torch.dtype) -> None:
    x, y = poison(torch.empty(20, dtype=dtype)), torch.empty(20, dtype=dtype)
    x[:9] = 1
    with checked():
        copy_up_to[(1,)](x, y, 8, B=32)
    found(UninitialisedRead, "off by one", lambda: copy_up_to[(1,)](x, y, 19, B=32), lane=(9,), element=9, argument="x")
    x.zero_()
    with checked():
        copy_up_to[(1,)](x, y, 19, B=32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_poison_is_no_number(dtype: torch.dtype) -> None:
    x = poison(torch.zeros(3, 5, dtype=dtype, requires_grad=True))
    assert x.isnan().all()
    y = torch.empty(16, dtype=dtype)
    copy_up_to[(1,)](x, y, 14, B=16)  # without checks too
    assert y[:15].isnan().all()


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.uint8, torch.float8_e5m2, torch.complex128])
def test_poison_of_other_sizes_is_refused(dtype: torch.dtype) -> None:
    x = torch.zeros(4, dtype=dtype)
    with pytest.raises(BadArgument, match=rf"poison: tensor=a tensor of {dtype} .*\[cpu-bad-argument\]$"):
        poison(x)
    assert not x.float().any() if dtype is torch.float8_e5m2 else not x.any()
    for value in ([1], torch.zeros(4, device="meta"), torch.zeros(4).to_sparse()):
        with pytest.raises(BadArgument, match="a CPU tensor"):
            poison(value)


def test_poison_of_a_view_leaves_the_rest_alone() -> None:
    memory, y = torch.ones(6, 40), torch.empty(6, 20)
    poison(memory[:, 10:30].T)
    assert memory[:, 10:30].isnan().all() and memory.isnan().sum() == 120
    found(UninitialisedRead, "stride", lambda: copy_rows[(2,)](memory[:, 10:30], y, 40, 1, 6, 20, A=4, B=32), element=0)
    memory[:, 10:30] = 2
    with checked():
        copy_rows[(2,)](memory[:, 10:30], y, 40, 1, 6, 20, A=4, B=32)
    assert poison(torch.ones(1).expand(7)).isnan().all()
    assert poison(torch.ones(())).isnan() and not poison(torch.ones(0, 3)).numel()


def test_accumulating_into_what_nobody_wrote() -> None:
    x, total = torch.ones(100), poison(torch.empty(1))
    found(UninitialisedRead, "accumulates", lambda: accumulate[(2,)](x, total, 100, B=64), op="atomic", element=0)
    total.zero_()
    with checked():
        accumulate[(2,)](x, total, 100, B=64)
    assert total.item() == 100


# ---- the modes themselves


def test_graphs_check_when_they_are_replayed() -> None:
    x, y, index = torch.randn(50), torch.empty(8), torch.arange(8)
    graph = HostGraph()
    with checked(), graph.capture():
        take[(1,)](x, index, y, 8, B=16)
    graph.replay()
    assert torch.equal(y, x[:8])
    assert [name for name, _ in graph.profile(2)] == ["take"]
    index[2] = 1000
    with pytest.raises(OutOfBounds) as caught:
        graph.replay()
    assert caught.value.fields["element"] == 1000


def test_checks_end_with_the_context() -> None:
    before = mode.current()
    with checked():
        with checked(races=True):
            assert mode.current().mode == "race"
        assert mode.current().mode == "bounds"
        with pytest.raises(OutOfBounds):
            copy_up_to[(4,)](torch.randn(1000), torch.empty(1024), 1000, B=256)
    assert mode.current() == before


def test_kernels_compiled_by_other_threads_are_checked() -> None:
    async_compile = pytest.importorskip("triton.runtime._async_compile")
    x, y = torch.randn(1000), torch.empty(1024)
    with ThreadPoolExecutor(2) as executor, checked(), pytest.raises(OutOfBounds):
        with async_compile.AsyncCompileMode(executor):
            copy_up_to.warmup(x, y, 1000, B=128, grid=(8,))
        copy_up_to[(8,)](x, y, 1000, B=128)


def test_settings_that_mean_nothing_are_refused_at_once() -> None:
    for options, said in (
        ({"extent": "bogus"}, "extent='bogus' is not allowed: 'view' or 'storage'"),
        ({"same_value": True}, "same_value=True is not allowed: only with races=True"),
        ({"memory": torch.ones(3)}, "memory=a Tensor is not allowed: a tuple of tensors, as memory=(tensor,)"),
        ({"memory": (1, 2)}, "memory=a tuple is not allowed: a tuple of tensors"),
    ):
        with pytest.raises(BadArgument) as caught:
            checked(**options)
        assert f"checked: {said}" in str(caught.value) and str(caught.value).endswith("[cpu-bad-argument]")


def test_checked_source_has_a_name_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    x, y = torch.randn(100), torch.empty(128)
    for way in (checked(), checked(races=True)):
        with way:
            copy_rows[(2,)](x, y, 10, 1, 4, 10, A=2, B=16)
    assert {file.name for file in tmp_path.rglob("*.c")} == {"copy_rows.bounds.c", "copy_rows.race.c"}


def test_every_error_is_known_where_users_import_it_from() -> None:
    for cls in subclasses(CpuBackendError):
        assert getattr(runtime.cpu, cls.__name__) is cls and cls.__name__ in runtime.cpu.__all__
        assert cls.__module__ == "runtime.cpu"
    assert all(hasattr(runtime.cpu, name) for name in runtime.cpu.__all__)


def test_every_field_of_an_error_is_on_the_page() -> None:
    page = (HERE.parents[3] / "docs" / "cpu-backend.md").read_text()
    x, memory = torch.randn(1000), torch.zeros(96)
    errors = []
    for run in (lambda: copy_up_to[(4,)](x, torch.empty(1024), 1000, B=256), lambda: overlapping[(2,)](x, x, B=32),
                lambda: copy_one[(2,)](memory[:64], memory[32:], B=32)):  # fmt: skip
        with checked(races=True), pytest.raises(CpuBackendError) as caught:
            run()
        errors.append(caught.value)
    named = {name for error in errors for name in error.fields} | {"link", "link_op", "link_source", "exact"}
    assert [name for name in sorted(named) if f"`{name}`" not in page] == []


def test_errors_survive_copying() -> None:
    x, y = torch.randn(1000), torch.empty(1024)
    with checked(), pytest.raises(OutOfBounds) as caught:
        copy_up_to[(4,)](x, y, 1000, B=256)
    assert pickle.loads(pickle.dumps(caught.value)).fields == caught.value.fields


@pytest.mark.parametrize("value", ["yes please", "race,fast"])
def test_unknown_words_are_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("STEPFORGE_CPU_CHECK", value)
    with pytest.raises(BadKnob, match="STEPFORGE_CPU_CHECK"):
        knobs.check()

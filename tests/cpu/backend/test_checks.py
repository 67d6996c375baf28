"""Check mode finds accesses out of bounds and wrapped offsets, with line, program, lane, element, and no others."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from checked_kernels import copy_rows, copy_up_to, found, line, take
from triton.tools.tensor_descriptor import TensorDescriptor

from runtime.cpu import OffsetOverflow, OutOfBounds, checked
from tests.cpu.fuzz import versions

# ---- bounds


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

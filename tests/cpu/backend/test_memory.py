"""Loads and stores: masks, aliasing, strides, atomics, large tiles, shape operations."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton.compiler import CompilationError

from tests.cpu.fuzz.dtypes import INTEGERS, DType
from tests.cpu.fuzz.versions import HISTOGRAM_TYPES


@triton.jit
def masked_copy(x, y, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + o, tl.load(x + o, mask=o < n, other=-1.0) + 1, mask=o < n)


def test_masked_lanes_are_untouched() -> None:
    x, y = torch.randn(1000), torch.full((1024,), float("nan"))
    masked_copy[(4,)](x, y, 1000, B=256)
    assert torch.equal(y[:1000], x + 1)
    assert y[1000:].isnan().all()


@triton.jit
def masked_rows(x, y, rows, columns, A: tl.constexpr, B: tl.constexpr):
    a, b = tl.arange(0, A), tl.arange(0, B)
    mask = (a[:, None] < rows) & (b[None, :] < columns)
    v = tl.load(x + a[:, None] * columns + b[None, :], mask=mask, other=7.0)
    tl.store(y + a[:, None] * B + b[None, :], v, mask=a[:, None] < A)
    tl.store(x + a[:, None] * columns + b[None, :], v * 2, mask=mask & (v > 0))


def test_two_dimensional_masks() -> None:
    x, y = torch.randn(5, 19), torch.empty(8, 32)
    before = x.clone()
    masked_rows[(1,)](x, y, 5, 19, A=8, B=32)
    expected = torch.full((8, 32), 7.0)
    expected[:5, :19] = before
    assert torch.equal(y, expected)
    assert torch.equal(x, torch.where(before > 0, before * 2, before))


@triton.jit
def shifted_copy(x, y, B: tl.constexpr):
    o = tl.arange(0, B)
    tl.store(y + (o + 1) % B, tl.load(x + o))


@triton.jit
def shifted_arguments(x, y, B: tl.constexpr):
    o = tl.arange(0, B)
    tl.store(y + o, tl.load(x + o) * 2)


@triton.jit
def collapsing(x, B: tl.constexpr):
    o = tl.arange(0, B)
    tl.store(x + o // 2, tl.load(x + o // 2) + 1)


def test_all_loads_happen_before_the_store() -> None:
    x = torch.arange(64).int()
    shifted_copy[(1,)](x, x, B=64)
    assert torch.equal(x, torch.arange(64).int().roll(1))
    for offset in (-1, 1, 5):
        memory = torch.arange(100).int()
        shifted_arguments[(1,)](memory[8:72], memory[8 + offset : 72 + offset], B=64)
        expected = torch.arange(100).int()
        expected[8 + offset : 72 + offset] = torch.arange(8, 72) * 2
        assert torch.equal(memory, expected)
    x = torch.zeros(64).int()
    collapsing[(1,)](x, B=64)
    assert torch.equal(x[:32], torch.ones(32).int())


@triton.jit
def load_store_load(x, y, B: tl.constexpr):
    o = tl.arange(0, B)
    first = tl.load(x + o)
    tl.store(x + o, first + 1)
    tl.store(y + o, first * 100 + tl.load(x + o))


def test_loads_see_the_stores_before_them_only() -> None:
    x, y = torch.arange(32).int(), torch.empty(32, dtype=torch.int32)
    load_store_load[(1,)](x, y, B=32)
    assert torch.equal(y, torch.arange(32).int() * 101 + 1)


@triton.jit
def shapes(x, y, A: tl.constexpr, B: tl.constexpr):
    a, b = tl.arange(0, A), tl.arange(0, B)
    v = tl.load(x + a[:, None] * B + b[None, :])
    o = tl.arange(0, A * B)
    tl.store(y + o, tl.reshape(tl.trans(v), (A * B,)))
    left, right = tl.split(tl.reshape(v, (A, B // 2, 2)))
    tl.store(y + A * B + o, tl.reshape(tl.join(right, left), (A * B,)))
    tl.store(y + 2 * A * B + o, tl.interleave(tl.reshape(left, (A * B // 2,)), tl.reshape(right, (A * B // 2,))))
    tl.store(y + 3 * A * B + o, tl.reshape(tl.permute(tl.reshape(v, (A, B // 4, 4)), (2, 0, 1)), (A * B,)))
    tl.store(y + 4 * A * B + o, tl.reshape(tl.broadcast_to(tl.sum(v, axis=1)[:, None], (A, B)), (A * B,)))


def test_shape_operations() -> None:
    A, B = 8, 16
    x, y = torch.randint(0, 1000, (A, B)).float(), torch.empty(5, A * B)
    shapes[(1,)](x, y, A=A, B=B)
    pairs = x.reshape(A, B // 2, 2)
    expected = [x.T, pairs.flip(2), x, x.reshape(A, B // 4, 4).permute(2, 0, 1), x.sum(1, keepdim=True).expand(A, B)]
    for k, value in enumerate(expected):
        assert torch.equal(y[k], value.reshape(-1)), f"row {k}"


@triton.jit
def atomics(x, counts, total, top, old, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + o, mask=o < n, other=0)
    tl.store(old + o, tl.atomic_add(counts + v % 7, 1, mask=o < n), mask=o < n)
    tl.atomic_max(top, tl.max(v, axis=0))
    tl.atomic_add(total, tl.sum(v.to(tl.float32), axis=0))


def test_atomics(threads) -> None:
    threads(2)
    x = torch.randint(0, 100, (1000,), dtype=torch.int32)
    counts, total, top = torch.zeros(7, dtype=torch.int32), torch.zeros(1), torch.zeros(1, dtype=torch.int32)
    old = torch.empty(1000, dtype=torch.int32)
    atomics[(16,)](x, counts, total, top, old, 1000, B=64)
    expected = torch.bincount(x.long() % 7, minlength=7).int()
    assert torch.equal(counts, expected)
    assert total.item() == x.sum().item()
    assert top.item() == x.max().item()
    for bin_ in range(7):
        assert torch.equal(old[x % 7 == bin_].sort().values, torch.arange(expected[bin_]).int())


@triton.jit
def spin_lock(lock, count):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(count, tl.load(count) + 1)
    tl.atomic_xchg(lock, 0)


def test_lock(threads) -> None:
    threads(2)
    lock, count = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    spin_lock[(200,)](lock, count)
    assert count.item() == 200


@triton.jit
def large_tile(x, y, A: tl.constexpr, B: tl.constexpr):
    o = tl.arange(0, A)[:, None] * B + tl.arange(0, B)[None, :]
    v = tl.load(x + o)
    v = v * 2
    tl.store(x + o, v + 1)
    tl.store(y + o, v / tl.sum(tl.sum(v, axis=1), axis=0))


def test_tiles_larger_than_the_stack_limit(threads) -> None:
    threads(2)
    x, y = torch.rand(256, 512), torch.empty(256, 512)
    before = x.clone()
    large_tile[(1,)](x, y, A=256, B=512)
    assert torch.equal(x, before * 2 + 1)
    torch.testing.assert_close(y, before / before.sum())


@triton.jit
def gather_and_count(x, index, y, bins, B: tl.constexpr):
    o = tl.arange(0, B)
    i = tl.load(index + o)
    tl.store(y + o, tl.gather(tl.load(x + o), i, 0))
    tl.store(y + B + o, tl.load(x + i))
    tl.store(bins + tl.arange(0, 8), tl.histogram(i % 8, 8))


def test_gather_and_histogram() -> None:
    x, index = torch.randn(64), torch.randint(0, 64, (64,), dtype=torch.int32)
    y, bins = torch.empty(2, 64), torch.empty(8, dtype=torch.int32)
    gather_and_count[(1,)](x, index, y, bins, B=64)
    assert torch.equal(y[0], x[index.long()])
    assert torch.equal(y[1], x[index.long()])
    assert torch.equal(bins, torch.bincount(index.long() % 8, minlength=8).int())


@triton.jit
def strided(x, y, sx, sy, A: tl.constexpr, B: tl.constexpr):
    a, b = tl.arange(0, A), tl.arange(0, B)
    v = tl.load(x + a[:, None] * sx + b[None, :] * sy)
    tl.store(y + b[:, None] * A + a[None, :], tl.trans(v) + 1)


def test_strides_known_at_run_time() -> None:
    x, y = torch.randn(16, 32), torch.empty(32, 16)
    strided[(1,)](x, y, 32, 1, A=16, B=32)
    assert torch.equal(y, x.T + 1)
    t = x.T.contiguous()
    strided[(1,)](t, y, 1, 16, A=16, B=32)
    assert torch.equal(y, x.T + 1)


@triton.jit
def sort_rows(x, y, N: tl.constexpr, K: tl.constexpr):
    o = tl.program_id(0) * N + tl.arange(0, N)
    v = tl.load(x + o)
    tl.store(y + o, tl.sort(v, descending=True))
    tl.store(x + tl.program_id(0) * N + tl.arange(0, K), tl.topk(v, K))


def test_sort_and_topk() -> None:
    x, y = torch.randn(3, 64), torch.empty(3, 64)
    expected = x.sort(1, descending=True).values
    sort_rows[(3,)](x, y, N=64, K=8)
    assert torch.equal(y, expected)
    assert torch.equal(x[:, :8], expected[:, :8])


@triton.jit
def sort_tiles(x, y, top, A: tl.constexpr, B: tl.constexpr, K: tl.constexpr):
    o = tl.arange(0, A)[:, None] * B + tl.arange(0, B)[None, :]
    v = tl.load(x + o)
    tl.store(y + o, tl.sort(v))
    tl.store(top + tl.arange(0, A)[:, None] * K + tl.arange(0, K)[None, :], tl.topk(v, K))


def test_sort_and_topk_of_every_type() -> None:
    types = (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
    )
    for dtype in types:
        x = torch.randint(-100, 100, (4, 32)).to(dtype)
        y, top = torch.empty_like(x), torch.empty(4, 8, dtype=dtype)
        sort_tiles[(1,)](x, y, top, A=4, B=32, K=8)
        assert torch.equal(y, x.sort(1).values), dtype
        assert torch.equal(top, x.sort(1, descending=True).values[:, :8]), dtype


@triton.jit
def gather_both_ways(x, rows, columns, y, z, A: tl.constexpr, B: tl.constexpr):
    o = tl.arange(0, A)[:, None] * B + tl.arange(0, B)[None, :]
    v = tl.load(x + o)
    tl.store(y + o, tl.gather(v, tl.load(rows + o), 0))
    half = tl.arange(0, A)[:, None] * (B // 2) + tl.arange(0, B // 2)[None, :]
    tl.store(z + half, tl.gather(v, tl.load(columns + half), 1))


def test_gather_along_both_axes() -> None:
    x = torch.randn(8, 16)
    rows = torch.randint(0, 8, (8, 16), dtype=torch.int32)
    columns = torch.randint(0, 16, (8, 8), dtype=torch.int64)
    y, z = torch.empty(8, 16), torch.empty(8, 8)
    gather_both_ways[(1,)](x, rows, columns, y, z, A=8, B=16)
    assert torch.equal(y, x.gather(0, rows.long()))
    assert torch.equal(z, x.gather(1, columns))


@triton.jit
def masked_histogram(x, counts, n, B: tl.constexpr, BINS: tl.constexpr):
    o = tl.arange(0, B)
    v = tl.load(x + o)
    tl.store(counts + tl.arange(0, BINS), tl.histogram(v, BINS, mask=o < n))


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda dtype: dtype.name)
def test_histogram_counts_what_the_mask_allows(dtype: DType) -> None:
    x, counts = torch.randint(0, 16, (128,)), torch.empty(16, dtype=torch.int32)
    if dtype not in HISTOGRAM_TYPES:
        name = dtype.triton.removeprefix("tl.")
        with pytest.raises(CompilationError, match=f"histogram only supports 32-bit integer input, but got {name}"):
            masked_histogram[(1,)](x.to(dtype.torch), counts, 100, B=128, BINS=16)
        return
    masked_histogram[(1,)](x.to(dtype.torch), counts, 100, B=128, BINS=16)
    assert torch.equal(counts.long(), torch.bincount(x[:100], minlength=16))


@triton.jit
def reorders(x, y, B: tl.constexpr):
    o = tl.arange(0, B)
    v = tl.load(x + o)
    tl.store(y + tl.arange(0, 2 * B), tl.cat(v, v + 1, can_reorder=True))
    tl.store(y + 2 * B + o, tl.flip(v, 0))
    tl.store(y + 3 * B + o, tl.ravel(tl.trans(tl.reshape(v, (4, B // 4)))))


def test_cat_flip_ravel() -> None:
    x, y = torch.randn(32), torch.empty(4, 32)
    reorders[(1,)](x, y, B=32)
    assert torch.equal(y[:2].flatten().sort().values, torch.cat([x, x + 1]).sort().values)
    assert torch.equal(y[2], x.flip(0))
    assert torch.equal(y[3], x.reshape(4, 8).T.flatten())


@triton.jit
def modifiers(x, y, n, B: tl.constexpr):
    tl.assume(n > 0)
    o = tl.max_contiguous(tl.multiple_of(tl.program_id(0) * B, B) + tl.arange(0, B), B)
    v = tl.load(x + o, mask=o < n, other=0, cache_modifier=".cg", eviction_policy="evict_last")
    w = tl.load(x + o, mask=o < n, volatile=True)
    tl.debug_barrier()
    tl.store(y + o, v + w, mask=o < n, cache_modifier=".wt", eviction_policy="evict_first")


def test_cache_hints_change_nothing() -> None:
    x, y = torch.randn(1000), torch.zeros(1000)
    modifiers[(4,)](x, y, 1000, B=256)
    assert torch.equal(y, 2 * x)


@triton.jit
def booleans(x, y, z, B: tl.constexpr):
    o = tl.arange(0, B)
    a, b = tl.load(x + o), tl.load(y + o)
    tl.store(z + o, a & b)
    tl.store(z + B + o, a | b)
    tl.store(z + 2 * B + o, a ^ b)
    tl.store(z + 3 * B + o, ~a)
    tl.store(z + 4 * B + o, tl.where(a, b, ~b))
    tl.store(z + 5 * B + o, tl.sum(a.to(tl.int32), axis=0) > 7)


def test_booleans() -> None:
    x, y, z = torch.rand(16) > 0.5, torch.rand(16) > 0.5, torch.empty(6, 16, dtype=torch.bool)
    booleans[(1,)](x, y, z, B=16)
    expected = [x & y, x | y, x ^ y, ~x, torch.where(x, y, ~y), (x.sum() > 7).expand(16)]
    assert torch.equal(z, torch.stack(expected))


@triton.jit
def through_a_table(table, out, B: tl.constexpr):
    row = tl.program_id(0)
    source = tl.load(table + row).to(tl.pointer_type(tl.float32))
    o = tl.arange(0, B)
    tl.store(out + row * B + o, tl.load(source + o))


def test_addresses_read_from_memory() -> None:
    rows, out = [torch.randn(16) for _ in range(3)], torch.empty(3, 16)
    through_a_table[(3,)](torch.tensor([row.data_ptr() for row in rows]), out, B=16)
    assert torch.equal(out, torch.stack(rows))


@triton.jit
def five_dimensions(x, y):
    v = tl.permute(tl.reshape(tl.load(x + tl.arange(0, 64)), (2, 2, 2, 2, 4)), (4, 2, 0, 3, 1))
    tl.store(y + tl.arange(0, 64), tl.reshape(v, (64,)))
    tl.store(y + 64 + tl.arange(0, 32), tl.reshape(tl.sum(v, axis=2), (32,)))


def test_five_dimensions() -> None:
    x, y = torch.randint(0, 9, (64,)).float(), torch.empty(96)
    five_dimensions[(1,)](x, y)
    v = x.reshape(2, 2, 2, 2, 4).permute(4, 2, 0, 3, 1)
    assert torch.equal(y[:64], v.flatten())
    assert torch.equal(y[64:], v.sum(2).flatten())


@triton.jit
def loaded_mask(x, m, y, sums, R: tl.constexpr, C: tl.constexpr):
    o = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    v = tl.load(x + o, mask=tl.load(m + o) != 0, other=1)
    tl.store(y + o, v)
    tl.store(sums + tl.arange(0, R), tl.sum(tl.load(x + o, mask=tl.load(m + o) != 0, other=0), axis=1).to(v.dtype))


@triton.jit
def selected(x, m, y, R: tl.constexpr, C: tl.constexpr):
    o = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    v, flags = tl.load(x + o), tl.load(m + o)
    tl.debug_barrier()
    tl.store(y + o, tl.where(flags != 0, v, 1))
    tl.store(y + o, tl.where(flags != 0, v, 1))  # used twice, so both are arrays by now


@triton.jit
def loaded_mask_flat(x, m, y, N: tl.constexpr):
    o = tl.arange(0, N)
    for k in tl.static_range(4):
        tl.store(y + k * N + o, tl.load(x + k * N + o, mask=tl.load(m + k * N + o) != 0, other=1))


@pytest.mark.parametrize("columns", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64], ids=str
)
def test_every_lane_has_its_own_mask(dtype: torch.dtype, columns: int) -> None:
    """gcc 12 gives all of several neighbouring masked vector loads the mask of the first (see Loop.head)."""
    rows = 16
    x = torch.randint(2, 100, (rows, columns)).to(dtype)
    m = torch.randint(0, 2, (rows, columns), dtype=torch.int8)
    y, sums, flat = torch.empty_like(x), torch.empty(rows, dtype=dtype), torch.empty_like(x)
    loaded_mask[(1,)](x, m, y, sums, R=rows, C=columns)
    loaded_mask_flat[(1,)](x, m, flat, N=rows * columns // 4)
    expected = torch.where(m != 0, x, 1)
    assert torch.equal(y, expected)
    assert torch.equal(flat, expected)
    selected[(1,)](x, m, y, R=rows, C=columns)
    assert torch.equal(y, expected)
    assert torch.equal(sums, torch.where(m != 0, x, 0).sum(1).to(dtype))

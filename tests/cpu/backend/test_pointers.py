"""Block pointers and tensor descriptors, made in the kernel or on the host."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from runtime.cpu.graph import HostGraph
from tests.cpu.fuzz import versions

#: Where there are none, test_versions.py sees them refused.
needs_block_pointers = pytest.mark.skipif(
    not versions.holds(versions.BLOCK_POINTERS), reason="this Triton's front end has no block pointers"
)


@triton.jit
def strips(x, y, rows, columns, A: tl.constexpr, B: tl.constexpr, padding: tl.constexpr):
    source = tl.make_block_ptr(x, (rows, columns), (columns, 1), (tl.program_id(0) * A, 0), (A, B), (1, 0))
    target = tl.make_block_ptr(y, (columns, rows), (rows, 1), (0, tl.program_id(0) * A), (B, A), (1, 0))
    for _ in range(0, columns, B):
        v = tl.load(source, boundary_check=(0, 1), padding_option=padding)
        v = tl.where(v == v, v, 5.0)
        tl.store(target, tl.trans(v) + 1, boundary_check=(0, 1))
        source = tl.advance(source, (0, B))
        target = tl.advance(target, (B, 0))


@needs_block_pointers
@pytest.mark.filterwarnings("ignore:tl.make_block_ptr")
@pytest.mark.parametrize("padding", ["zero", "nan"])
def test_block_pointers_advance_and_stop_at_the_edge(padding: str) -> None:
    x, y = torch.randn(37, 21), torch.zeros(22, 37)
    strips[(5,)](x, y, 37, 21, A=8, B=16, padding=padding)
    assert torch.equal(y[:21], x.T + 1)
    assert (y[21] == 0).all()


@triton.jit
def padded_sums(x, out, columns, B: tl.constexpr):
    p = tl.make_block_ptr(x, (4, columns), (columns, 1), (0, 0), (4, B), (1, 0))
    tl.store(out + tl.arange(0, 4), tl.sum(tl.load(p, boundary_check=(1,), padding_option="zero"), axis=1))


@needs_block_pointers
@pytest.mark.filterwarnings("ignore:tl.make_block_ptr")
def test_elements_outside_are_zero() -> None:
    x, out = torch.randint(-9, 9, (4, 21)).float(), torch.empty(4)
    padded_sums[(1,)](x, out, 21, B=32)
    assert torch.equal(out, x.sum(1))


@triton.jit
def device_descriptors(x, y, rows, columns, A: tl.constexpr, B: tl.constexpr):
    source = tl.make_tensor_descriptor(x, (rows, columns), (columns, 1), (A, B))
    target = tl.make_tensor_descriptor(y, (rows, columns), (columns, 1), (A, B))
    for i in range(0, columns, B):
        at = [tl.program_id(0) * A, i]
        target.store(at, source.load(at) * 2)


def test_descriptors_made_in_the_kernel() -> None:
    x, y = torch.randn(37, 20), torch.full((38, 20), 7.0)
    device_descriptors[(5,)](x, y, 37, 20, A=8, B=16)
    assert torch.equal(y[:37], x * 2)
    assert (y[37] == 7).all()


@triton.jit
def host_descriptors(source, factor, target):
    at = tl.program_id(0) * 8
    target.store([0, at, 4], (source.load([at, 4]) * factor)[None, :, :])


def test_descriptors_made_on_the_host() -> None:
    x, y = torch.randn(20, 24), torch.zeros(2, 20, 24)
    source = TensorDescriptor.from_tensor(x, [8, 16])
    target = TensorDescriptor(y, [2, 18, 24], [480, 24, 1], [1, 8, 16])
    host_descriptors[(3,)](source, 3.0, target)
    expected = torch.zeros(2, 20, 24)
    expected[0, :18, 4:20] = x[:18, 4:20] * 3
    assert torch.equal(y, expected)


def test_host_descriptors_in_a_graph() -> None:
    x, y = torch.zeros(20, 24), torch.zeros(1, 20, 24)
    source, target = TensorDescriptor.from_tensor(x, [8, 16]), TensorDescriptor.from_tensor(y, [1, 8, 16])
    graph = HostGraph()
    with graph.capture():
        host_descriptors[(3,)](source, 3.0, target)
    assert graph.launches[0].tensors == (("source", x.data_ptr()), ("target", y.data_ptr()))
    x.normal_()
    graph.replay()
    assert torch.equal(y[0, :, 4:20], x[:, 4:20] * 3)


@triton.jit
def pair_of_descriptors(pair, out):
    tl.store(out + tl.arange(0, 16), pair[0].load([8]) + pair[1].load([8]))


def test_descriptor_padding_may_be_nan() -> None:
    x, out = torch.randn(16), torch.empty(16)
    pair = tuple(TensorDescriptor.from_tensor(x, [16], padding=padding) for padding in ("zero", "nan"))
    pair_of_descriptors[(1,)](pair, out)
    assert torch.equal(out[:8], x[8:] * 2)
    assert out[8:].isnan().all()


@triton.jit
def reduces_into(x, target_ptr, rows, columns, A: tl.constexpr, B: tl.constexpr):
    target = tl.make_tensor_descriptor(target_ptr, (rows, columns), (columns, 1), (A, B))
    o = tl.arange(0, A)[:, None] * B + tl.arange(0, B)[None, :]
    target.atomic_add([0, 0], tl.load(x + o))


def test_descriptor_reductions() -> None:
    x, total = torch.randn(8, 16), torch.ones(8, 12)
    reduces_into[(3,)](x, total, 8, 12, A=8, B=16)
    torch.testing.assert_close(total, 1 + 3 * x[:, :12])


@triton.jit
def gathers_rows(x, rows_ptr, y, rows, columns, A: tl.constexpr, B: tl.constexpr):
    source = tl.make_tensor_descriptor(x, (rows, columns), (columns, 1), (1, B))
    picked = tl.load(rows_ptr + tl.arange(0, A))
    v = source.gather(picked, 8)
    tl.store(y + tl.arange(0, A)[:, None] * B + tl.arange(0, B)[None, :], v)


def test_descriptor_gather() -> None:
    x, rows = torch.randn(20, 32), torch.randint(0, 20, (8,), dtype=torch.int32)
    y = torch.empty(8, 16)
    gathers_rows[(1,)](x, rows, y, 20, 32, A=8, B=16)
    assert torch.equal(y, x[rows.long(), 8:24])

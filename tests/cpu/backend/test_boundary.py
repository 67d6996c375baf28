"""What reaches C is fit for it: grids in range, tensors on the CPU, in launches, recordings and check mode alike."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from runtime.cpu import checked
from runtime.cpu.errors import BadGrid, TensorElsewhere
from runtime.cpu.graph import HostGraph


@triton.jit
def mark(x, n, B: tl.constexpr):
    program = tl.program_id(0) + tl.num_programs(0) * (tl.program_id(1) + tl.num_programs(1) * tl.program_id(2))
    o = program * B + tl.arange(0, B)
    tl.store(x + o, 1.0, mask=o < n)


@triton.jit
def copy_described(source, target, B: tl.constexpr):
    target.store([0], source.load([0]))


@contextlib.contextmanager
def recorded() -> Iterator[None]:
    with HostGraph().capture():
        yield


WAYS: dict[str, Callable] = {
    "launch": contextlib.nullcontext, "capture": recorded, "bounds": checked, "race": lambda: checked(races=True),
}  # fmt: skip
anywhere = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
BAD = [
    (-1,), (1, -1), (1, 1, -1), (-1, -1), (0, -1), (1 << 31,), (1, 1 << 40), (1 << 16, 1 << 16), (1 << 31, 0),
    (1.0,), (float("nan"),), ("4",), (None,), (torch.tensor(2.0),),
]  # fmt: skip


@anywhere
@pytest.mark.parametrize("grid", BAD, ids=str)
def test_a_bad_grid_is_refused(way: Callable, grid: tuple) -> None:
    x = torch.zeros(8)
    with pytest.raises(BadGrid) as caught, way():
        mark[grid](x, 8, B=4)
    [first] = str(caught.value).splitlines()
    assert first.startswith("kernel mark: grid (") and first.endswith("[cpu-bad-grid]") and "2147483647" in first
    assert caught.value.fields["grid"] == (*grid, 1, 1)[:3]
    assert not x.any()


@anywhere
@pytest.mark.parametrize("grid", [(0,), (3, 0), (1 << 30, 1 << 30, 0)], ids=str)
def test_a_grid_of_nothing_runs_nothing(way: Callable, grid: tuple) -> None:
    x = torch.zeros(8)
    with way():
        mark[grid](x, 8, B=4)
    assert not x.any()


@pytest.mark.parametrize("grid", [(np.int64(2),), (torch.tensor(2),), [2], (True, 2)], ids=str)
def test_whole_numbers_of_any_kind_are_a_grid(grid: tuple) -> None:
    x = torch.zeros(8)
    mark[grid](x, 8, B=4)
    assert x.all()
    graph = HostGraph()
    with graph.capture():
        mark[grid](x, 8, B=4)
    x.zero_()
    graph.replay()
    assert x.all()


@anywhere
def test_a_tensor_without_memory_here_is_refused(way: Callable) -> None:
    with pytest.raises(TensorElsewhere) as caught, way():
        mark[(2,)](torch.zeros(8, device="meta"), 8, B=4)
    assert str(caught.value) == (
        "kernel mark: argument x is on device meta, allowed is cpu: give the kernel a CPU tensor [cpu-tensor-elsewhere]"
    )


@triton.jit
def add_pair(pair, out, B: tl.constexpr):
    o = tl.arange(0, B)
    tl.store(out + o, tl.load(pair[0] + o) + (0.0 if pair[1] is None else tl.load(pair[1] + o)))


@anywhere
def test_tensors_in_tuples_and_descriptors_are_looked_at(way: Callable) -> None:
    there, here = torch.zeros(8, device="meta"), torch.ones(8)
    with pytest.raises(TensorElsewhere, match="argument pair is on device meta"), way():
        add_pair[(1,)]((here, there), here, B=8)
    with pytest.raises(TensorElsewhere, match="argument pair is on device meta"), way():
        add_pair[(1,)]((there, None), here, B=8)
    with pytest.raises(TensorElsewhere, match="argument source is on device meta"), way():
        descriptors = [TensorDescriptor(tensor, [8], [1], [8]) for tensor in (there, here)]
        copy_described[(1,)](*descriptors, B=8)
    with pytest.raises(TensorElsewhere, match="argument x is on device meta"), way():
        mark[(2,)](triton.reinterpret(there, tl.float32), 8, B=4)

"""Host graphs: capture records and does not run, replay equals eager, pointers and scalars are frozen."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
import triton
import triton.language as tl

from runtime.cpu import GraphStateError, HostGraph


@triton.jit
def scale(x, y, factor, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + o, tl.load(x + o, mask=o < n) * factor, mask=o < n)


@triton.jit
def sum_rows(x, y, n, B: tl.constexpr):
    row, o = tl.program_id(0), tl.arange(0, B)
    tl.store(y + row, tl.sum(tl.load(x + row * n + o, mask=o < n, other=0.0), axis=0))


def chain(x: torch.Tensor, middle: torch.Tensor, out: torch.Tensor, factor: float) -> None:
    rows, n = x.shape
    scale[(triton.cdiv(x.numel(), 64),)](x, middle, factor, x.numel(), B=64)
    sum_rows[(rows,)](middle, out, n, B=256)
    scale[(1,)](out, out, 0.5, rows, B=64)


def test_replay_equals_eager(threads) -> None:
    x = torch.randn(33, 200)
    middle, out, expected = torch.empty_like(x), torch.zeros(33), torch.empty(33)
    chain(x, torch.empty_like(x), expected, 1.5)
    graph = HostGraph()
    with graph.capture() as captured:
        assert captured is graph
        chain(x, middle, out, 1.5)
    assert not out.any()  # recorded, not run
    for count in (1, 2):
        threads(count)
        out.zero_()
        graph.replay()
        assert torch.equal(out, expected)
    x.copy_(torch.randn(33, 200))
    chain(x, torch.empty_like(x), expected, 1.5)
    graph.replay()
    assert torch.equal(out, expected)


def test_scalars_are_baked() -> None:
    x, y = torch.ones(64), torch.empty(64)
    factor = 3.0
    graph = HostGraph()
    with graph.capture():
        scale[(1,)](x, y, factor, 64, B=64)
    factor = 5.0
    graph.replay()
    assert torch.equal(y, torch.full((64,), 3.0)), factor


def test_launches_describe_what_was_recorded() -> None:
    x, y = torch.ones(640), torch.empty(640)
    graph = HostGraph()
    with graph.capture():
        scale[(10, 1)](x, y, 2.0, 640, B=64)
    assert graph.num_launches == 1
    launch = graph.launches[0]
    assert (launch.name, launch.grid) == ("scale", (10, 1, 1))
    assert launch.tensors == (("x", x.data_ptr()), ("y", y.data_ptr()))
    assert launch.scalars == (("factor", 2.0), ("n", 640))
    assert launch.constexprs == (("B", 64),)


def test_constexprs_are_what_triton_made_them() -> None:
    x = torch.ones(4)
    graph = HostGraph()
    with graph.capture():
        scale[(1,)](x, x, 2.0, 1, B=4)
    [launch] = graph.launches
    assert (launch.scalars, launch.constexprs) == ((("factor", 2.0),), (("n", 1), ("B", 4)))


def test_tensors_stay_alive() -> None:
    x, y = torch.ones(64), torch.empty(64)
    alive = weakref.ref(x)
    graph = HostGraph()
    with graph.capture():
        scale[(1,)](x, y, 2.0, 64, B=64)
    del x
    gc.collect()
    assert alive() is not None
    graph.replay()
    assert torch.equal(y, torch.full((64,), 2.0))
    del graph
    gc.collect()
    assert alive() is None


def test_profile() -> None:
    x = torch.randn(33, 200)
    graph = HostGraph()
    with graph.capture():
        chain(x, torch.empty_like(x), torch.empty(33), 1.5)
    profile = graph.profile(5)
    assert [name for name, _ in profile] == ["scale", "sum_rows", "scale"]
    assert all(0 <= seconds < 1 for _, seconds in profile)


def test_an_empty_graph_replays() -> None:
    graph = HostGraph()
    with graph.capture():
        pass
    graph.replay()
    assert graph.profile(1) == []


def test_wrong_order_is_refused() -> None:
    graph = HostGraph()
    with pytest.raises(GraphStateError, match="new"):
        graph.replay()
    with graph.capture(), pytest.raises(GraphStateError, match="another capture"), HostGraph().capture():
        pass
    with pytest.raises(GraphStateError, match=r"ready: .* make a new HostGraph"), graph.capture():
        pass


def test_a_capture_waits_for_that_of_another_thread() -> None:
    x, y = torch.ones(64), torch.zeros(64)
    first, second = HostGraph(), HostGraph()

    def other() -> None:
        with second.capture():
            scale[(1,)](x, y, 3.0, 64, B=64)

    with first.capture():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()
        scale[(1,)](x, y, 2.0, 64, B=64)
    thread.join()
    assert (first.num_launches, second.num_launches) == (1, 1)
    second.replay()
    assert torch.equal(y, torch.full((64,), 3.0))


def test_a_failed_capture_leaves_the_graph_new() -> None:
    x, y = torch.ones(64), torch.zeros(64)
    graph = HostGraph()
    with pytest.raises(KeyError), graph.capture():
        scale[(1,)](x, y, 2.0, 64, B=64)
        raise KeyError
    assert graph.num_launches == 0
    scale[(1,)](x, y, 2.0, 64, B=64)  # runs eagerly again
    assert torch.equal(y, torch.full((64,), 2.0))
    with graph.capture():
        scale[(1,)](y, x, 2.0, 64, B=64)
    graph.replay()
    assert torch.equal(x, torch.full((64,), 4.0))


def test_other_threads_run_eagerly_during_a_capture() -> None:
    x, y = torch.ones(64), torch.zeros(64)
    graph = HostGraph()
    with graph.capture():
        other = threading.Thread(target=lambda: scale[(1,)](x, y, 2.0, 64, B=64))
        other.start()
        other.join()
    assert graph.num_launches == 0
    assert torch.equal(y, torch.full((64,), 2.0))

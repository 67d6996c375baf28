"""device_print and device_assert."""

from __future__ import annotations

import copy
import ctypes

import pytest
import torch
import triton
import triton.language as tl

from runtime.cpu.errors import DeviceAssertFailed
from runtime.cpu.graph import HostGraph

N = 4


@triton.jit
def prints(x, y, B: tl.constexpr):
    o = tl.arange(0, B)
    tl.device_print("values", tl.load(x + o), tl.load(y + o))
    tl.device_print('"100%s" \\ of pid', tl.program_id(0))
    tl.device_print("bits", tl.load(x + o), hex=True)
    tl.device_print("no operand")


def printed(capfd: pytest.CaptureFixture) -> list[str]:
    ctypes.CDLL(None).fflush(None)
    return capfd.readouterr().out.splitlines()


def test_print(capfd: pytest.CaptureFixture) -> None:
    prints[(1, 2)](torch.tensor([1, -2, 3, 255], dtype=torch.int32), torch.tensor([0.5, -1e20, 3.0, float("inf")]), B=N)
    lines = printed(capfd)
    first = [line for line in lines if line.startswith("pid (0, 0, 0)")]
    assert len(first) * 2 == len(lines)
    assert first == [
        *(f"pid (0, 0, 0) idx ({k}) values: (operand 0) {v}" for k, v in enumerate((1, -2, 3, 255))),
        *(f"pid (0, 0, 0) idx ({k}) values: (operand 1) {v}" for k, v in enumerate(("0.5", "-1e+20", "3", "inf"))),
        'pid (0, 0, 0) idx () "100%s" \\ of pid: 0',
        *(f"pid (0, 0, 0) idx ({k}) bits: 0x{v:08x}" for k, v in enumerate((1, 0xFFFFFFFE, 3, 255))),
        "pid (0, 0, 0) idx () no operand",
    ]  # fmt: skip


@triton.jit
def prints_types(x, B: tl.constexpr):
    o = tl.arange(0, B)
    v = tl.load(x + o)
    tl.device_print("v", v[:, None])
    tl.device_print("u", v.to(tl.int8).to(tl.uint8, bitcast=True))
    tl.device_print("b", v > 1)
    tl.device_print("d", v.to(tl.float64) / 3)
    tl.device_print("p", x)


def test_print_of_every_type(capfd: pytest.CaptureFixture) -> None:
    x = torch.tensor([-1.0, 1.5], dtype=torch.bfloat16)
    prints_types[(1,)](x, B=2)
    prefix = "pid (0, 0, 0) idx "
    assert printed(capfd) == [
        f"{prefix}(0, 0) v: -1", f"{prefix}(1, 0) v: 1.5", f"{prefix}(0) u: 255", f"{prefix}(1) u: 1",
        f"{prefix}(0) b: 0", f"{prefix}(1) b: 1", f"{prefix}(0) d: -0.3333333333333333", f"{prefix}(1) d: 0.5",
        f"{prefix}() p: {x.data_ptr():#x}",
    ]  # fmt: skip


@triton.jit(debug=True)
def checked(x, y, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + o, mask=o < n, other=0)
    tl.device_assert(v >= 0, 'x must not be "negative"', mask=o < n)
    if tl.sum(v) > 1000:
        tl.device_assert(n < 0, "the sum is too large")
    tl.store(y + o, v, mask=o < n)


def test_assert_names_kernel_line_program_and_message(threads) -> None:
    x, y = torch.arange(64, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    checked[(16,)](x, y, 60, B=N)
    assert torch.equal(y[:60], x[:60])
    x[21] = -1
    y.zero_()
    threads(1)
    with pytest.raises(DeviceAssertFailed) as caught:
        checked[(16,)](x, y, 60, B=N)
    message = str(caught.value)
    assert message.endswith("[cpu-device-assert]")
    assert "kernel checked" in message
    assert "test_debug.py:" in message
    assert "program (5, 0, 0)" in message
    assert 'x must not be "negative"' in message
    assert torch.equal(y[:20], x[:20]), "programs before it ran"
    assert not y[20:].any(), "the rest of it and programs after it did not"
    assert str(copy.deepcopy(caught.value)) == message


def test_a_kernel_works_again_after_a_failed_assert(threads) -> None:
    threads(2)
    x, y = torch.full((64,), 300, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    with pytest.raises(DeviceAssertFailed, match="the sum is too large"):
        checked[(16,)](x, y, 64, B=N)
    checked[(16,)](x - 299, y, 64, B=N)
    assert (y == 1).all()


def test_a_masked_or_disabled_assert_does_nothing() -> None:
    x, y = torch.zeros(64, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    x[60:] = -1
    checked[(16,)](x, y, 60, B=N)
    checked[(16,)](x, y, 64, B=N, debug=False)
    assert torch.equal(y, x)


def test_assert_in_a_graph() -> None:
    x, y = torch.zeros(64, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    graph = HostGraph()
    with graph.capture():
        checked[(16,)](x, y, 64, B=N)
    graph.replay()
    x[3] = -5
    with pytest.raises(DeviceAssertFailed, match=r"program \(0, 0, 0\)"):
        graph.replay()
    x[3] = 5
    graph.replay()
    assert y[3] == 5


@triton.jit(debug=True)
def overflows(x, y):
    tl.store(y, tl.load(x) + tl.load(x))


def test_overflow_checks_of_debug_mode() -> None:
    x, y = torch.tensor([1 << 30], dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    with pytest.raises(DeviceAssertFailed, match="overflow"):
        overflows[(1,)](x, y)
    overflows[(1,)](x, y, sanitize_overflow=False)
    assert y.item() == -(1 << 31)

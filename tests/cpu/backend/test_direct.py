"""Launches from Triton straight to C do what the launcher in Python does: the same bits, errors and hooks."""

from __future__ import annotations

import contextlib
import gc
import inspect
import struct
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from runtime.cpu import direct, launcher, profiling
from runtime.cpu.launcher import KernelLauncher


@triton.jit
def numbers(out, a: tl.int32, b: tl.uint64, c: tl.float64, d: tl.float32, e: tl.int1, f: tl.int64, SIZE: tl.constexpr):
    """Every kind of number, as 64 bits each."""
    tl.store(out, a.to(tl.int64))
    tl.store(out + 1, b.to(tl.int64, bitcast=True))
    tl.store(out + 2, c.to(tl.int64, bitcast=True))
    tl.store(out + 3, d.to(tl.float64).to(tl.int64, bitcast=True))
    tl.store(out + 4, e.to(tl.int64))
    tl.store(out + 5, f)
    tl.store(out + 6, tl.num_programs(0) + 1000 * tl.num_programs(1) + 1000000 * tl.num_programs(2))
    tl.store(out + 7, SIZE)


@triton.jit
def add_tuple(out, pair):
    tl.store(out, pair[0] + pair[1])


@triton.jit
def first(x, y):
    tl.store(y, tl.load(x))


def compiled_numbers() -> Any:
    out = torch.zeros(8, dtype=torch.int64)
    return numbers[(1,)](out, 3, 5, 0.5, 0.25, True, 7, SIZE=4)


PLAIN = {"grid": (1, 1, 1), "a": 3, "b": 5, "c": 0.5, "d": 0.25, "e": True, "f": 7}
#: Changes to a launch, good and bad ones.
CHANGES: list[dict[str, Any]] = [
    {}, {"grid": (2, 3, 4)}, {"grid": (True, 1, 1)}, {"grid": (np.int64(2), np.int32(3), 1)}, {"grid": (0, 1, 1)},
    {"grid": (torch.tensor(2), 1, 1)}, {"a": -(1 << 31)}, {"a": (1 << 31) - 1}, {"a": True}, {"a": np.int32(-5)},
    {"a": 1 << 63}, {"a": -(1 << 63) - 1}, {"a": 1.5}, {"a": "3"}, {"a": None}, {"b": (1 << 64) - 1}, {"b": 1 << 64},
    {"b": -1}, {"b": np.uint64(9)}, {"c": 1}, {"c": float("nan")}, {"c": -0.0}, {"c": np.float64(0.1)},
    {"c": 1 << 2000}, {"c": "x"}, {"c": torch.tensor(2.5)}, {"d": 1e300}, {"d": 0.1}, {"e": False}, {"e": 1},
    {"f": (1 << 63) - 1}, {"f": -(1 << 63)}, {"f": 1 << 64}, {"out": 1.5},
    {"out": torch.empty(8, dtype=torch.int64, device="meta")}, {"grid": (-1, 1, 1)}, {"grid": (1 << 31, 1, 1)},
    {"grid": (1 << 64, 1, 1)}, {"grid": (1 << 16, 1 << 16, 1)}, {"grid": (1.0, 1, 1)}, {"grid": ("2", 1, 1)},
    {"grid": (None, 1, 1)}, {"out": "address"},
]  # fmt: skip


def outcome(launch: Callable, kernel: Any, change: dict[str, Any]) -> tuple[list[int], str]:
    """What a launch wrote, and its error."""
    out = torch.zeros(8, dtype=torch.int64)
    given = PLAIN | {"out": out} | change
    if isinstance(given["out"], str):
        given["out"] = out.data_ptr()
    values = [given[name] for name in ("out", "a", "b", "c", "d", "e", "f")]
    try:
        launch(*given["grid"], 0, kernel.function, None, None, None, None, *values, 4)
    except Exception as error:
        return out.tolist(), f"{type(error).__name__}: {error}"
    return out.tolist(), ""


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_it_does_what_the_launcher_in_python_does(change: dict[str, Any]) -> None:
    kernel = compiled_numbers()
    assert inspect.isbuiltin(kernel.run)
    general = KernelLauncher(kernel.src, kernel.metadata)
    assert outcome(kernel.run, kernel, change) == outcome(general, kernel, change)


def test_most_launches_stay_in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: KernelLauncher, *args: Any) -> None:
        raise AssertionError("went through Python")

    kernel = compiled_numbers()
    monkeypatch.setattr(KernelLauncher, "__call__", refuse)
    for change in CHANGES[:10]:
        found, error = outcome(kernel.run, kernel, change)
        assert not error
        assert (found[7] == 4) == (0 not in change.get("grid", (1,)))
    with pytest.raises(AssertionError, match="went through Python"):
        kernel.run(1, 1, 1, 0, kernel.function, None, None, None, None)


@pytest.mark.parametrize("where", [(launcher, "recorder"), (profiling, "current")], ids=["capture", "profile"])
def test_whoever_looks_at_launches_sees_them(where: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, seen = compiled_numbers(), []
    monkeypatch.setattr(KernelLauncher, "__call__", lambda self, *args: seen.append(self.name))
    monkeypatch.setattr(*where, object())
    outcome(kernel.run, kernel, {})
    assert seen == ["numbers"]


def test_hooks_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, calls, out = compiled_numbers(), [], torch.zeros(8, dtype=torch.int64)
    values = (out, 3, 5, 0.5, 0.25, True, 7, 4)
    kernel.run(1, 1, 1, 0, kernel.function, None, "data", lambda data: calls.append(("enter", data)), None, *values)
    kernel.run(1, 1, 1, 0, kernel.function, None, "data", None, lambda data: calls.append(("exit", data)), *values)
    assert calls == [("enter", "data"), ("exit", "data")]


@pytest.mark.skipif(not hasattr(triton.knobs, "HookChain"), reason="this Triton has single hooks")
def test_a_chain_of_hooks_is_called_from_its_first_link_on() -> None:
    x, y, names = torch.ones(1), torch.zeros(1), []

    def hook(data: Any) -> None:
        names.append(data.get()["name"])

    chain = triton.knobs.runtime.launch_enter_hook
    first[(1,)](x, y)
    chain.add(hook)
    try:
        first[(1,)](x, y)
    finally:
        chain.remove(hook)
    first[(1,)](x, y)
    assert names == ["first"]


def test_a_hook_that_only_looks_like_an_empty_chain_is_called() -> None:
    class Hook:
        def __init__(self) -> None:
            self.calls: list = []
            self.count = 0

        def __call__(self, data: Any) -> None:
            self.count += 1

    kernel, hook, out = compiled_numbers(), Hook(), torch.zeros(8, dtype=torch.int64)
    kernel.run(1, 1, 1, 0, kernel.function, None, None, hook, hook, out, 3, 5, 0.5, 0.25, True, 7, 4)
    assert hook.count == 2


def test_arguments_in_tuples_are_left_to_python() -> None:
    out = torch.zeros(1, dtype=torch.int32)
    kernel = add_tuple[(1,)](out, (3, 4))
    assert isinstance(kernel.run, KernelLauncher)
    assert out.item() == 7


def test_more_arguments_than_it_holds_are_left_to_python(tmp_path: Path) -> None:
    names = [f"a{k}" for k in range(130)]
    text = f"import triton, triton.language as tl\n@triton.jit\ndef many(out, {', '.join(names)}):\n"
    (tmp_path / "many_arguments.py").write_text(f"{text}    tl.store(out, a0 + a129)\n")
    code = (
        "import torch, many_arguments\nout = torch.zeros(1, dtype=torch.int32)\n"
        "many_arguments.many[(1,)](out, *range(2, 132))\nprint(out.item())"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.stdout.strip() == "133", result.stderr


def test_an_exception_that_is_no_error_is_not_swallowed() -> None:
    class Interrupted(torch.Tensor):
        def data_ptr(self) -> int:
            raise KeyboardInterrupt

    kernel = compiled_numbers()
    tensor = torch.zeros(8, dtype=torch.int64).as_subclass(Interrupted)
    with pytest.raises(KeyboardInterrupt):
        outcome(kernel.run, kernel, {"out": tensor})


WAIT = """
import triton, triton.language as tl

@triton.jit
def wait(flag):
    while tl.load(flag, volatile=True) == 0:
        pass
"""
MEANWHILE = """
import threading, torch
from wait import wait

flag = torch.ones(1, dtype=torch.int32)
wait[(1,)](flag)
flag.zero_()
thread = threading.Thread(target=lambda: wait[(1,)](flag), daemon=True)
thread.start()
thread.join(0.2)
assert thread.is_alive()
flag.fill_(1)
thread.join(20)
print("ended", not thread.is_alive())
"""


def test_other_threads_run_python_meanwhile(tmp_path: Path) -> None:
    """The kernel waits for a number that another thread writes: it never came if the interpreter's lock were held."""
    (tmp_path / "wait.py").write_text(WAIT)
    command = [sys.executable, "-c", MEANWHILE]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert result.stdout.strip() == "ended True", result.stderr


def test_nothing_is_leaked() -> None:
    kernel, out = compiled_numbers(), torch.zeros(8, dtype=torch.int64)
    values = (out, 1000001, 1000002, 0.5, 0.25, True, 1000003, 4)

    def counts() -> list[int]:
        return [sys.getrefcount(value) for value in (*values[:5], kernel.function, torch.Tensor.data_ptr)]

    def launch_often() -> None:
        for _ in range(1000):
            kernel.run(1, 1, 1, 0, kernel.function, None, None, None, None, *values)
            with contextlib.suppress(struct.error):
                kernel.run(1, 1, 1, 0, kernel.function, None, None, None, None, out, "3", *values[2:])

    launch_often()
    before, blocks = counts(), sys.getallocatedblocks()
    launch_often()
    assert counts() == before
    assert sys.getallocatedblocks() - blocks < 500


def test_a_launcher_is_freed_with_its_function() -> None:
    kernel = compiled_numbers()
    general = KernelLauncher(kernel.src, kernel.metadata)
    function, alive = direct.launch(general), weakref.ref(general)
    del general
    gc.collect()
    assert alive() is not None
    del function
    gc.collect()
    assert alive() is None

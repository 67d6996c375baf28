"""Host graph: kernel launches recorded once, replayed by one C call. CUDA-graph semantics on a CPU.

    graph = HostGraph()
    with graph.capture():
        kernel[grid](x, y, n, BLOCK=256)      # recorded, not executed
    graph.replay()

Pointers and scalars are frozen at capture: a Python number changed afterwards has no effect, a tensor must be refilled
in place. The graph keeps captured tensors alive. Only Triton launches of the capturing thread are recorded; a torch
operation inside `capture` runs immediately and is not part of the graph.
"""

from __future__ import annotations

import ctypes
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

from . import assertions, launcher, pool, profiling
from .errors import GraphStateError

_RECORD = struct.Struct("=QQIII12x")  # cp_launch of native/pool.h
_capture_lock = threading.RLock()
_capturing = False
_owner: int | None = None  # thread whose launches are recorded now


@dataclass(frozen=True)
class Launch:
    """A recorded launch. `tensors`: (parameter, data_ptr), `scalars` and `constexprs`: (parameter, value), each in
    argument order. Triton makes constexprs of the integer 1 and of None too."""

    name: str
    grid: tuple[int, int, int]
    tensors: tuple[tuple[str, int], ...]
    scalars: tuple[tuple[str, Any], ...]
    constexprs: tuple[tuple[str, Any], ...] = ()


def refuse_timing() -> None:
    """Raise GraphStateError if this thread captures: launches recorded and not run have no time to be measured."""
    if _owner == threading.get_ident():
        raise GraphStateError(
            reason="triton.autotune or do_bench times launches inside a capture, where none runs: "
            "call the kernel once with such arguments before the capture"
        )


class HostGraph:
    """States: new, capturing, ready. A graph is captured once; a failed capture leaves it new."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self._state = "new"
        self._addresses: list[int] = []
        self._watched: list[int] = []
        self._packed: list[ctypes.Array] = []
        self._alive: list[tuple] = []
        self._runs: list[Callable[[], None]] = []
        self._checked = False
        self._records = ctypes.create_string_buffer(0)
        self._where = 0
        self._run = None

    @property
    def num_launches(self) -> int:
        return len(self.launches)

    @contextmanager
    def capture(self) -> Iterator[HostGraph]:
        """Record the launches of this thread instead of running them. Kernels are compiled if necessary.

        Waits for the capture of another thread. Raises GraphStateError inside a capture of the same thread, or when
        this graph is captured already."""
        with _capture_lock:
            yield from self._capture()

    def _capture(self) -> Iterator[HostGraph]:
        global _capturing, _owner
        if self._state != "new":
            raise GraphStateError(
                reason=f"capture of a graph that is {self._state}: a graph is captured once, make a new HostGraph"
            )
        if _capturing:
            raise GraphStateError(reason="another capture is in progress")
        owner = threading.get_ident()

        def record(source: launcher.KernelLauncher, function: int, grid: tuple, packed: bytes, args: tuple) -> bool:
            if threading.get_ident() != owner:
                return False
            self._record(source, function, grid, packed, args)
            return True

        try:
            _capturing, _owner, self._state, launcher.recorder = True, owner, "capturing", record
            yield self
        except BaseException:
            self.__init__()
            raise
        else:
            self._freeze()
        finally:
            launcher.recorder, _capturing, _owner = None, False, None

    def _record(self, source: launcher.KernelLauncher, function: int, grid: tuple, packed: bytes, args: tuple) -> None:
        described = list(source.describe(args))
        self.launches.append(
            Launch(
                source.name,
                grid,
                tuple((name, value.data_ptr()) for name, value in described if hasattr(value, "data_ptr")),
                tuple((name, value) for name, value in described if not hasattr(value, "data_ptr")),
                tuple(source.describe_constexprs(args)),
            )
        )
        self._addresses.append(function)
        self._packed.append(ctypes.create_string_buffer(packed, max(len(packed), 8)))
        self._alive.append(args)
        self._runs.append(source.bound(function, packed, grid, args))
        self._checked |= source.checked

    def _freeze(self) -> None:
        content = b"".join(
            _RECORD.pack(function, ctypes.addressof(packed), *launch.grid)
            for function, packed, launch in zip(self._addresses, self._packed, self.launches, strict=True)
        )
        self._records = ctypes.create_string_buffer(content, max(len(content), 8))
        self._where = ctypes.addressof(self._records)
        self._watched = [function for function in dict.fromkeys(self._addresses) if function in assertions.watched]
        self._run = pool.library().cp_run_launches
        self._state = "ready"

    def replay(self) -> None:
        """Run all launches in order and wait for the last one. Launches captured in check mode are checked one by one.

        Raises GraphStateError before capture, DeviceAssertFailed after a launch whose device_assert failed, and what
        checks find."""
        if self._run is None:
            raise GraphStateError(reason=f"replay of a graph that is {self._state}: capture it first")
        profile = profiling.current
        times = None if profile is None else (ctypes.c_int64 * (len(self.launches) + 1))()
        self._run_all(times)
        if profile is not None:
            profile.add_replay([launch.name for launch in self.launches], times)

    def _run_all(self, times: ctypes.Array | None) -> None:
        if self._checked:
            self._run_one_by_one(times)
        else:
            self._run(self._where, len(self.launches), times)
        if self._watched:
            assertions.raise_failures(self._watched)

    def _run_one_by_one(self, times: ctypes.Array | None) -> None:
        """As cp_run_launches, with checks."""
        for k, run in enumerate(self._runs):
            if times is not None:
                times[k] = time.monotonic_ns()
            run()
        if times is not None:
            times[len(self._runs)] = time.monotonic_ns()

    def profile(self, repeats: int = 20) -> list[tuple[str, float]]:
        """Kernel name and median seconds of each launch over `repeats` replays, from its start to that of the next."""
        if self._run is None:
            raise GraphStateError(reason=f"profile of a graph that is {self._state}: capture it first")
        count = len(self.launches)
        times = (ctypes.c_int64 * (count + 1))()
        samples: list[list[int]] = [[] for _ in range(count)]
        for _ in range(repeats):
            self._run_all(times)
            for k in range(count):
                samples[k].append(times[k + 1] - times[k])
        return [(launch.name, median(sample) * 1e-9) for launch, sample in zip(self.launches, samples, strict=True)]

"""Recorded launches: the same sequence of kernels, replayed without Python. One class per way of running it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

Run = Callable[[], None]
Scope = Callable[[], AbstractContextManager[None]]


class Graph(Protocol):
    """A sequence of launches over static buffers. num_launches: kernels per replay, or 0 if unknown."""

    num_launches: int

    def replay(self) -> None:
        """Run the launches; on CUDA, enqueue them on the current stream."""


class EagerGraph:
    """No graph: calls the section functions. The oracle that replay is compared with."""

    num_launches = 0

    def __init__(self, run: Run, scope: Scope) -> None:
        self._run, self._scope = run, scope

    def replay(self) -> None:
        """Launch kernel by kernel from Python, compiling what is new."""
        with self._scope():
            self._run()


class HostGraph:
    """Launches of CPU kernels, recorded with frozen arguments and replayed by one C call. Capture runs nothing."""

    def __init__(self, run: Run, scope: Scope) -> None:
        from runtime.cpu.graph import HostGraph as Recording

        self.recording: Any = Recording()
        with scope(), self.recording.capture():
            run()
        self.num_launches = int(self.recording.num_launches)
        self._replay: Run = self.recording.replay

    def replay(self) -> None:
        """Run the launches."""
        self._replay()

    def replay_first(self, count: int) -> None:
        """Run the first `count` launches only, with the arguments they were recorded with."""
        launches = self.recording.launches
        self.recording.launches = launches[:count]
        try:
            self._replay()
        finally:
            self.recording.launches = launches

    def profile(self, repeats: int) -> list[tuple[str, float]]:
        """Kernel name and median seconds of each launch over `repeats` replays, in order."""
        return list(self.recording.profile(repeats))


class CudaGraph:
    """A torch.cuda.CUDAGraph. It runs `run` once before capture, so that kernels are compiled and workspaces exist.

    The caller must have made that run idle: slots padded and no rows, so that it changes no live state.
    """

    num_launches = 0
    _pool: Any = None

    def __init__(self, run: Run, scope: Scope) -> None:
        with scope():
            self._warm_up(run)
            self._graph = torch.cuda.CUDAGraph()
            if CudaGraph._pool is None:
                CudaGraph._pool = torch.cuda.graph_pool_handle()
            with torch.cuda.graph(self._graph, pool=CudaGraph._pool):
                run()

    def _warm_up(self, run: Run) -> None:
        """On a side stream, as torch asks for before capture."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()

    def replay(self) -> None:
        """Enqueue the graph on the current stream."""
        self._graph.replay()


def record(run: Run, scope: Scope, device: torch.device, eager: bool) -> Graph:
    """The graph of `run` for a device."""
    if eager:
        return EagerGraph(run, scope)
    return CudaGraph(run, scope) if device.type == "cuda" else HostGraph(run, scope)

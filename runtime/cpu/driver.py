"""Triton's view of the machine. Triton looks for the one concrete class here."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

from . import assertions, direct, graph, knobs, pool
from .checks import mode
from .checks.launch import CheckedLauncher
from .launcher import KernelLauncher

_C_NAMES = {
    "i1": "int8_t", "i8": "int8_t", "i16": "int16_t", "i32": "int32_t", "i64": "int64_t",
    "fp32": "float", "fp64": "double",
}  # fmt: skip


class CpuUtils:
    """What Triton expects of `driver.utils`."""

    def load_binary(self, name: str, kernel: bytes, shared: int, device: int) -> tuple[ctypes.CDLL, int, int, int, int]:
        """Module, function address, registers, spills, maximum threads."""
        module = pool.load_object(name, kernel)
        function = ctypes.cast(module.cp_run, ctypes.c_void_p).value
        assertions.watch(name, function, module)
        return module, function, 0, 0, 1 << 30

    def unload_module(self, module: ctypes.CDLL) -> None:
        """Kernels stay loaded: host graphs may hold their addresses."""

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {
            "max_shared_mem": 1 << 30, "multiprocessor_count": pool.get_num_threads(), "warpSize": 1, "max_num_regs": 0,
            "sm_clock_rate": 0, "mem_clock_rate": 0, "mem_bus_width": 0,
        }  # fmt: skip


class DeviceInterface:
    """What `triton.testing.do_bench` uses of torch.cuda: launches here are complete when they return."""

    class Event:
        def __init__(self, enable_timing: bool = True) -> None:
            self._seconds = 0.0

        def record(self, stream: Any = None) -> None:
            self._seconds = time.perf_counter()

        def elapsed_time(self, end: DeviceInterface.Event) -> float:
            """Milliseconds, never zero: callers divide by it."""
            return max((end._seconds - self._seconds) * 1e3, 1e-6)

    @staticmethod
    def synchronize(device: Any = None) -> None:
        pass

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def device_count() -> int:
        return 1


class CpuDriver(DriverBase):
    """Active when torch has no GPU, or when TRITON_DEFAULT_BACKEND=cpu."""

    def __init__(self) -> None:
        super().__init__()
        knobs.warn_of_unknown()
        self.utils = CpuUtils()
        self.launcher_cls = _launcher

    @classmethod
    def is_active(cls) -> bool:
        if knobs.disabled():
            return False
        if knobs.forced_active():
            return True
        try:
            import torch
        except ImportError:
            return True
        return not torch.cuda.is_available()

    def get_current_device(self) -> int:
        """The check mode's number: Triton keeps the compiled kernels of each device apart."""
        return mode.MODES.index(mode.current().mode)

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cpu", "native", 1)

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cpu")

    def get_device_interface(self) -> type[DeviceInterface]:
        """Raises GraphStateError inside a capture: `triton.testing.do_bench` asks for it before its first launch."""
        graph.refuse_timing()
        return DeviceInterface

    def map_python_to_cpp_type(self, ty: str) -> str:
        return "void*" if ty[0] == "*" else _C_NAMES.get(ty, ty)

    def get_benchmarker(self) -> Callable:
        return _benchmark

    def get_empty_cache_for_benchmark(self) -> Any:
        import torch

        return torch.empty(64 << 20, dtype=torch.int8)

    def clear_cache(self, cache: Any) -> None:
        cache.zero_()


def _launcher(source: Any, metadata: Any) -> Callable[..., None]:
    return CheckedLauncher(source, metadata) if metadata.check_mode else direct.launch(KernelLauncher(source, metadata))


def _benchmark(function: Callable, *, quantiles: Sequence[float] | None = None, **options: Any) -> Any:
    """Milliseconds of `function`: quantiles of ten runs after three, or their mean. Refused inside a capture."""
    graph.refuse_timing()
    for _ in range(3):
        function()
    times = []
    for _ in range(10):
        start = time.perf_counter()
        function()
        times.append((time.perf_counter() - start) * 1e3)
    times.sort()
    if quantiles is None:
        return sum(times) / len(times)
    return [times[min(len(times) - 1, int(q * len(times)))] for q in quantiles]

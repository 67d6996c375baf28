"""Compiles one kernel instance in its own process. Imports torch and triton; `codegen.aot` does not."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

POINTER_ALIGNMENT = 16
WATCH_SECONDS = 1.0
TRITON_TYPES = {"uint8": "u8", "int8": "i8", "bf16": "bf16", "fp32": "fp32", "int32": "i32", "int64": "i64"}


class ToolchainRefused(Exception):
    """The CPU backend's own words on why it cannot compile."""


@dataclass(frozen=True)
class Job:
    """A kernel instance to compile: its file, its parameters (dtype, or "scalar"), its tile and its options."""

    kernel: str
    path: str
    target: str
    cache_dir: str
    params: tuple[tuple[str, str], ...]
    row_tile: int | None
    num_warps: int
    options: tuple[tuple[str, int], ...] = ()

    @property
    def launch_options(self) -> dict[str, Any]:
        """Options as the step module passes them."""
        return {"num_warps": self.num_warps, **dict(self.options), "enable_fp_fusion": False}


@dataclass(frozen=True)
class Resources:
    """What one compiled instance takes, and its folder in the cache.

    registers, spill_bytes and shared_bytes are None where the target has no such notion. sha256: of the folder's files.
    """

    kernel: str
    row_tile: int | None
    folder: str
    bytes: int
    registers: int | None = None
    spill_bytes: int | None = None
    shared_bytes: int | None = None
    sha256: str = ""


def end_with_parent(parent: int) -> None:
    """Start a watch that ends this process when the build is gone: a killed build leaves no compiler behind."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def compile_job(job: Job) -> Resources:
    """Compile into the cache folder of the package. Raises whatever the compiler raises."""
    import triton

    triton.knobs.cache.dir = job.cache_dir
    function = _load(job)
    compiled = _compile_cpu(job, function) if job.target == "cpu" else compile_cuda(job, function)
    return resources_of(job, compiled)


def _load(job: Job) -> Any:
    """The kernel function, from its generated file, under the module path the package gives it."""
    name = f"stepforge_aot_{job.target.replace(':', '_')}_{job.kernel}"
    if name not in sys.modules:
        module_spec = importlib.util.spec_from_file_location(name, job.path)
        if module_spec is None or module_spec.loader is None:
            raise ImportError(job.path)
        module = importlib.util.module_from_spec(module_spec)
        sys.modules[name] = module
        module_spec.loader.exec_module(module)
    return getattr(sys.modules[name], job.kernel)


def _compile_cpu(job: Job, function: Any) -> Any:
    import torch
    from triton.runtime.jit import MockTensor

    names = {"bf16": "bfloat16", "fp32": "float32"}
    dtypes = {dtype: getattr(torch, names.get(dtype, dtype)) for dtype in TRITON_TYPES}
    args: dict[str, Any] = {name: 3 if dtype == "scalar" else MockTensor(dtypes[dtype]) for name, dtype in job.params}
    if job.row_tile is not None:
        args["BLOCK_M"] = job.row_tile
    return function.warmup(**args, grid=(1,), **job.launch_options)


def compile_cuda(job: Job, function: Any) -> Any:
    """Compile a Triton function for a CUDA target, with or without a GPU. Raises whatever the compiler raises."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {name: "i32" if dtype == "scalar" else f"*{TRITON_TYPES[dtype]}" for name, dtype in job.params}
    attrs = {
        (index,): [["tt.divisibility", POINTER_ALIGNMENT]]
        for index, (_, dtype) in enumerate(job.params)
        if dtype != "scalar"
    }
    constants: dict[str, Any] = {}
    if job.row_tile is not None:
        signature["BLOCK_M"] = "constexpr"
        constants["BLOCK_M"] = job.row_tile
    source = ASTSource(function, signature, constants, attrs)
    target = GPUTarget("cuda", int(job.target.removeprefix("cuda:")), 32)
    return triton.compile(source, target=target, options=job.launch_options)


def resources_of(job: Job, compiled: Any) -> Resources:
    """What a compiled kernel takes, and its folder in Triton's cache."""
    from triton.runtime.cache import get_cache_manager

    folder = Path(get_cache_manager(compiled.hash).cache_dir).name
    if job.target == "cpu":
        return Resources(job.kernel, job.row_tile, folder, len(compiled.asm["so"]))
    cubin = compiled.asm["cubin"]
    usage = cubin_usage(cubin)
    spilled, shared = usage["STACK"] + usage["LOCAL"], int(compiled.metadata.shared)
    return Resources(job.kernel, job.row_tile, folder, len(cubin), usage["REG"], spilled, shared)


def cubin_usage(cubin: bytes) -> dict[str, int]:
    """Registers and stack of the kernel, as cuobjdump reads them from the binary."""
    text = _read_cubin("cuobjdump", "-res-usage", cubin=cubin)
    found = dict(re.findall(r"\b(REG|STACK|LOCAL|SHARED):(\d+)", text))
    return {name: int(found.get(name, 0)) for name in ("REG", "STACK", "LOCAL", "SHARED")}


def disassemble(cubin: bytes) -> str:
    """Machine code as text: every instruction, with the source lines that the PTX named."""
    return _read_cubin("nvdisasm", "-c", "-g", "-ndf", cubin=cubin)


def _read_cubin(tool: str, *options: str, cubin: bytes) -> str:
    """What one of the CUDA tools that come with Triton prints about a binary."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [getattr(knobs.nvidia, tool).path, *options, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def device_functions() -> tuple[Path, ...]:
    """The modules of device functions that kernels may use."""
    runtime = Path(__file__).resolve().parent.parent / "runtime"
    return (*sorted(runtime.glob("device*.py")), runtime / "cpu" / "functions.py")


def device_functions_sha256() -> str:
    """Hash of everything that a kernel may import: it decides binaries and bits."""
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in device_functions())).hexdigest()


def cpu_fingerprint() -> str:
    """Hash of the CPU backend's source, flags, compiler and processor. Raises ToolchainRefused."""
    from runtime.cpu.errors import CpuBackendError
    from runtime.cpu.toolchain import fingerprint

    try:
        return fingerprint()
    except CpuBackendError as error:
        raise ToolchainRefused(str(error)) from error

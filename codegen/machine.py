"""What a tuned result belongs to on this machine: processor, threads and last-level cache, or the GPU."""

from __future__ import annotations

import ctypes
import os
import platform
import re
from functools import cache
from pathlib import Path

from dsl.errors import printable

CPU_INFO = Path("/proc/cpuinfo")
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
UNKNOWN_CACHE = 32 << 20
CUDA_DRIVER = "libcuda.so.1"
CAPABILITY_MAJOR, CAPABILITY_MINOR = 75, 76  # of CUdevice_attribute
LONGEST_NAME = 256


@cache
def cpu_model() -> str:
    """The processor's name and stepping, or the machine's architecture where none is told."""
    fields = cpu_fields()
    words = (fields.get("model name", platform.machine()), fields.get("cpu family", ""), fields.get("model", ""))
    return printable(" ".join(word for word in words if word))


def cpu_fields() -> dict[str, str]:
    """What /proc/cpuinfo says of a processor, by name; nothing where there is none."""
    try:
        text = CPU_INFO.read_text()
    except OSError:
        return {}
    return dict(re.findall(r"^([\w ]+?)\s*:\s*(.+)$", text, re.MULTILINE))


def threads() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


@cache
def last_level_cache() -> int:
    """Bytes of the largest cache, or UNKNOWN_CACHE."""
    sizes = [_bytes(path) for path in CACHES.glob("index*/size")]
    return max(sizes, default=0) or UNKNOWN_CACHE


def _bytes(path: Path) -> int:
    try:
        found = re.fullmatch(r"(\d+)([KM]?)\s*", path.read_text())
    except OSError:
        return 0
    return int(found[1]) << {"": 0, "K": 10, "M": 20}[found[2]] if found else 0


def device(target: str) -> str | None:
    """What kernels of `target` run on here, and None if they run nowhere."""
    if target != "cpu":
        return gpu(target)
    return f"{cpu_model()}, {threads()} threads, {last_level_cache() >> 20} MiB cache"


@cache
def gpu(target: str, driver: str = CUDA_DRIVER) -> str | None:
    """Name of the GPU that CUDA takes first, such as `NVIDIA H200`, if its kernels are those of `target`."""
    try:
        cuda = ctypes.CDLL(driver)
    except OSError:
        return None
    handle, name = ctypes.c_int(), ctypes.create_string_buffer(LONGEST_NAME)
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(handle), 0) or cuda.cuDeviceGetName(name, LONGEST_NAME, handle):
        return None
    numbers = (ctypes.c_int(), ctypes.c_int())
    for number, attribute in zip(numbers, (CAPABILITY_MAJOR, CAPABILITY_MINOR), strict=True):
        if cuda.cuDeviceGetAttribute(ctypes.byref(number), attribute, handle):
            return None
    major, minor = (number.value for number in numbers)
    return printable(name.value.decode(errors="replace")) if target == f"cuda:{10 * major + minor}" else None

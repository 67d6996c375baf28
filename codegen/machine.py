"""What a tuned result belongs to on this machine: processor, threads and last-level cache, as Linux tells them."""

from __future__ import annotations

import os
import platform
import re
from functools import cache
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
UNKNOWN_CACHE = 32 << 20


@cache
def cpu_model() -> str:
    """The processor's name and stepping, or the machine's architecture where none is told."""
    try:
        text = CPU_INFO.read_text()
    except OSError:
        return platform.machine()
    fields = dict(re.findall(r"^([\w ]+?)\s*:\s*(.+)$", text, re.MULTILINE))
    words = (fields.get("model name", platform.machine()), fields.get("cpu family", ""), fields.get("model", ""))
    return " ".join(word for word in words if word)


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


def device(target: str) -> str:
    """What a result for `target` was measured on; a CUDA target is its own device."""
    if target != "cpu":
        return target
    return f"{cpu_model()}, {threads()} threads, {last_level_cache() >> 20} MiB cache"

"""Every environment variable of the CPU backend, read here and nowhere else."""

from __future__ import annotations

import os
from dataclasses import dataclass

from .errors import BadKnob

ISA_LEVELS = ("native", "avx512", "avx2", "baseline")


def _flag(name: str) -> bool:
    return os.environ.get(name, "").lower() in ("1", "true", "yes", "on")


def _integer(name: str, default: int) -> int:
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    if text.lstrip("-").isdigit():
        return int(text)
    if name.startswith("STEPFORGE_"):
        raise BadKnob(name=name, value=text, allowed="a whole number")
    return default


@dataclass(frozen=True)
class CompileKnobs:
    """What changes generated machine code; `toolchain.fingerprint` hashes every field."""

    cc: str
    isa: str
    extra_cflags: tuple[str, ...]


def compile_knobs() -> CompileKnobs:
    """STEPFORGE_CPU_CC: compiler. STEPFORGE_CPU_ISA: one of ISA_LEVELS. STEPFORGE_CPU_CFLAGS: appended flags."""
    isa = os.environ.get("STEPFORGE_CPU_ISA", "native")
    if isa not in ISA_LEVELS:
        raise BadKnob(name="STEPFORGE_CPU_ISA", value=isa, allowed=f"one of {', '.join(ISA_LEVELS)}")
    return CompileKnobs(
        cc=os.environ.get("STEPFORGE_CPU_CC") or os.environ.get("CC") or "gcc",
        isa=isa,
        extra_cflags=tuple(os.environ.get("STEPFORGE_CPU_CFLAGS", "").split()),
    )


def disabled() -> bool:
    """STEPFORGE_CPU_DISABLE=1: this backend claims no target, so another CPU backend can be the only one."""
    return _flag("STEPFORGE_CPU_DISABLE")


def forced_active() -> bool:
    """TRITON_DEFAULT_BACKEND=cpu: be the active driver although a GPU is present."""
    return os.environ.get("TRITON_DEFAULT_BACKEND") == "cpu"


def requested_threads() -> int | None:
    """STEPFORGE_CPU_THREADS, else OMP_NUM_THREADS; None when neither holds a positive number."""
    for name in ("STEPFORGE_CPU_THREADS", "OMP_NUM_THREADS"):
        value = _integer(name, 0)
        if value > 0:
            return value
    return None


def spin_microseconds() -> int:
    """STEPFORGE_CPU_SPIN_US: how long an idle thread spins before it sleeps (default 50)."""
    return max(0, _integer("STEPFORGE_CPU_SPIN_US", 50))


#: Words of STEPFORGE_CPU_CHECK, separated by commas; `0` and nothing mean no checks.
CHECK_WORDS = ("1", "bounds", "race", "storage", "same-value")


def check() -> tuple[str, ...]:
    """STEPFORGE_CPU_CHECK: check memory accesses; see "Find bugs" in docs/cpu-backend.md."""
    text = os.environ.get("STEPFORGE_CPU_CHECK", "").strip().lower()
    words = tuple(word.strip() for word in text.split(",") if word.strip() not in ("", "0"))
    for word in words:
        if word not in CHECK_WORDS:
            raise BadKnob(name="STEPFORGE_CPU_CHECK", value=text, allowed=f"0, or some of {', '.join(CHECK_WORDS)}")
    return words


def object_dir() -> str | None:
    """STEPFORGE_CPU_OBJECT_DIR: keep loaded kernels as files there, for profilers and debuggers."""
    return os.environ.get("STEPFORGE_CPU_OBJECT_DIR") or None

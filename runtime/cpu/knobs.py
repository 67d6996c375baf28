"""Every environment variable of the CPU backend, read here and nowhere else."""

from __future__ import annotations

import difflib
import os
import shlex
import shutil
import warnings
from dataclasses import dataclass

from .errors import BadKnob

ISA_LEVELS = ("native", "avx512", "avx2", "baseline")
PREFIX = "STEPFORGE_CPU_"
NAMES = tuple(
    PREFIX + name for name in ("CC", "CFLAGS", "CHECK", "DISABLE", "ISA", "OBJECT_DIR", "SPIN_US", "THREADS")
)  # fmt: skip
#: MAX_THREADS of native/pool.c.
MOST_THREADS = 256
LONGEST_SPIN = 1_000_000


def warn_of_unknown() -> None:
    """Warn of variables that look like ours and are none: they have no effect."""
    for name in sorted(os.environ):
        if name.startswith(PREFIX) and name not in NAMES:
            nearest = difflib.get_close_matches(name, NAMES, 1, 0)[0]
            warnings.warn(
                f"{name} is no variable of the CPU backend and has no effect; nearest: {nearest}", stacklevel=2
            )


def _flag(name: str) -> bool:
    return os.environ.get(name, "").lower() in ("1", "true", "yes", "on")


def _text(name: str) -> str:
    """Empty when the variable is not set."""
    return os.environ.get(name, "").strip()


def _integer(name: str, lowest: int, highest: int) -> int | None:
    """None when the variable is not set. Raises BadKnob."""
    text = _text(name)
    if not text:
        return None
    if text.isascii() and text.isdigit() and lowest <= int(text) <= highest:
        return int(text)
    raise BadKnob(name=name, value=text, allowed=f"a whole number from {lowest} to {highest}")


@dataclass(frozen=True)
class CompileKnobs:
    """What changes generated machine code; `toolchain.fingerprint` hashes every field."""

    cc: tuple[str, ...]
    isa: str
    extra_cflags: tuple[str, ...]


def compile_knobs() -> CompileKnobs:
    """STEPFORGE_CPU_CC: compiler. STEPFORGE_CPU_ISA: one of ISA_LEVELS. STEPFORGE_CPU_CFLAGS: appended flags."""
    isa = _text("STEPFORGE_CPU_ISA") or "native"
    if isa not in ISA_LEVELS:
        raise BadKnob(name="STEPFORGE_CPU_ISA", value=isa, allowed=f"one of {', '.join(ISA_LEVELS)}")
    return CompileKnobs(cc=_compiler(), isa=isa, extra_cflags=_words("STEPFORGE_CPU_CFLAGS"))


def _compiler() -> tuple[str, ...]:
    """The compiler and arguments it always gets, as in CC="ccache gcc"; a path with spaces is one word if it exists."""
    for name in ("STEPFORGE_CPU_CC", "CC"):
        if _text(name):
            return (_text(name),) if shutil.which(_text(name)) else _words(name)
    return ("gcc",)


def _words(name: str) -> tuple[str, ...]:
    """Split as a shell does. Raises BadKnob."""
    try:
        return tuple(shlex.split(_text(name)))
    except ValueError as error:
        raise BadKnob(name=name, value=_text(name), allowed=f"words as a shell reads them ({error})") from error


def disabled() -> bool:
    """STEPFORGE_CPU_DISABLE=1: this backend claims no target, so another CPU backend can be the only one."""
    return _flag("STEPFORGE_CPU_DISABLE")


def forced_active() -> bool:
    """TRITON_DEFAULT_BACKEND=cpu: be the active driver although a GPU is present."""
    return os.environ.get("TRITON_DEFAULT_BACKEND") == "cpu"


def requested_threads() -> int | None:
    """STEPFORGE_CPU_THREADS (1 to 256), else OMP_NUM_THREADS if that is a positive number."""
    ours, openmp = _integer("STEPFORGE_CPU_THREADS", 1, MOST_THREADS), _text("OMP_NUM_THREADS")
    if ours is None and openmp.isascii() and openmp.isdigit() and int(openmp) > 0:
        return min(int(openmp), MOST_THREADS)
    return ours


def spin_microseconds() -> int:
    """STEPFORGE_CPU_SPIN_US: how long an idle thread spins before it sleeps (default 50, at most a second)."""
    given = _integer("STEPFORGE_CPU_SPIN_US", 0, LONGEST_SPIN)
    return 50 if given is None else given


#: Words of STEPFORGE_CPU_CHECK, separated by commas; `0` and nothing mean no checks.
CHECK_WORDS = ("1", "bounds", "race", "storage", "same-value")


def check() -> tuple[str, ...]:
    """STEPFORGE_CPU_CHECK: check memory accesses; see "Find bugs" in docs/cpu-backend.md. Raises BadKnob."""
    text = _text("STEPFORGE_CPU_CHECK").lower()
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    if words == ("0",):
        return ()
    for word in words:
        if word not in CHECK_WORDS:
            raise BadKnob(name="STEPFORGE_CPU_CHECK", value=text, allowed=f"0, or some of {', '.join(CHECK_WORDS)}")
    if "same-value" in words and "race" not in words:
        raise BadKnob(name="STEPFORGE_CPU_CHECK", value=text, allowed="same-value only with race, as race,same-value")
    if "storage" in words and not {"1", "bounds", "race"} & set(words):
        raise BadKnob(name="STEPFORGE_CPU_CHECK", value=text, allowed="storage only with others, as 1,storage")
    return words


def object_dir() -> str | None:
    """STEPFORGE_CPU_OBJECT_DIR: keep loaded kernels as files there, for profilers and debuggers."""
    return _text("STEPFORGE_CPU_OBJECT_DIR") or None

"""Whose fault an error is: a candidate's, which is then rejected for ever, or the machine's, and it is tried again."""

from __future__ import annotations

import torch

from codegen.errors import ToolchainUnusable, TuneNotWritten
from dsl.errors import cut
from runtime.cpu.errors import BadKnob, CompilerMissing

LONGEST_REASON = 4000  # characters: a compiler may say more
MACHINE = (
    OSError,
    MemoryError,
    torch.OutOfMemoryError,
    TuneNotWritten,
    ToolchainUnusable,
    BadKnob,
    CompilerMissing,
)
# What compilers and allocators say where no class tells: a compiler that is killed has run out of memory.
WORDS = (
    "no space left on device",
    "disk quota exceeded",
    "cannot allocate memory",
    "can't allocate memory",
    "out of memory",
    "killed signal",
    "too many open files",
)


def is_the_machines(error: BaseException) -> bool:
    """Whether the same values may do better another time."""
    text = str(error).lower()
    return isinstance(error, MACHINE) or any(word in text for word in WORDS)


def brief(error: BaseException) -> str:
    """The first line of what an error says, and the last if that is what it leads to; without any, what it is."""
    lines = str(error).strip().splitlines() or [repr(error)]
    leads = lines[0].endswith(":") and len(lines) > 1  # Triton's: `at 15:18:`, the kernel's text, what is wrong there
    return cut(f"{lines[0]} {lines[-1].strip()}" if leads else lines[0], LONGEST_REASON)

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
    """The first line of what an error says, or what it is."""
    lines = str(error).strip().splitlines()
    return cut(lines[0] if lines else repr(error), LONGEST_REASON)

"""Environment variables that `codegen` reads, all of them, in one place."""

from __future__ import annotations

import os


def c_compiler() -> str:
    """The C compiler of the CPU backend: `CC`, by default gcc."""
    return os.environ.get("CC", "gcc")

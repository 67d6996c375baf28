"""The toy model with eight slots, and a text that its prompts come from."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from runtime.package import Package
from tests.cpu.engine.toys import agreeing_weights, toy_spec, write_toy

KERNELS = Path(__file__).resolve().parents[2] / "build" / "test-kernels"
TEXT = b"pack my box with five dozen liquor jugs; the quick brown fox jumps over the lazy dog. sphinx of black quartz!"
SPEC = toy_spec(max_slots=8)


@cache
def package() -> Package:
    """Its package, rendered once per process."""
    folder = Path(tempfile.mkdtemp(prefix="stepforge-sampling-"))
    return write_toy(folder / "package", KERNELS, SPEC)


@cache
def weights():
    """Its weights."""
    return agreeing_weights(SPEC)

"""The one toy that all runs share: its package, its weights, and what is known of it for good."""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from runtime.engine import Engine
from runtime.package import Package
from tests.cpu.engine.toys import agreeing_weights, toy_spec, write_toy
from tests.state.cold import Cold

KERNELS = Path(__file__).resolve().parents[2] / "build" / "test-kernels"
CONV_WIDTH = 4
STRENGTH = 0.1


@dataclass
class Subject:
    """A package, its weights, cold answers and states of it; plant: what every engine of a run gets planted in it."""

    package: Package
    weights: dict[str, Tensor]
    plant: Callable[[Engine], None] | None = None
    cold: Cold = field(init=False)

    def __post_init__(self) -> None:
        self.cold = Cold(self.package, self.weights)


@cache
def toy(tuned: int | None = None) -> Subject:
    """The toy, with layers so quiet that its drafter is right about every other time, up to all drafts at once.

    tuned: seed of tunables that its engines run with; what is cold runs with the defaults even then.
    """
    torch.set_num_threads(1)
    spec = toy_spec()
    subject = Subject(write_toy(_folder() / "package", KERNELS, spec, None), agreeing_weights(spec, STRENGTH))
    if tuned is not None:
        subject.package = write_toy(_folder() / "package", KERNELS, spec, tuned)
        assert subject.package.numerics_sha256 == subject.cold.package.numerics_sha256
    return subject


def _folder() -> Path:
    """One that goes when this process ends."""
    folder = tempfile.TemporaryDirectory(prefix="stepforge-state-")
    atexit.register(folder.cleanup)
    return Path(folder.name)

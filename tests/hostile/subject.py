"""A good package, its weights and an archive of its checkpoints: what is damaged. Nothing of it is ever run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save

from codegen.lower import lower
from codegen.package import write_package
from dsl.reference.weights import random_weights
from runtime.checkpoints.archive import save_archive
from runtime.package import Package, open_package
from tests.cpu.engine.toys import toy_spec
from tests.cpu.tiers.images import LAYOUT, image_of


@dataclass(frozen=True)
class Good:
    """A package in a folder, and the bytes of a file of its weights and of an archive of checkpoints (of LAYOUT)."""

    package: Package
    weights: bytes
    archive: bytes

    @property
    def folder(self) -> Path:
        """Where the package lies."""
        return self.package.path


def make_good(folder: Path) -> Good:
    """Write a good package below `folder`, without compiled kernels."""
    spec = toy_spec()
    write_package([lower(spec, "cpu")], folder / "good", spec, "toy.yaml")
    save_archive(folder / "archive", [image_of(range(n)) for n in (5, 9)], LAYOUT)
    archive = (folder / "archive").read_bytes()
    (folder / "archive").unlink()
    return Good(open_package(folder / "good"), save(random_weights(spec, 0)), archive)

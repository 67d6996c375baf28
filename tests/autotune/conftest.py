"""What the tests of autotune share: the toy model, its plan, and a forge whose kernels may be planted faults."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.forge import Forge
from codegen.lower import lower
from codegen.plan import Kernel, Plan
from codegen.render import kernel_text
from dsl import ModelSpec, load_spec
from tests.cpu.engine.toys import toy_spec

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def toy() -> ModelSpec:
    return toy_spec(draft_head="int8")


@pytest.fixture(scope="session")
def tiny() -> ModelSpec:
    return load_spec(ROOT / "specs" / "tiny-hybrid.yaml")


@pytest.fixture(scope="session")
def toy_plan(toy: ModelSpec) -> Plan:
    return lower(toy, "cpu")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where forged kernels lie."""
    return tmp_path_factory.mktemp("forge")


@pytest.fixture(scope="session")
def planted(tiny: ModelSpec, folder: Path) -> Callable[[dict[str, object], str, str], Forge]:
    """A forge that alters the text of a kernel wherever it has the given constants."""

    def make(constants: dict[str, object], old: str, new: str) -> Forge:
        def text(kernel: Kernel) -> str:
            plain = kernel_text(kernel)
            if all(dict(kernel.constants).get(name) == value for name, value in constants.items()):
                assert old in plain, f"{kernel.name} does not say {old!r}"
                return plain.replace(old, new)
            return plain

        return Forge(tiny, "cpu", folder, text)

    return make

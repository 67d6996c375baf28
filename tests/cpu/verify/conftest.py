"""Packages that are built once and kept under build/: only what changed is compiled again."""

from __future__ import annotations

from pathlib import Path

import pytest
from filelock import FileLock

from codegen.aot import compile_package
from codegen.lower import lower
from codegen.package import write_package
from dsl import ModelSpec, load_spec
from tests.cpu.engine.toys import toy_spec
from tests.fuzz.corpus import drawn_specs, is_hybrid_with_drafts

ROOT = Path(__file__).resolve().parents[3]
KEPT = ROOT / "build" / "tests" / "verify"


def built(name: str, spec: ModelSpec) -> Path:
    """The package of a spec, with all kernels compiled."""
    plan, package = lower(spec, "cpu"), KEPT / name
    KEPT.mkdir(parents=True, exist_ok=True)
    with FileLock(KEPT / f"{name}.lock"):
        write_package([plan], package, spec, f"{name}.yaml")
        compile_package(plan, package)
    return package


@pytest.fixture(scope="session")
def toy_package() -> Path:
    return built("toy", toy_spec())


@pytest.fixture(scope="session", params=["int8", "int4"])
def rounded_package(request: pytest.FixtureRequest) -> Path:
    """A package with a head of drafts in int8 or int4."""
    return built(f"toy_{request.param}", toy_spec(draft_head=request.param))


@pytest.fixture(scope="session")
def drawn_package() -> Path:
    (spec,) = drawn_specs(1, 5, is_hybrid_with_drafts)
    return built("drawn", spec)


@pytest.fixture(scope="session")
def tiny_hybrid_package() -> Path:
    return built("tiny_hybrid", load_spec(ROOT / "specs" / "tiny-hybrid.yaml"))

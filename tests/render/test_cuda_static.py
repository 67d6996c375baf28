"""Every kernel of every spec compiles for NVIDIA targets without a GPU: no spills, shared memory within the limit."""

from pathlib import Path

import pytest

from codegen.aot import compile_package
from codegen.lower import lower
from codegen.package import write_package
from dsl import load_spec

ROOT = Path(__file__).resolve().parents[2]
SPECS = sorted([*(ROOT / "specs").glob("*.yaml"), *(ROOT / "tests" / "specs").glob("*.yaml")])
SHARED_LIMIT = {"cuda:80": 163 * 1024, "cuda:90": 227 * 1024, "cuda:100": 227 * 1024}


@pytest.mark.parametrize("target", SHARED_LIMIT)
@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_all_kernels_compile_without_spills(path: Path, target: str, tmp_path: Path) -> None:
    spec = load_spec(path)
    plan = lower(spec, target)
    write_package([plan], tmp_path / "package", spec, path.name)
    resources = compile_package(plan, tmp_path / "package")
    assert {entry.kernel for entry in resources} == {kernel.name for kernel in plan.kernels}
    assert [entry for entry in resources if entry.spill_bytes] == []
    assert all(entry.shared_bytes is not None and entry.shared_bytes <= SHARED_LIMIT[target] for entry in resources)

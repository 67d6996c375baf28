"""From a spec to a package: what lowering and rendering take, and compiling every kernel."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

from codegen.aot import compile_package
from codegen.lower import lower
from codegen.package import write_package
from dsl import load_spec
from runtime.cpu import toolchain

from .conftest import ROOT, THREADS, Against

SPEC = ROOT / "tests" / "specs" / "no-mtp.yaml"
PYTHON_TEXT = (ROOT / "runtime" / "scheduler.py").read_text()
C_TEXT = "\n".join(
    f"void f{i}(float *x, const float *y, int n) {{ for (int j = 0; j < n; j++) x[j] = x[j] * y[j] + {i}.0f; }}"
    for i in range(40)
)


def test_lower_and_render(tmp_path: Path, against: Against) -> None:
    folders = (tmp_path / str(number) for number in itertools.count())

    def build() -> None:
        spec = load_spec(SPEC)
        write_package([lower(spec, "cpu")], next(folders), spec, "no-mtp.yaml")

    against("lower and render", build, lambda: ast.parse(PYTHON_TEXT), of="parsing 400 lines of Python", rounds=5)


def test_compile(tmp_path: Path, against: Against) -> None:
    spec = load_spec(SPEC)
    plan, folders = lower(spec, "cpu"), (tmp_path / str(number) for number in itertools.count())

    def build() -> None:
        folder = next(folders)
        write_package([plan], folder, spec, "no-mtp.yaml")
        assert len(compile_package(plan, folder, THREADS)) >= len(plan.kernels)

    def compile_c() -> None:
        toolchain.build_kernel(C_TEXT, "yardstick")

    against("compile a package", build, compile_c, of="compiling 40 loops in C", rounds=1, warm_up=0)

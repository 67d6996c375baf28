"""Compiles, launches and compares one program."""

from __future__ import annotations

import importlib.util
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.cpu.fuzz import bounds, data
from tests.cpu.fuzz.oracle import expected
from tests.cpu.fuzz.program import Program
from tests.cpu.fuzz.source import kernel_source


@dataclass(frozen=True)
class Difference:
    """One element of one buffer beyond its bound; `count` elements of that buffer are."""

    buffer: str
    element: int
    got: float
    want: float
    error: float
    count: int

    def __str__(self) -> str:
        bound = "equal bits" if self.error == 0 else f"within {self.error:.3g}"
        return f"{self.buffer}[{self.element}] = {self.got!r}, must be {self.want!r} ({bound}); {self.count} differ"


@dataclass
class Outcome:
    """What running a program found. `worst`: the largest error as a share of its bound."""

    program: Program
    difference: Difference | None = None
    failure: str = ""
    compared: int = 0
    exact: int = 0
    unknown: int = 0
    worst: float = 0.0
    compile_seconds: float = 0.0
    ops: Counter[str] = field(default_factory=Counter)

    @property
    def ok(self) -> bool:
        return self.difference is None and not self.failure

    @property
    def message(self) -> str:
        return self.failure or str(self.difference)


def run(program: Program, folder: Path) -> Outcome:
    """Run a program from a source file in `folder` and compare every buffer, guards included."""
    outcome = Outcome(program, ops=Counter(operation_name(stmt) for stmt in program.walk()))
    want = expected(program)
    tensors = {b.name: data.tensor(b.dtype, data.fill(program, b)) for b in program.buffers}
    start = time.perf_counter()
    try:
        launch(program, write(program, folder), tensors)
    except Exception as error:  # whatever a compiler raises is what the fuzzer looks for
        outcome.failure = f"{type(error).__name__}: {error}"
        return outcome
    outcome.compile_seconds = time.perf_counter() - start
    for buffer in program.buffers:
        compare(program, buffer.name, tensors[buffer.name], want[buffer.name], outcome)
    return outcome


def operation_name(stmt: Any) -> str:
    kind = stmt.attrs.get("kind") or (stmt.attrs["mode"] if stmt.op in ("load", "store") else "")
    return f"{stmt.op} {kind}".strip()


def write(program: Program, folder: Path) -> Path:
    """The program's source as a file: Triton reads the source of its kernels."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"program_{program.seed}_{program.index}.py"
    path.write_text(kernel_source(program))
    return path


def load_kernel(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.program


def launch(program: Program, path: Path, tensors: dict[str, torch.Tensor]) -> None:
    load_kernel(path)[program.grid](*tensors.values(), *program.scalars.values())


def compare(program: Program, name: str, tensor: torch.Tensor, want: bounds.Value, outcome: Outcome) -> None:
    """Add one buffer to the outcome."""
    dtype, guard = program.buffer(name).dtype, data.GUARD
    got = data.elements(dtype, tensor)
    edge = data.poison(dtype, guard)
    whole = bounds.Value(
        np.concatenate([edge, want.data, edge]), np.concatenate([np.zeros(guard), want.error, np.zeros(guard)])
    )
    shares = bounds.shares(dtype, got, whole)
    outcome.unknown += int(np.isnan(shares).sum())
    outcome.compared += int((~np.isnan(shares)).sum()) - 2 * guard
    outcome.exact += int((whole.error == 0).sum()) - 2 * guard
    wrong = np.flatnonzero(shares > 1)
    if len(wrong) and outcome.difference is None:
        k = int(wrong[0])
        error = float(whole.error[k])
        outcome.difference = Difference(name, k - guard, got[k].item(), whole.data[k].item(), error, len(wrong))
    finite = shares[shares <= 1]
    outcome.worst = max(outcome.worst, float(finite.max(initial=0.0)))

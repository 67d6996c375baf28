"""`python -m codegen inspect`: all kernels of some specs, compiled for CUDA targets and read."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.table import Table

from codegen.errors import NoMachineCode
from codegen.inspect.run import Inspection, Progress, inspect_plan
from codegen.lower import TARGETS, lower
from codegen.package import write_package
from dsl import load_spec

CUDA_TARGETS = tuple(target for target in TARGETS if target.startswith("cuda:"))
NARROW = 150


def run_inspect(
    spec_paths: list[Path],
    targets: Iterable[str],
    directory: Path,
    jobs: int | None,
    as_json: bool,
    out: Console,
    progress: Progress,
) -> int:
    """Print a table per spec, or one JSON object; the exit code is 1 if a rule is broken."""
    start = perf_counter()
    found = {path.as_posix(): _inspect_spec(path, targets, directory, jobs, progress) for path in spec_paths}
    seconds = perf_counter() - start
    kernels = [inspection for inspections in found.values() for inspection in inspections]
    broken = sum(not inspection.passed for inspection in kernels)
    if as_json:
        specs = {path: [_as_dict(inspection) for inspection in group] for path, group in found.items()}
        print(json.dumps({"passed": not broken, "kernels": len(kernels), "seconds": seconds, "specs": specs}))
        return int(bool(broken))
    out = out if out.is_terminal and out.width >= NARROW else Console(width=NARROW, emoji=False)
    for path, group in found.items():
        out.print(_table(path, group))
    verdict = f"{broken} break a rule" if broken else "every rule holds"
    out.print(f"{len(kernels)} kernels in {seconds:.1f} s: {verdict}")
    return int(bool(broken))


def _inspect_spec(
    path: Path, targets: Iterable[str], directory: Path, jobs: int | None, progress: Progress
) -> list[Inspection]:
    spec = load_spec(path)
    wanted = list(dict.fromkeys(targets))
    for target in wanted:
        if target == "cpu":
            raise NoMachineCode(target=target, allowed=", ".join(CUDA_TARGETS))
    plans = [lower(spec, target) for target in wanted]
    package = directory / spec.name.replace("-", "_")
    write_package(plans, package, spec, path.as_posix())
    return [inspection for plan in plans for inspection in inspect_plan(plan, package, jobs, progress)]


def _as_dict(inspection: Inspection) -> dict[str, Any]:
    return {**asdict(inspection), "passed": inspection.passed}


def _table(path: str, inspections: list[Inspection]) -> Table:
    table = Table(title=path, title_justify="left")
    table.add_column("kernel", overflow="fold")
    table.add_column("target", no_wrap=True)
    for name in ("tile", "registers", "spilled", "shared"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("dots", no_wrap=True)
    for name in ("fma", "FFMA", "HFMA"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", overflow="fold")
    for entry in inspections:
        table.add_row(
            entry.kernel,
            entry.target,
            str(entry.row_tile or ""),
            str(entry.registers),
            str(entry.spill_bytes),
            str(entry.shared_bytes),
            ", ".join(f"{count} {family}" for family, count in entry.dots.items()),
            str(entry.fma_ptx),
            str(entry.fma_sass),
            str(entry.half),
            "ok" if entry.passed else "; ".join(map(str, entry.findings)),
        )
    return table

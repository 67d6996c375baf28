"""Compile and inspect every kernel of a plan. What was inspected and has not changed is not read again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from codegen.aot import compile_package
from codegen.aot_worker import Resources
from codegen.errors import OutputNotWritten
from codegen.inspect.compiled import Compiled, read_compiled
from codegen.inspect.listing import counted, matching
from codegen.inspect.rules import PTX_DOT, PTX_FMA, SASS_FMA, Finding, dot_family, half_arithmetic, judge, lanes
from codegen.plan import Plan
from codegen.render import target_folder
from codegen.whole_file import replace_whole

KEPT = "inspection.json"
APPROXIMATE = r"(ex2|lg2|sin|cos|tanh|rsqrt|sqrt|rcp|div)\.(approx|full)"
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Inspection:
    """What one compiled kernel is made of. Counts are of instructions in the text, not of those that run.

    dots: PTX dots by family; fma_ptx, fma_sass: fp32 multiply-adds; half: 16-bit arithmetic; approximate: approximate
    functions by mnemonic; findings: rules that are broken.
    """

    kernel: str
    target: str
    row_tile: int | None
    registers: int
    spill_bytes: int
    shared_bytes: int
    dots: dict[str, int]
    fma_ptx: int
    fma_sass: int
    half: int
    approximate: dict[str, int]
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether every rule holds."""
        return not self.findings


def inspect(compiled: Compiled) -> Inspection:
    """Judge and count one compiled kernel."""
    dots: dict[str, int] = {}
    for op, count in counted(compiled.ptx, PTX_DOT).items():
        dots[dot_family(op)] = dots.get(dot_family(op), 0) + count
    return Inspection(
        compiled.kernel,
        compiled.target,
        compiled.row_tile,
        compiled.registers,
        compiled.spill_bytes,
        compiled.shared_bytes,
        dots,
        lanes(matching(compiled.ptx, PTX_FMA)).total(),
        lanes(matching(compiled.sass, SASS_FMA)).total(),
        len(half_arithmetic(compiled)),
        dict(sorted(counted(compiled.ptx, APPROXIMATE).items())),
        tuple(judge(compiled)),
    )


def inspect_plan(
    plan: Plan, directory: Path, jobs: int | None = None, progress: Progress | None = None
) -> list[Inspection]:
    """Compile the package of `plan` in `directory`, already written there, and inspect every kernel instance.

    progress(kernel, done, total) is called after each compiled kernel. Raises BuildFailed if one does not compile, or
    OutputNotWritten.
    """
    compiled = compile_package(plan, directory, jobs, progress)
    folder = directory / "cache" / target_folder(plan.target)
    known = _read(folder / KEPT)
    with ThreadPoolExecutor(jobs) as pool:
        found = list(pool.map(lambda entry: known.get(_key(entry)) or _inspect(entry, plan.target, folder), compiled))
    kept = {_key(entry): asdict(inspection) for entry, inspection in zip(compiled, found, strict=True)}
    _write(folder / KEPT, json.dumps(kept, indent=1, sort_keys=True) + "\n")
    return found


def _inspect(entry: Resources, target: str, folder: Path) -> Inspection:
    return inspect(read_compiled(entry, target, folder / entry.folder))


def _key(entry: Resources) -> str:
    """What an inspection depends on: every file of the compiled kernel, and these rules."""
    return hashlib.sha256(f"{entry} {_rules_sha256()}".encode()).hexdigest()


@cache
def _rules_sha256() -> str:
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def _read(path: Path) -> dict[str, Inspection]:
    try:
        return {key: _inspection(fields) for key, fields in json.loads(path.read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError, KeyError):
        return {}


def _write(path: Path, text: str) -> None:
    """Raises OutputNotWritten."""
    try:
        replace_whole(path, text.encode())
    except OSError as error:
        raise OutputNotWritten(path=path, detail=error.strerror or str(error)) from error


def _inspection(fields: dict[str, Any]) -> Inspection:
    findings = tuple(Finding(**finding) for finding in fields["findings"])
    return Inspection(**{**fields, "findings": findings})

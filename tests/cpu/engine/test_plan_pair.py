"""The runtime reads from plan.json what the compiler wrote: the two schemas are held equal here."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from codegen.lower import lower
from codegen.memory import memory_table as planned_memory
from dsl import load_spec
from runtime.memory import memory_table
from runtime.plan import read_plan

ROOT = Path(__file__).resolve().parents[3]
SPECS = sorted([*(ROOT / "specs").glob("*.yaml"), *(ROOT / "tests" / "specs").glob("*.yaml")])


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_what_is_read_is_what_was_planned(path: Path) -> None:
    written = lower(load_spec(path), "cpu")
    read = read_plan(json.loads(written.to_json()))
    assert asdict(read.limits) == asdict(written.limits)
    assert [(b.name, b.shape, b.dtype, b.role, b.layout, b.bytes) for b in read.buffers.values()] == [
        (b.name, b.shape, b.dtype, str(b.role), b.layout, b.bytes) for b in written.buffers
    ]
    assert {name: [(x.kernel, x.grid, dict(x.args)) for x in launches] for name, launches in read.sections.items()} == {
        section.name: [(x.kernel, x.grid, dict(x.args)) for x in section.launches] for section in written.sections
    }
    assert [asdict(part) for part in read.checkpoint_parts] == [asdict(part) for part in written.checkpoint_parts]
    planned = {str(role): size for role, size in planned_memory(written).items()}
    assert {role: size for role, size in memory_table(read).items() if size} == {r: n for r, n in planned.items() if n}

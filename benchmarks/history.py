"""A history of ratios: one JSON line per run, and what changed since the last ones.

Only ratios of one run are kept, and larger is better: absolute figures depend on the machine and on the hour. The file
is named by an option, else by STEPFORGE_BENCH_HISTORY, else it is benchmarks.jsonl in the user's cache folder. A run is
compared with those of the same machine during which nobody else used it.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import platformdirs

from codegen.machine import cpu_fields, threads

VARIABLE = "STEPFORGE_BENCH_HISTORY"
DEFAULT = platformdirs.user_cache_path("stepforge") / "benchmarks.jsonl"
LAST = 5  # entries whose median a run is compared with
TOLERANCE = 0.10
BUSY_CORES = 0.15
FIELDS = {"kind": str, "machine": str, "others": float, "ratios": dict}


@dataclass(frozen=True)
class Change:
    """A ratio now, the median of its last entries, and how many those are."""

    name: str
    now: float
    before: float
    entries: int

    @property
    def regressed(self) -> bool:
        """Whether it fell by more than TOLERANCE."""
        return self.now < self.before * (1 - TOLERANCE)

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.now:.3f}, {self.now / self.before - 1:+.0%} of {self.before:.3f} ({self.entries} runs)"
        )


def path_of(option: Path | None) -> Path:
    """The file of the history."""
    return option or Path(os.environ.get(VARIABLE) or DEFAULT)


def append(path: Path, kind: str, ratios: Mapping[str, float], others: float, **about: Any) -> None:
    """Add a run. kind: of benchmark; only runs of one kind are compared.

    others: mean cores that the rest of the machine used meanwhile. about: what else may explain a change.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        run = {"kind": kind, "machine": machine(), "others": others, "ratios": dict(ratios), **about}
        file.write(json.dumps(run, sort_keys=True) + "\n")


def compare(path: Path, kind: str, ratios: Mapping[str, float]) -> list[Change]:
    """Every ratio that has been measured before. Call it before `append`."""
    here = machine()
    runs = [
        run["ratios"] for run in _runs(path) if (run["kind"], run["machine"]) == (kind, here) and quiet(run["others"])
    ]
    found = []
    for name, now in ratios.items():
        if before := [run[name] for run in runs if name in run][-LAST:]:
            found.append(Change(name, now, median(before), len(before)))
    return found


def quiet(others: float) -> bool:
    """Whether ratios can be trusted: two threads have no core each while somebody else uses one."""
    return others <= BUSY_CORES


def machine() -> str:
    """Processor and cores: what ratios may depend on."""
    return f"{cpu_fields().get('model name') or platform.machine()}, {threads()} cores"


def _runs(path: Path) -> Iterator[dict[str, Any]]:
    """Entries, oldest first. A line that is none, such as one that a killed run left half written, is passed over."""
    if not path.exists():
        return
    for line in path.read_text().splitlines():
        try:
            run = json.loads(line)
        except ValueError:
            continue
        if isinstance(run, dict) and all(isinstance(run.get(name), kind) for name, kind in FIELDS.items()):
            yield run

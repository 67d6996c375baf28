"""A history of ratios: one JSON line per run, and what changed since the last ones.

Only ratios of one run are kept, and larger is better: absolute figures depend on the machine and on the hour. The file
is named by an option, else by STEPFORGE_BENCH_HISTORY, else it is build/benchmarks/history.jsonl.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

VARIABLE = "STEPFORGE_BENCH_HISTORY"
DEFAULT = Path(__file__).resolve().parents[1] / "build" / "benchmarks" / "history.jsonl"
LAST = 5  # entries whose median a run is compared with
TOLERANCE = 0.10


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
        return f"{self.name}: {self.now:.3f}, {self.now / self.before - 1:+.0%} of {self.before:.3f} ({self.entries} runs)"


def path_of(option: Path | None) -> Path:
    """The file of the history."""
    return option or Path(os.environ.get(VARIABLE) or DEFAULT)


def append(path: Path, kind: str, ratios: Mapping[str, float], **about: Any) -> None:
    """Add a run. kind: of benchmark; only runs of one kind are compared. about: what else may explain a change."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps({"kind": kind, "ratios": dict(ratios), **about}, sort_keys=True) + "\n")


def compare(path: Path, kind: str, ratios: Mapping[str, float]) -> list[Change]:
    """Every ratio that has been measured before. Call it before `append`."""
    runs = [run["ratios"] for run in _runs(path) if run.get("kind") == kind]
    found = []
    for name, now in ratios.items():
        if before := [run[name] for run in runs if name in run][-LAST:]:
            found.append(Change(name, now, median(before), len(before)))
    return found


def _runs(path: Path) -> Iterator[dict[str, Any]]:
    """Entries, oldest first. A line that a killed run left half written is passed over."""
    if not path.exists():
        return
    for line in path.read_text().splitlines():
        try:
            run = json.loads(line)
        except ValueError:
            continue
        if isinstance(run, dict) and isinstance(run.get("ratios"), dict):
            yield run

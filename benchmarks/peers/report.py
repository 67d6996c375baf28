"""What was found: figures as JSON, and a table for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from .figures import MEANING, UNITS, Figure
from .models import BEST, SHARE, Model, Required
from .rounds import Samples
from .sides import Side, Worker

IDLE_CORES = 0.02  # more than this of a core, and sides that should sleep disturb the one that works
OTHER_CORES = 0.1


@dataclass(frozen=True)
class Verdict:
    """A requirement and what was found: value is None if the sides it needs were not measured."""

    required: Required
    value: float | None

    @property
    def passed(self) -> bool | None:
        """Whether it holds, None if that was not measured."""
        return None if self.value is None else self.value >= self.required.least


def verdicts(model: Model, found: Samples, ours: str) -> list[Verdict]:
    """The requirements of a model."""
    return [Verdict(required, _value(required, found, ours)) for required in model.required]


def _value(required: Required, found: Samples, ours: str) -> float | None:
    if required.of == SHARE:
        return found.share(ours)
    if required.of != BEST:
        return found.ratio(required.figure, ours, required.of)
    peers = [name for name in found.values.get(required.figure, {}) if name != ours]
    ratios = [ratio for name in peers if (ratio := found.ratio(required.figure, ours, name)) is not None]
    return min(ratios, default=None)


def as_json(model: Model, sides: list[Side], found: Samples) -> dict[str, Any]:
    """Everything, for machines. ratios: how many times as fast we are, medians over rounds."""
    ours = sides[0].name
    return {
        "model": model.name,
        "sides": {side.name: side.about | _memory(side) for side in sides},
        "rounds": {str(figure): values for figure, values in found.values.items()},
        "bandwidth": found.bandwidth,
        "step_bytes": found.step_bytes,
        "read_bytes": found.read_bytes,
        "read_share": found.read_share(ours),
        "shares": {side.name: found.share(side.name) for side in sides},
        "ratios": ratios(found, ours),
        "awake": found.awake,
        "usage": {name: _largest(found, name) for name in found.usage},
        "required": [
            {
                "figure": str(verdict.required.figure),
                "of": verdict.required.of,
                "least": verdict.required.least,
                "value": verdict.value,
                "passed": verdict.passed,
            }
            for verdict in verdicts(model, found, ours)
        ],
    }


def ratios(found: Samples, ours: str) -> dict[str, float]:
    """How many times as fast we are, by `figure/peer`."""
    return {
        f"{figure}/{name}": ratio
        for figure, values in found.values.items()
        for name in values
        if name != ours and (ratio := found.ratio(figure, ours, name)) is not None
    }


def show(out: Console, model: Model, sides: list[Side], found: Samples) -> None:
    """The table of a model, what was required of it, and whether the machine was quiet."""
    ours, figures = sides[0].name, list(found.values)
    bandwidth = f", {sum(found.bandwidth) / len(found.bandwidth) / 1e9:.1f} GB/s read beside" if found.bandwidth else ""
    table = Table(title=f"{model.name}{bandwidth}", title_justify="left")
    table.add_column("")
    for name in ("share", *(f"{figure}, {UNITS[figure]}" for figure in figures), "load, s", "peak, MiB"):
        table.add_column(name, justify="right")
    for side in sides:
        table.add_row(side.name, *_cells(side, ours, figures, found))
    out.print(table)
    if (read := found.read_share(ours)) is not None:
        sizes = f"{found.read_bytes / 1e6:.0f} of {found.step_bytes / 1e6:.0f} MB"
        out.print(f"  we read {sizes} of a step: {read:.2f} of the bandwidth", markup=False, highlight=False)
    for verdict in verdicts(model, found, ours):
        out.print(_line(verdict), markup=False, highlight=False)
    for line in _disturbances(found):
        out.print(line, style="yellow", markup=False, highlight=False)


def legend(figures: list[Figure]) -> str:
    """What the columns are."""
    return "; ".join(f"{figure}: {MEANING[figure]}" for figure in figures)


def _cells(side: Side, ours: str, figures: list[Figure], found: Samples) -> list[str]:
    share = found.share(side.name)
    cells = ["" if share is None else f"{share:.2f}"]
    for figure in figures:
        value, ratio = found.median(figure, side.name), found.ratio(figure, ours, side.name)
        text = "" if value is None else f"{value:.1f}"
        cells.append(text if side.name == ours or ratio is None else f"{text}  ({ratio:.2f}x)")
    load, memory = side.about.get("load"), _memory(side).get("peak_bytes")
    return [*cells, "" if load is None else f"{load:.1f}", "" if memory is None else f"{memory / 2**20:.0f}"]


def _memory(side: Side) -> dict[str, int]:
    return {"peak_bytes": side.peak_bytes()} if isinstance(side, Worker) else {}


def _line(verdict: Verdict) -> str:
    required = verdict.required
    what = "share of the bandwidth" if required.of == SHARE else f"{required.figure} against {required.of}"
    unit = "" if required.of == SHARE else "x"
    if verdict.value is None:
        return f"  ?    {what}: not measured (asked: {required.least:g}{unit})"
    mark = "ok  " if verdict.passed else "MISS"
    return f"  {mark} {what}: {verdict.value:.2f}{unit} (asked: at least {required.least:g}{unit})"


def _largest(found: Samples, name: str) -> dict[str, float]:
    usages = found.usage[name]
    return {"idle": max(usage.idle for usage in usages), "others": max(usage.others for usage in usages)}


def _disturbances(found: Samples) -> list[str]:
    lines = []
    if found.awake:
        spun = f"used up to {max(found.awake):.2f} of a core"
        lines.append(f"  {len(found.awake)} measurements began while sides that should sleep {spun}")
    for name in found.usage:
        largest = _largest(found, name)
        if largest["idle"] > IDLE_CORES:
            lines.append(f"  while {name} worked, sides that had nothing to do used {largest['idle']:.2f} of a core")
        if largest["others"] > OTHER_CORES:
            lines.append(f"  while {name} worked, the rest of the machine used {largest['others']:.2f} of a core")
    return lines

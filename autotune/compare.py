"""What differs between two sets of results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from codegen.tunables import plain
from codegen.tuned import Identity, Result, current


def differences(one: list[Result], other: list[Result]) -> list[dict[str, Any]]:
    """A row for everything that either set has a result for: the values and ratios of both, None where one has none."""
    sides = [_of_today(one), _of_today(other)]
    every = sorted(sides[0] | sides[1], key=lambda about: (about.target, about.kernel, about.device, about.digest))
    return [_row(about, *(side.get(about) for side in sides)) for about in every]


def _of_today(results: Iterable[Result]) -> dict[Identity, Result]:
    """Results by what they are for, whatever the toolchain: that of today where there are several, else the last."""
    results = list(results)
    today = current(results)
    return {replace(r.identity, toolchain=""): r for r in sorted(results, key=lambda r: r.identity in today)}


def _row(about: Identity, one: Result | None, other: Result | None) -> dict[str, Any]:
    row: dict[str, Any] = {"kernel": about.kernel, "target": about.target, "numerics": about.numerics}
    row |= {"device": about.device, "workload": dict(about.workload)}
    for side, result in (("one", one), ("other", other)):
        row[side] = None if result is None else {name: plain(value) for name, value in result.values.items()}
        row[f"ratio_{side}"] = None if result is None else round(result.ratio, 4)
    return row

"""`python -m tests.faults`: every planted fault, the test that finds it, and whether comparing answers would have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from tests.cpu.engine import test_packing
from tests.cpu.verify.mutants import MUTANTS
from tests.sampling import test_faults as sampling
from tests.state.faults import FAULTS
from tests.unit.test_plan_rules import BROKEN


class Row(NamedTuple):
    """A fault. in_text: whether answers differ from cold ones, so that a comparison of outputs would see it; None: it
    is refused before there is an answer.
    """

    where: str
    fault: str
    test: str
    in_text: bool | None


def rows() -> Iterator[Row]:
    """All that are planted anywhere. The tests hold `in_text` true to what they see."""
    for name in BROKEN:
        yield Row("lowering", name, f"tests/unit/test_plan_rules.py[{name}]", None)
    for mutant in MUTANTS:
        words = (mutant.plant.__doc__ or mutant.name).strip().rstrip(".")
        where = "templates" if "edit" in mutant.plant.__code__.co_names else "runtime"
        yield Row(where, words, f"tests/cpu/verify/test_mutants.py[{mutant.name}]", mutant.in_text)
    for fault in FAULTS:
        where = "templates" if fault.package is not None else "runtime"
        yield Row(where, fault.name, f"tests/state/test_faults.py[{fault.name}]", fault.in_text)
    for name in test_packing.FAULTS:
        yield Row("templates", name, f"tests/cpu/engine/test_packing.py[{name}]", name not in test_packing.OUT_OF_SIGHT)
    for name, change in sampling.IN_KERNELS.items():
        yield Row("sampling", name, f"tests/sampling/test_faults.py[{name}]", change.found_by == "cold")
    for plant in sampling.ON_THE_HOST:
        words = (plant.__doc__ or "").strip().rstrip(".")
        yield Row("sampling", words, f"tests/sampling/test_faults.py[{plant.__name__}]", True)


def main(as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False) -> None:
    """List the planted faults."""
    found = list(rows())
    if as_json:
        print(json.dumps([row._asdict() for row in found], indent=1))
        return
    table = Table(
        "in", "fault", "found by", "comparing answers", title=f"{len(found)} planted faults", title_justify="left"
    )
    for row in found:
        seen = {True: "finds it", False: "misses it", None: "never gets so far"}
        table.add_row(row.where, row.fault, row.test, seen[row.in_text])
    Console(emoji=False).print(table)
    missed = sum(row.in_text is False for row in found)
    Console(emoji=False).print(f"{missed} of them no comparison of answers would ever have found.")


if __name__ == "__main__":
    typer.run(main)

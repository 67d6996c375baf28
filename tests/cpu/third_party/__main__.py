"""`python -m tests.cpu.third_party`: every check of an unmodified third-party kernel, as a table or as JSON."""

from __future__ import annotations

import json
import time
from typing import Annotated

import torch
import triton
import typer
from rich.console import Console
from rich.table import Table

from tests.cpu.third_party.check import DIRECTIONS, LIBRARIES, Case, cases, missing, run, shapes, version

COLUMNS = ("kernel", "direction", "library", "shapes", "dtype", "error", "tolerance", "result", "seconds")


def _row(case: Case, direction: str) -> dict:
    start = time.perf_counter()
    outcome = run(case, direction)
    return {
        "kernel": case.name,
        "direction": direction,
        "library": f"{case.library} {version(case.library)}",
        "shapes": shapes(case),
        "dtype": str(case.dtype).removeprefix("torch."),
        "error": outcome.error,
        "tolerance": outcome.tolerance,
        "kernels": outcome.kernels,
        "result": outcome.reason or "pass",
        "seconds": round(time.perf_counter() - start, 1),
    }


def _table(rows: list[dict]) -> Table:
    table = Table(*(column for column in COLUMNS if column != "shapes"), title=f"triton {triton.__version__}")
    for row in rows:
        table.add_row(*(f"{v:.1e}" if isinstance(v, float) and k != "seconds" else str(v)
                        for k, v in row.items() if k in COLUMNS and k != "shapes"))  # fmt: skip
    return table


def main(
    only: Annotated[str, typer.Argument(help="Part of a kernel's name.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check third-party kernels on the CPU backend. Exit status 1 if one fails or a library is absent."""
    console = Console(stderr=True, emoji=False)
    absent = {library: reason for library in LIBRARIES if (reason := missing(library))}
    rows = []
    for case in cases():
        if only in case.name:
            for direction in DIRECTIONS[: 1 + case.backward]:
                rows.append(_row(case, direction))
                console.print(rows[-1]["kernel"], direction, rows[-1]["result"], rows[-1]["error"], highlight=False)
    passed = sum(row["result"] == "pass" for row in rows)
    if as_json:
        versions = {"triton": triton.__version__, "torch": torch.__version__}
        print(json.dumps({"versions": versions, "absent": absent, "passed": passed, "of": len(rows), "checks": rows}))
    else:
        Console(width=170, emoji=False).print(_table(rows), f"{passed} of {len(rows)} pass", *absent.values(), sep="\n")
    raise typer.Exit(passed < len(rows) or bool(absent))


typer.run(main)

"""`python -m tests.cpu.fuzz`: random Triton programs on the CPU backend against a numpy oracle with error bounds."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tests.cpu.fuzz.campaign import Tally, campaign, report

#: Programs that are shrunk when many differ: one fault tends to show in many.
SHRUNK = 5


def main(
    programs: Annotated[int, typer.Option(min=1, help="Programs to draw, compile and compare.")] = 300,
    seed: Annotated[int, typer.Option(help="Same seed, same programs and data.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    only: Annotated[int, typer.Option(help="Run this program alone, and shrink it if it differs.")] = -1,
    out: Annotated[Path, typer.Option(help="Where scripts that show differences are written.")] = Path(
        "build/cpu-fuzz"
    ),
    interpreter: Annotated[
        bool, typer.Option(help="Check Triton's interpreter instead, on programs it is known to get right.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Every element must lie within its bound. Exit status 1 on a difference, with a minimal script under OUT."""
    console, start = Console(stderr=True, emoji=False), time.perf_counter()
    reported: list[int] = []

    def progress(tally: Tally, seconds: float) -> None:
        for index, message in tally.differences[len(reported) :]:
            reported.append(index)
            console.print(f"program {index}: {message}", highlight=False)
        done = tally.programs + tally.skipped.total()
        line = f"{done}/{programs} programs, {len(tally.differences)} differ, {seconds:.0f} s"
        console.print(line, highlight=False, end="\r" if console.is_terminal else "\n")

    if only >= 0:
        path, outcome = report(seed, only, out)
        print("no difference" if outcome.ok else f"{path}: {outcome.message}")
        sys.exit(not outcome.ok)
    tally = campaign(seed, programs, jobs, progress, interpreter)
    result = summary(tally, seed, time.perf_counter() - start)
    for index, _ in [] if interpreter else tally.differences[:SHRUNK]:
        console.print(f"shrinking program {index} ...", highlight=False)
        path, outcome = report(seed, index, out)
        result["repros"].append({"program": index, "script": str(path), "message": outcome.message})
    print(json.dumps(result)) if as_json else show(result)
    sys.exit(bool(tally.differences))


def summary(tally: Tally, seed: int, seconds: float) -> dict:
    return {
        "seed": seed,
        "programs": tally.programs,
        "skipped": dict(tally.skipped.most_common()),
        "kinds": dict(tally.kinds.most_common()),
        "operations": dict(sorted(tally.ops.items(), key=lambda item: (-item[1], item[0]))),
        "programs_with_type": dict(tally.dtypes.most_common()),
        "elements_compared": tally.compared,
        "of_these_bit_for_bit": tally.exact,
        "elements_without_claim": tally.unknown,
        "worst_share_of_bound": tally.worst,
        "worst_in_program": tally.worst_at,
        "compile_seconds": round(tally.compile_seconds, 1),
        "seconds": round(seconds, 1),
        "differences": [{"program": index, "message": message} for index, message in tally.differences],
        "repros": [],
    }


def show(result: dict) -> None:
    table = Table("", "", show_header=False, title=f"seed {result['seed']}")
    for name, value in result.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {count}" for key, count in value.items())
        elif name in ("differences", "repros"):
            value = "\n".join(" ".join(map(str, entry.values())) for entry in value) or "none"
        table.add_row(name.replace("_", " "), f"{value:.3f}" if isinstance(value, float) else str(value))
    Console(width=120, emoji=False).print(table)


if __name__ == "__main__":  # worker processes import this module
    typer.run(main)

"""`python -m tests.hostile`: mutated specs, weights, packages, checkpoints, tuned results; what becomes of them."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from tests.hostile.fuzz import Tally, fuzz

SHOWN = 20


def main(
    mutations: Annotated[int, typer.Option(min=1, help="Inputs to draw.")] = 20000,
    seed: Annotated[int, typer.Option(help="Seed of all inputs.")] = 0,
    keep: Annotated[Path, typer.Option(help="Where inputs that make a finding are kept.")] = Path("build/hostile"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Feed mutated input to everything that reads what others wrote.

    Each must be accepted or get an error of the catalogue, in time, leaving nothing behind. Exit code 1 with findings.
    """
    start = perf_counter()
    with (
        tempfile.TemporaryDirectory() as folder,
        Progress(console=Console(stderr=True, emoji=False), transient=True) as bar,
    ):
        task = bar.add_task("feeding", total=mutations)
        tally = fuzz(Path(folder), mutations, seed, lambda done: bar.update(task, completed=done))
    for finding in tally.findings:
        keep.mkdir(parents=True, exist_ok=True)
        (keep / f"{finding.surface}-{finding.input[0]}-{finding.input[1]}").write_bytes(finding.data)
    result = summary(tally) | {"seconds": round(perf_counter() - start, 1)}
    if as_json:
        print(json.dumps(result))
    else:
        show(result)
    raise typer.Exit(1 if tally.findings else 0)


def summary(tally: Tally) -> dict[str, object]:
    """The run as plain data."""
    return {
        "inputs": dict(tally.inputs),
        "codes": {
            surface: {code: n for (s, code), n in tally.codes.most_common() if s == surface} for surface in tally.inputs
        },
        "slowest_s": round(tally.slowest, 3),
        "findings": [
            {"surface": finding.surface, "input": finding.input, "what": finding.what}
            for finding in tally.findings[:SHOWN]
        ],
        "num_findings": len(tally.findings),
    }


def show(result: dict[str, object]) -> None:
    """As lines."""
    inputs, codes, findings = result["inputs"], result["codes"], result["findings"]
    assert isinstance(inputs, dict) and isinstance(codes, dict) and isinstance(findings, list)
    for surface, count in inputs.items():
        print(f"{surface}: {count} inputs")
        for code, number in codes[surface].items():
            print(f"  {number:7d} {code}")
    for finding in findings:
        print(f"FINDING {finding['surface']} {finding['input']}\n{finding['what']}")
    print(f"{result['num_findings']} findings, slowest input {result['slowest_s']} s, {result['seconds']} s in all")


if __name__ == "__main__":
    typer.run(main)

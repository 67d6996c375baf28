"""`python -m tests.fuzz`: the engine against the protocol simulator and against cold runs, over drawn specs."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from tests.fuzz.corpus import subjects
from tests.fuzz.trace import Fuzz


def main(
    specs: Annotated[int, typer.Option(min=1, help="Specs to draw and compile.")] = 8,
    traces: Annotated[int, typer.Option(min=1, help="Traces per spec.")] = 300,
    seed: Annotated[int, typer.Option(help="Seed of specs and traces.")] = 0,
    folder: Annotated[Path, typer.Option(help="Where compiled packages are kept between runs.")] = Path("build/fuzz"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Fuzz the engine: every request must equal its cold run, every step the simulator, to the bit.

    A difference raises AssertionError with the package, the prompt and both answers.
    """
    console = Console(stderr=True, emoji=False)
    start, total, accepted = perf_counter(), Counter[str](), Counter[int]()
    for number, subject in enumerate(subjects(specs, seed, folder)):
        fuzz = Fuzz(subject, seed + number)
        label = f"spec {number + 1}/{specs} {'+'.join(subject.spec.pattern)} K<={fuzz.limits.max_drafts}"
        for _ in track(range(traces), label, console=console):
            fuzz.trace()
        tally = asdict(fuzz.tally)
        accepted.update(tally.pop("accepted"))
        total.update(tally)
    result = {
        "specs": specs,
        **total,
        "accepted_per_step": dict(sorted(accepted.items())),
        "seconds": perf_counter() - start,
    }
    print(json.dumps(result) if as_json else "\n".join(f"{name}: {value}" for name, value in result.items()))


typer.run(main)

"""`python -m tests.cpu.tiers.kill`: writers of a shared checkpoint directory, killed at random moments."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from tests.cpu.tiers.crash import run


def main(
    kills: Annotated[int, typer.Option(min=1, help="Writers to kill.")] = 50,
    seed: Annotated[int, typer.Option(help="Seed of texts, operations and delays.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Kill writers beside two processes that live on; whatever is found afterwards must be exact, to the bit."""
    with tempfile.TemporaryDirectory() as folder:
        result = run(Path(folder), kills, seed)
    print(json.dumps(result) if as_json else "\n".join(f"{name}: {value}" for name, value in result.items()))


if __name__ == "__main__":
    typer.run(main)

"""`python -m tests.state`: random operations on one engine, everything checked after each of them."""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from tests.state.driver import Driver, Failure, from_json
from tests.state.subject import toy
from tests.state.tally import Tally
from tests.state.workers import Portion, portions


def main(
    runs: Annotated[int, typer.Option(min=1, help="Runs; each has an engine of its own.")] = 2000,
    operations: Annotated[int, typer.Option(min=1, help="Operations of a run, before its end.")] = 50,
    seed: Annotated[int, typer.Option(help="Seed of the first run; the others follow.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
    tuned: Annotated[
        int | None,
        typer.Option(help="Seed of tunables drawn for its kernels; cold answers stay those of the defaults."),
    ] = None,
    shrink: Annotated[bool, typer.Option(help="Make a run that differs small.")] = True,
    replay: Annotated[Path | None, typer.Option(help="Run what a failure printed, from a file, instead.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare the engine with cold answers, an account of its memory, and the protocol simulator, to the bit.

    Exit code 1 if something differs: then the seed, the operations and the difference are printed.
    """
    if replay is not None:
        _replay(replay, tuned)
        return
    begun, total, failed = perf_counter(), Tally(), None
    with Progress(console=Console(stderr=True, emoji=False)) as progress:
        bar = progress.add_task("runs", total=runs)
        for portion in portions(runs, operations, seed, jobs, tuned):
            total.add(portion.tally)
            progress.update(bar, completed=total.runs)
            if portion.failed is not None:
                failed = portion
                break
    result = {**total.as_dict(), "seed": seed, "failed": failed and failed.failed, "seconds": perf_counter() - begun}
    print(json.dumps(result) if as_json else "\n".join(f"{name}: {value}" for name, value in result.items()))
    if failed is not None:
        _explain(failed, operations, tuned, shrink)
        sys.exit(1)


def _explain(failed: Portion, operations: int, tuned: int | None, shrink: bool) -> None:
    """The difference, as small as it gets."""
    driver = Driver(toy(tuned))
    failure = driver.run(failed.failed, operations)
    if failure is None:
        print(f"seed {failed.failed} differs after the runs before it, not alone:\n{failed.text}", file=sys.stderr)
        return
    _print(driver.shrink(failure) if shrink else failure)


def _print(failure: Failure) -> None:
    print(f"seed {failure.seed} differs:\n{failure.setup}", file=sys.stderr)
    for name, arguments in failure.story:
        print(f"  {name} {arguments}", file=sys.stderr)
    traceback.print_exception(failure.error)
    print(f"replay with --replay FILE, the file being:\n{failure.as_json()}", file=sys.stderr)


def _replay(path: Path, tuned: int | None) -> None:
    setup, story = from_json(path.read_text())
    error = Driver(toy(tuned)).replay(setup, story)
    if error is not None:
        traceback.print_exception(error)
        sys.exit(1)
    print("nothing differs")


if __name__ == "__main__":
    typer.run(main)

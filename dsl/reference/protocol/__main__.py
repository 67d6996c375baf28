"""`python -m dsl.reference.protocol fuzz`: many traces of the protocol against the sequential truth."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict

from rich.console import Console
from rich.progress import track

from dsl.reference.protocol.fuzz import DivergenceError, Stats, run_trace
from dsl.reference.protocol.pages import ProtocolError


def fuzz(traces: int, seed: int, console: Console) -> Stats:
    """Run traces seed .. seed + traces - 1. Raises at the first that fails, with its seed."""
    total = Stats()
    for number in track(range(seed, seed + traces), "traces", console=console, disable=not console.is_terminal):
        try:
            total.add(run_trace(number))
        except (DivergenceError, ProtocolError, IndexError) as error:
            raise DivergenceError(f"trace {number} (rerun: fuzz --traces 1 --seed {number}): {error}") from error
    return total


def main(argv: list[str] | None = None) -> int:
    """Command line. Returns the exit status: 0 if machine and truth agreed everywhere."""
    parser = argparse.ArgumentParser(prog="python -m dsl.reference.protocol", description=__doc__)
    command = parser.add_subparsers(required=True).add_parser("fuzz", help="run random traces")
    command.add_argument("--traces", type=int, default=1000, help="number of traces (default 1000)")
    command.add_argument("--seed", type=int, default=0, help="seed of the first trace (default 0)")
    command.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    options = parser.parse_args(argv)
    start = time.perf_counter()
    try:
        stats = fuzz(options.traces, options.seed, Console(stderr=True, emoji=False))
    except DivergenceError as error:
        print(f"FAILED {error}", file=sys.stderr)
        return 1
    seconds = round(time.perf_counter() - start, 2)
    figures = {"seed": options.seed, **asdict(stats), "seconds": seconds}
    if options.json:
        print(json.dumps(figures))
    else:
        print("\n".join(f"{name:12} {value:,}" for name, value in figures.items()))
        print("machine and sequential truth agree everywhere")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Measure what is asked of the CPU backend's speed; exit code 1 if a requirement is missed.

    python -m benchmarks.cpu_backend [--json] [--quick] [--only NAME]

Two threads. Every kernel is launched as a user would (`kernel[grid](...)`), takes turns with what it is compared to,
and is checked first.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from itertools import chain

import torch

from runtime.cpu import set_num_threads

from . import attention, gemv, matmul, neighbour, replay, rows, ssm
from .measure import QUICK_ROUNDS, ROUNDS, Contest, Figure
from .rival import rival, serve

THREADS = 2
CONTESTS: dict[str, Callable[[], Iterator[Contest]]] = {
    "rms_norm": rows.norm_contests,
    "softmax": rows.softmax_contests,
    "ssm": ssm.contests,
    "attention": attention.contests,
    "matmul": matmul.contests,
}
NAMES = ("gemv", *CONTESTS, "replay", "neighbour")


def figures(name: str, quick: bool) -> Iterator[Figure]:
    """What is measured under one name."""
    rounds = QUICK_ROUNDS if quick else ROUNDS
    if name == "replay":
        yield replay.measure(rounds)
    elif name == "neighbour":
        yield from neighbour.measure(quick)
    elif name == "gemv":
        for contest, read in gemv.contests():
            yield contest.measure(rounds, read)
    else:
        with rival(name) as process:
            for number, contest in enumerate(CONTESTS[name]()):
                yield contest.measure(rounds, lambda repeats, number=number: process.burst(number, repeats))


def show(figure: Figure) -> None:
    """One line of the table."""
    comparison = ">=" if figure.unit == "x" else "<="
    detail = "  ".join(f"{key} {value:.1f}" for key, value in figure.detail.items())
    asked = f"{figure.value:8.2f} {figure.unit:2} ({comparison} {figure.required:g})"
    print(f"{'ok  ' if figure.passed else 'MISS'} {figure.name:22} {figure.size:38} {asked:24} {detail}", flush=True)


def main() -> int:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON list instead of the table")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--only", choices=NAMES, action="append", help="this part alone; may be repeated")
    parser.add_argument("--rival", choices=CONTESTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    if options.rival:
        serve(CONTESTS[options.rival], sys.stdin, sys.stdout)
        return 0
    set_num_threads(THREADS)
    found = []
    for figure in chain.from_iterable(figures(name, options.quick) for name in options.only or NAMES):
        found.append(figure)
        if not options.json:
            show(figure)
    if options.json:
        print(json.dumps([figure.as_json() for figure in found], indent=1))
    return 0 if all(figure.passed for figure in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())

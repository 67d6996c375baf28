"""Measure what is asked of drafts, and of a machine whose other core somebody else uses.

    python -m benchmarks.scenarios [drafts] [busy-core] [--rounds N] [--threads N] [--json]

Exit code 1 if a promise does not hold.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console

from benchmarks import prepared
from benchmarks.options import positive
from runtime.errors import RuntimeStateError

from . import busy_core, drafts
from .steps import Promise

Scenario = Callable[[int, int, dict[str, Any]], Iterator[Promise]]
SCENARIOS: dict[str, tuple[Scenario, int]] = {"drafts": (drafts.measure, 7), "busy-core": (busy_core.measure, 1)}
out, notes = Console(emoji=False, width=120), Console(stderr=True, emoji=False)


def main() -> int:
    """Parse, measure, print."""
    options = _parser().parse_args()
    found = {}
    for name in options.scenario or SCENARIOS:
        measure, rounds = SCENARIOS[name]
        details: dict[str, Any] = {}
        promises = []
        try:
            for promise in measure(options.rounds or rounds, options.threads, details):
                promises.append(promise)
                _show(promise, options.json)
        except (prepared.NotPrepared, drafts.DraftsNotPerfect, RuntimeStateError) as error:
            notes.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
            return 2
        found[name] = {"promises": [promise.as_json() for promise in promises], "details": details}
        if not options.json:
            out.print_json(json.dumps(details))
    if options.json:
        print(json.dumps(found, indent=1))
    return 0 if all(promise["holds"] for part in found.values() for promise in part["promises"]) else 1


def _show(promise: Promise, as_json: bool) -> None:
    mark, bound = "ok  " if promise.holds else "MISS", "at least" if promise.at_least else "at most"
    if not as_json:
        line = f"{mark} {promise.name}: {promise.value:.2f}x (asked: {bound} {promise.bound:g}x)"
        out.print(line, markup=False, highlight=False)


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("benchmarks.scenarios", None, __doc__)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.add_argument("scenario", nargs="*", choices=[*SCENARIOS, []], help="these alone; default all")
    made.add_argument("--rounds", type=positive, help="default: 7 of drafts, 1 of busy-core")
    made.add_argument("--threads", type=positive, default=2, help="of the engine; default 2")
    made.add_argument("--json", action="store_true", help="print one JSON object instead")
    return made


if __name__ == "__main__":
    raise SystemExit(main())

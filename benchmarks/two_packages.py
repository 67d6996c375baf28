"""Decode steps of two packages of one model, in turns in one process: only their ratio counts.

    python -m codegen build specs/mamba2-130m.yaml -o build/untuned --untuned
    python -m codegen build specs/mamba2-130m.yaml -o build/tuned
    python -m benchmarks.two_packages build/untuned build/tuned [--rounds 80]

One request each, no drafts, the same seeded random weights. A round is a burst of steps of one and of the other, their
order changing from round to round. Says too whether both gave the same tokens; exit code 1 if not.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

from benchmarks.options import positive
from runtime.engine import Engine
from runtime.errors import RuntimeStateError
from runtime.package import open_package
from runtime.random_weights import random_weights

PROMPT, WARM_UP, BURST = 64, 5, 6


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("one", type=Path)
    parser.add_argument("other", type=Path)
    parser.add_argument("--rounds", type=positive, default=80)
    options = parser.parse_args()
    try:
        packages = [open_package(path) for path in (options.one, options.other)]
    except RuntimeStateError as error:
        parser.error(str(error))
    if longest(options.rounds) + PROMPT > packages[0].plan.limits.max_context:
        parser.error(f"--rounds {options.rounds}: {longest(options.rounds)} tokens do not fit max_context")
    weights = random_weights(packages[0].plan)
    engines = [Engine(package, weights, drafts=0, checkpoints=False) for package in packages]
    requests = [started(engine, options.rounds) for engine in engines]
    pairs = []
    for index in range(options.rounds):
        order = (0, 1) if index % 2 == 0 else (1, 0)
        seconds = {side: burst(engines[side]) for side in order}
        pairs.append((seconds[0], seconds[1]))
    low, middle, high = statistics.quantiles((other / one for one, other in pairs), n=4)
    one, other = (1e3 * statistics.median(side) for side in zip(*pairs, strict=True))
    same = requests[0].output == requests[1].output
    print(f"{options.one}: {one:.2f} ms, {options.other}: {other:.2f} ms a step; ratio {middle:.3f}", end=" ")
    print(f"(quartiles {low:.3f} and {high:.3f} of {options.rounds} rounds); {'same' if same else 'OTHER'} tokens")
    return 0 if same else 1


def longest(rounds: int) -> int:
    """Tokens that a request may need."""
    return rounds * BURST + 2 * WARM_UP


def started(engine: Engine, rounds: int):
    """A request that decodes for all rounds."""
    request = engine.submit(list(range(1, PROMPT + 1)), max_new_tokens=longest(rounds), stop_at_eos=False)
    while not request.output:
        engine.step()
    for _ in range(WARM_UP):
        engine.step()
    return request


def burst(engine: Engine) -> float:
    """Seconds of a step."""
    start = time.perf_counter()
    for _ in range(BURST):
        engine.step()
    assert engine.busy, "a step without a request takes no time"
    return (time.perf_counter() - start) / BURST


if __name__ == "__main__":
    raise SystemExit(main())

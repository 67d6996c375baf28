"""Does the search find the best? Two kernels whose candidates can all be timed, and a search with a third of the
trials.

    python benchmarks/autotune_search.py [--spec SPEC] [--kernel NAME ...] [--tunable NAME ...] [--part 0.33] [--json]
    ... --spec specs/mamba2-130m.yaml --kernel matmul_1536x768_residual --tunable BLOCK_N row_tiles

Exhaustive: every candidate is proven and raced against the untuned kernel; the best few are raced again at length. The
search gets a fresh study and `part` of as many trials, and its choice (the untuned values, if nothing wins) is raced
against the untuned kernel like the best few, one after the other. Prints the speed of the choice as a share of the
best: 95 % is asked for.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from autotune.finale import conclude
from autotune.forge import Forge
from autotune.measure import Bench
from autotune.proof import Rejected
from autotune.roofline import machine_here, working_set
from autotune.space import Space, Values, key, space_of
from autotune.study import Search, open_study
from autotune.tune import run_trials
from codegen.lower import lower
from codegen.tuned import KEEP, identity
from dsl import load_spec

ROUNDS, FINALISTS, FINAL_ROUNDS = 4, 5, 15


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spec", type=Path, default=Path("specs/tiny-hybrid.yaml"))
    parser.add_argument("--kernel", nargs="*", default=["attention_4x2x64", "matmul_256x258"])
    parser.add_argument("--tunable", nargs="*", help="only these, where all candidates are too many")
    parser.add_argument("--part", type=float, default=0.33)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [compare(options.spec, name, options.part, options.tunable) for name in options.kernel]
    if options.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print(
            f"{row['kernel']}: {row['candidates']} candidates in {row['exhaustive_seconds']:.0f} s, best "
            f"{row['best']} at {row['best_ratio']:.3f} of the untuned time; search with {row['trials']} trials in "
            f"{row['search_seconds']:.0f} s chose {row['chosen'] or 'the untuned values'} at "
            f"{row['chosen_ratio']:.3f}: {row['share']:.1%} of the best"
        )


def compare(spec_path: Path, name: str, part: float, only: list[str] | None) -> dict[str, Any]:
    """One kernel: exhaustive, then searched."""
    spec = load_spec(spec_path)
    full = lower(spec, "cpu")
    with tempfile.TemporaryDirectory() as folder:
        forge = Forge(spec, "cpu", Path(folder))
        size = working_set(full)
        bench = Bench(forge, name, torch.device("cpu"), working_set=size, numerics=KEEP, measuring=nullcontext())
        space = space_of(forge.untuned, forge.untuned.kernel(name), KEEP)
        space = replace(space, tunables=tuple(t for t in space.tunables if not only or t.name in only))
        start = time.perf_counter()
        ratios = exhaustive(bench, space)
        leaders = sorted(ratios, key=lambda text: ratios[text][0])[:FINALISTS]
        exhausted = time.perf_counter() - start
        start = time.perf_counter()
        search = Search(open_study(folder, "search"), space, space.promising(machine_here(size)))
        run_trials(search, space, bench, most=int(part * len(space)))
        chosen = dict(conclude(search, space, bench, identity(full, full.kernel(name)), {}).values)
        searched, trials = time.perf_counter() - start, len(search.tried())
        finals = {text: raced(bench, ratios[text][1]) for text in leaders} | {key(chosen): raced(bench, chosen)}
    best = min(finals, key=lambda text: finals[text])
    return {
        "kernel": name,
        "candidates": len(space),
        "exhaustive_seconds": exhausted,
        "best": json.loads(best),
        "best_ratio": finals[best],
        "trials": trials,
        "search_seconds": searched,
        "chosen": json.loads(key(chosen)),
        "chosen_ratio": finals[key(chosen)],
        "share": finals[best] / finals[key(chosen)],
    }


def exhaustive(bench: Bench, space: Space) -> dict[str, tuple[float, Values]]:
    """The ratio of every candidate that is right, by its changed values."""
    found = {}
    for values in space:
        changed = space.changed(values)
        try:
            bench.judge.prove(candidate := bench.forge.candidate(bench.kernel, changed))
        except Rejected:
            continue
        *_, timed = bench.contest.race(candidate, ROUNDS)
        found[key(changed)] = (timed.ratio, changed)
    return found


def raced(bench: Bench, values: Values) -> float:
    """The ratio after many rounds."""
    candidate = bench.forge.candidate(bench.kernel, values)
    *_, timed = bench.contest.race(candidate, FINAL_ROUNDS)
    return timed.ratio


if __name__ == "__main__":
    main()

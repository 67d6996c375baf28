"""Scenario startup: fresh processes, from making an engine to the first token, and what they take of memory.

Each process imports torch, the engine and the package, and then measures itself. The first may have to lay the weights
out; the others find what it kept.
"""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from runtime.bench.common import Model, Progress
from runtime.errors import BenchUnavailable
from runtime.host_memory import zeroed
from runtime.package import open_package

SECONDS = 0.6
SHARE, MORE_MIB = 1.25, 100
MIB = 1 << 20
KIB = 1 << 10


@dataclass(frozen=True)
class StartupOptions:
    """rounds: processes after the first; prompt_tokens, new_tokens: of the one request of each."""

    rounds: int = 5
    seed: int = 0
    prompt_tokens: int = 64
    new_tokens: int = 8


def run_startup(model: Model, options: StartupOptions, progress: Progress = print) -> dict[str, Any]:
    """All figures as JSON-ready data; memory in MiB beyond that after the imports. Raises BenchUnavailable."""
    if not isinstance(model.weights, (str, os.PathLike)):
        raise BenchUnavailable(what="a start", detail="the weights are not in a file")
    if options.prompt_tokens + options.new_tokens > model.package.plan.limits.max_context:
        raise BenchUnavailable(what="a start", detail="the context is too short for its prompt")
    found = []
    for number in range(options.rounds + 1):
        progress(f"process {number + 1} of {options.rounds + 1}")
        found.append(_process(model, options))
    first, warm = found[0], found[1:]
    size = os.path.getsize(model.weights) / MIB
    allowed = SHARE * size + MORE_MIB
    seconds = median(row["load_s"] + row["first_token_s"] for row in warm)
    peak = max(row["peak_mib"] for row in found)
    return {
        "scenario": "startup",
        "options": asdict(options),
        "weights_mib": size,
        "allowed_mib": allowed,
        "allowed_s": SECONDS,
        "first": first,
        "warm": {name: median(row[name] for row in warm) for name in first},
        "warm_s": {"median": seconds, "all": [row["load_s"] + row["first_token_s"] for row in warm]},
        "fresh_memory_gb_per_s": _fresh_memory(),
        "checks": {
            f"from load to first token at most {SECONDS} s, warm": seconds <= SECONDS,
            f"steady memory at most weights + 25 % + {MORE_MIB} MiB": max(r["steady_mib"] for r in found) <= allowed,
            f"peak memory at most weights + 25 % + {MORE_MIB} MiB": peak <= allowed,
        },
    }


def _fresh_memory(size: int = 256 * MIB) -> float:
    """GB/s at which memory is written for the first time: in a virtual machine its host may have to find it first."""
    block = zeroed(size, huge=True)
    begun = time.perf_counter()
    block.fill_(1)
    return size / (time.perf_counter() - begun) / 1e9


def _process(model: Model, options: StartupOptions) -> dict[str, float]:
    asked = {
        "package": str(model.package.path),
        "target": model.package.plan.target,
        "weights": os.fspath(model.weights),
        "drafts": model.drafts,
        "threads": model.threads,
        **asdict(options),
    }
    command = [sys.executable, "-m", "runtime.bench.startup", json.dumps(asked)]
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    done = subprocess.run([*_with_path(path), *command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchUnavailable(what="a start", detail=(done.stderr.strip().splitlines() or ["no answer"])[-1])
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _with_path(path: str) -> list[str]:
    """So that the process imports what this one does; its environment is otherwise this one's."""
    return ["env", f"PYTHONPATH={path}"]


def _resident() -> float:
    """MiB of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / MIB


def measure(asked: dict[str, Any]) -> dict[str, float]:
    """One start, in this process."""
    from runtime.engine import Engine

    package = open_package(asked["package"], asked["target"])
    imported = _resident()
    begun = time.perf_counter()
    engine = Engine(package, asked["weights"], drafts=asked["drafts"], threads=asked["threads"])
    loaded = time.perf_counter()
    draw = random.Random(asked["seed"])
    prompt = [draw.randrange(package.plan.limits.vocab_size) for _ in range(asked["prompt_tokens"])]
    submitted = time.perf_counter()
    request = engine.submit(prompt, max_new_tokens=asked["new_tokens"], stop_at_eos=False)
    while not request.output:
        engine.step()
    first = time.perf_counter()
    while engine.busy:
        engine.step()
    steady, peak = _resident(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB / MIB
    engine.close()
    return {
        "load_s": loaded - begun,
        "first_token_s": first - submitted,
        "imported_mib": imported,
        "steady_mib": steady - imported,
        "peak_mib": peak - imported,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(json.loads(sys.argv[1]))) + "\n")

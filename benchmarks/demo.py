"""The demo: build the demo model, generate from a prompt, check the promises, measure speed with and without MTP.

Writes build/demo.json: every check with true or false, and every figure. Speeds are those of the fastest of several
interleaved rounds, by its median step: other work on the machine only adds time. Exit code 1 if a property does not
hold; a missed speed target is reported, and means a busy machine more often than a fault.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
SPEC = "specs/tiny-hybrid.yaml"
PACKAGE = ROOT / "build" / "tiny_hybrid"
WEIGHTS = ROOT / "specs" / "tiny-hybrid" / "weights.safetensors"
REPORT = ROOT / "build" / "demo.json"

PROMPT = "import os\nimport sys\n\n\ndef read_lines(path):\n"
HELD_OUT_PROMPTS, PROMPT_TOKENS, ANSWER_TOKENS = 64, 256, 64
TEMPERATURE = 0.8
FIRST_DRAFT_ACCEPTANCE, TOKENS_PER_STEP = 0.60, 1.8
DRAFT_COUNTS = (0, 1, 2, 3)
ROUNDS, SPEED_TOKENS = 5, 256
BOUND_SHARE, EAGER_RATIO, HOST_US = 0.35, 10.0, 30.0
EAGER_TOKENS = 64

out = Console(emoji=False)


def main() -> int:
    """Run everything; returns the exit code."""
    start = perf_counter()
    build()
    figures: dict[str, Any] = {"build_seconds": perf_counter() - start}
    show_text()
    heading("Checking the promises, bit by bit")
    checks = properties()
    heading(f"Acceptance over {HELD_OUT_PROMPTS} held-out prompts")
    figures["held_out"] = held_out = measure_acceptance()
    checks |= {
        f"first-draft acceptance >= {FIRST_DRAFT_ACCEPTANCE}": held_out["acceptance"][0] >= FIRST_DRAFT_ACCEPTANCE,
        f"tokens per step at K = 3 >= {TOKENS_PER_STEP}": held_out["tokens_per_step"] >= TOKENS_PER_STEP,
    }
    heading(f"Speed, {ROUNDS} rounds of every K")
    figures["speed"] = speed = measure_speed()
    targets = {
        "MTP at the best K is not slower than plain decode": speed["mtp_speedup"] >= 1.0,
        f"plain decode >= {BOUND_SHARE:.0%} of the bandwidth bound": speed["bound_share"] >= BOUND_SHARE,
        f"plain decode >= {EAGER_RATIO:.0f} x the eager reference": speed["eager_ratio"] >= EAGER_RATIO,
        f"host time between replays < {HOST_US:.0f} µs": speed["by_drafts"][0]["host_us"] < HOST_US,
    }
    figures["seconds"] = perf_counter() - start
    REPORT.write_text(json.dumps({"checks": checks | targets, "figures": figures}, indent=1) + "\n")
    show(checks | targets, held_out, speed)
    held = sum(checks.values()) + sum(targets.values())
    out.print(f"{held} of {len(checks | targets)} checks hold; {figures['seconds']:.1f} s; see build/{REPORT.name}")
    return 0 if all(checks.values()) else 1


def heading(text: str) -> None:
    """Say what is going on."""
    out.print(f"\n{text} ...", style="bold")


def build() -> None:
    """Build the package with the public command."""
    command = [sys.executable, "-m", "codegen", "build", SPEC, "-o", str(PACKAGE)]
    out.print(f"$ python -m codegen build {SPEC}", style="bold")
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def show_text() -> None:
    """Stream an answer, as a user would."""
    from runtime.engine import Engine

    out.print("\nThe model goes on from the first lines:", style="bold")
    out.print(PROMPT, end="", markup=False, highlight=False)
    with Engine(PACKAGE, WEIGHTS, drafts=3) as engine:
        for piece in engine.stream(PROMPT, max_new_tokens=240, temperature=0.3, seed=2):
            out.print(piece.text, end="", markup=False, highlight=False, style="cyan")
    out.print()


def properties() -> dict[str, bool]:
    """The promises, checked with == by the same code as `python -m codegen verify`."""
    from codegen.verify import verify_package

    report = verify_package(PACKAGE, WEIGHTS)
    return {check.name: check.passed for check in report.checks}


def held_out_prompts() -> list[list[int]]:
    """Windows of files that the model was not trained on."""
    import torch

    from dsl import load_spec

    sys.path.insert(0, str(ROOT / "specs" / "tiny-hybrid"))
    import corpus

    tokenizer = load_spec(ROOT / SPEC).tokenizer
    stream = corpus.load_corpus(corpus.default_folder(), tokenizer).held_out
    generator = torch.Generator().manual_seed(0)
    bos = tokenizer.special_id("bos")
    windows = corpus.crops(stream, HELD_OUT_PROMPTS, PROMPT_TOKENS, bos, generator)
    return [[int(token) for token in window] for window in windows]


def measure_acceptance() -> dict[str, Any]:
    """Acceptance per draft position and tokens per step over held-out prompts, K = 3, sampled."""
    from runtime.engine import Engine

    with Engine(PACKAGE, WEIGHTS, drafts=3, checkpoints=False) as engine:
        begun = perf_counter()
        for number, prompt in enumerate(held_out_prompts()):
            engine.submit(prompt, max_new_tokens=ANSWER_TOKENS, temperature=TEMPERATURE, seed=number, stop_at_eos=False)
        while engine.busy:
            engine.step()
        stats = engine.stats()
    return {
        "prompts": HELD_OUT_PROMPTS,
        "prompt_tokens": PROMPT_TOKENS,
        "answer_tokens": ANSWER_TOKENS,
        "temperature": TEMPERATURE,
        "acceptance": [accepted / proposed for accepted, proposed in stats.acceptance],
        "tokens_per_step": stats.tokens_per_step,
        "seconds": perf_counter() - begun,
    }


def measure_speed() -> dict[str, Any]:
    """Batch 1: all K, the eager reference and the read bandwidth, interleaved over prompts; medians and ratios."""
    from runtime.bench.common import quiet
    from runtime.engine import Engine

    engines = {drafts: Engine(PACKAGE, WEIGHTS, drafts=drafts, threads=2, checkpoints=False) for drafts in DRAFT_COUNTS}
    rows: dict[int, list[dict[str, float]]] = {drafts: [] for drafts in DRAFT_COUNTS}
    bounds, eager = [], []
    prompts = held_out_prompts()[:ROUNDS]
    for engine in engines.values():
        timed(engine, prompts[0], 16)
    with quiet():
        for prompt in prompts:
            bounds.append(bound_us(engines[0]))
            for drafts, engine in engines.items():
                rows[drafts].append(timed(engine, prompt))
            eager.append(eager_tokens_per_s(prompt))
    fastest = {drafts: min(found, key=lambda row: row["step_us"]) for drafts, found in rows.items()}
    for row in fastest.values():
        row["tokens_per_step"] = median(found["tokens_per_step"] for found in rows[int(row["drafts"])])
        row["tokens_per_s"] = 1e6 * row["tokens_per_step"] / row["step_us"]
    plain, best = fastest[0]["tokens_per_s"], max(DRAFT_COUNTS[1:], key=lambda k: fastest[k]["tokens_per_s"])
    return {
        "by_drafts": fastest,
        "bound_us": min(bounds),
        "bound_share": min(bounds) / fastest[0]["step_us"],
        "eager_tokens_per_s": max(eager),
        "eager_ratio": plain / max(eager),
        "step_cost_of_k3": fastest[3]["step_us"] / fastest[0]["step_us"],
        "best_k": best,
        "mtp_speedup": fastest[best]["tokens_per_s"] / plain,
    }


def bound_us(engine: Any) -> float:
    """Microseconds in which two threads read the bytes of a plain step, at the rate of its working set."""
    from runtime.bandwidth import read_bandwidth
    from runtime.drafter import Drafter
    from runtime.traffic import Shape, step_launches, working_set

    plan, shape = engine.package.plan, Shape(1, 0, 0, PROMPT_TOKENS + SPEED_TOKENS // 2, Drafter.NONE)
    return (
        1e6
        * sum(launch.bytes for launch in step_launches(plan, shape))
        / read_bandwidth(working_set(plan, shape), 2, 0.05)
    )


def eager_tokens_per_s(prompt: list[int]) -> float:
    """The reference with a state cache, token by token in plain PyTorch."""
    import torch
    from safetensors.torch import load_file

    from dsl import load_spec
    from dsl.reference.decode import EagerDecoder

    decoder = EagerDecoder(load_spec(ROOT / SPEC), load_file(WEIGHTS), batch=1, max_context=2 * PROMPT_TOKENS)
    tokens = torch.tensor(prompt[:EAGER_TOKENS])
    with torch.inference_mode():
        decoder.step(tokens[:1])
        begun = perf_counter()
        for token in tokens[1:]:
            decoder.step(token[None])
        return (EAGER_TOKENS - 1) / (perf_counter() - begun)


def timed(engine: Any, prompt: list[int], tokens: int = SPEED_TOKENS) -> dict[str, float]:
    """One answer: tokens per step, median step and host time between replays in microseconds, prefill tokens/s."""
    counters = engine.scheduler.counters
    counters.timeline.clear()
    prefill = counters.prefill_ns
    request = engine.submit(prompt, max_new_tokens=tokens, temperature=TEMPERATURE, seed=1, stop_at_eos=False)
    while not request.finished:
        engine.step()
    return {
        "drafts": engine.scheduler.drafts,
        "tokens_per_step": request.tokens_per_step,
        "step_us": median((gap + replay) / 1e3 for gap, replay in counters.timeline),
        "host_us": median(gap / 1e3 for gap, _ in counters.timeline),
        "prefill_tokens_per_s": len(prompt) / ((counters.prefill_ns - prefill) / 1e9),
    }


def show(checks: dict[str, bool], held_out: dict[str, Any], speed: dict[str, Any]) -> None:
    """Tables of what was found."""
    table = Table(title="decode, batch 1, sampled: fastest round, by its median step", title_justify="left")
    for name in ("K", "tokens/s", "tokens/step", "step µs", "host µs"):
        table.add_column(name, justify="right")
    for drafts, row in speed["by_drafts"].items():
        cells = (
            f"{row['tokens_per_s']:.0f}",
            f"{row['tokens_per_step']:.2f}",
            f"{row['step_us']:.0f}",
            f"{row['host_us']:.1f}",
        )
        table.add_row(str(drafts), *cells)
    out.print(table)
    shares = ", ".join(f"{share:.2f}" for share in held_out["acceptance"])
    out.print(
        f"held-out at {TEMPERATURE}, K = 3: acceptance {shares}; {held_out['tokens_per_step']:.2f} tokens per step"
    )
    out.print(f"a K = 3 step costs {speed['step_cost_of_k3']:.2f} plain steps")
    out.print(
        f"a plain step reaches {speed['bound_share']:.0%} of the read bandwidth bound ({speed['bound_us']:.0f} µs)"
    )
    out.print(
        f"plain decode is {speed['eager_ratio']:.0f} x the eager reference ({speed['eager_tokens_per_s']:.0f} tokens/s)"
    )
    out.print(f"best K = {speed['best_k']}: {speed['mtp_speedup']:.2f} x plain decode")
    for name, passed in checks.items():
        out.print(("[green]ok  [/green]" if passed else "[red]FAIL[/red]") + f"  {name}", highlight=False)


if __name__ == "__main__":
    raise SystemExit(main())

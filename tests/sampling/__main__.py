"""`python -m tests.sampling`: requests with random options against cold ones, and samples against the exact softmax."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from random import Random
from time import perf_counter
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from runtime.engine import Engine
from tests.sampling.asks import draw_ask
from tests.sampling.chi_square import deviation
from tests.sampling.compare import answers, cold_engine, undefined
from tests.sampling.distribution import FILTERS, drawn
from tests.sampling.model import SPEC, TEXT, package, weights

DRAFTS, BATCHES, MOST_DEVIATION = (0, 1, 3, 7), (1, 8), 4.0


def main(
    requests: Annotated[int, typer.Option(min=1, help="Requests with random options.")] = 1000,
    samples: Annotated[
        int, typer.Option(min=500, help="Samples of a token, per filter; rounded up to a multiple of 500.")
    ] = 20_000,
    seed: Annotated[int, typer.Option(help="Seed of the requests.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare answers at every K and batch with cold ones, every token with its definition, and frequencies with the
    exact probabilities after filtering. Exit code 1 if something differs.
    """
    begun = perf_counter()
    with Progress(console=Console(stderr=True, emoji=False)) as progress:
        bar = progress.add_task("cold", total=2 + len(DRAFTS) * len(BATCHES) + len(FILTERS))

        def done(note: str) -> None:
            progress.update(bar, advance=1, description=note)

        result = _answers(requests, seed, done) | _frequencies(samples, done)
    result |= {"seed": seed, "seconds": perf_counter() - begun}
    print(json.dumps(result) if as_json else "\n".join(f"{name}: {value}" for name, value in result.items()))
    odd = result["not_as_defined"] > result["tokens_defined"] // 500
    far = any(row["deviation"] >= MOST_DEVIATION for row in result["frequencies"])
    sys.exit(int(bool(result["different"]) or odd or far))


def _answers(count: int, seed: int, done: Any) -> dict[str, Any]:
    asks = [draw_ask(Random(f"{seed} {number}"), SPEC.vocab_size, TEXT) for number in range(count)]
    cold = answers(cold_engine(package(), weights()), asks, 1)
    done("cold answers")
    compared, different = 0, []
    for drafts in DRAFTS:
        for batch in BATCHES:
            found = answers(Engine(package(), weights(), drafts=drafts), asks, batch, upset=17)
            compared += sum(len(output) for output, _, _ in found)
            wrong = [number for number in range(count) if found[number] != cold[number]]
            different += [f"K={drafts} batch {batch}: request {number}: {asks[number]}" for number in wrong]
            done(f"K={drafts}, batch {batch}")
    tokens, odd = undefined(Engine(package(), weights(), drafts=3), asks)
    done("definition")
    return {
        "requests": count,
        "tokens_compared": compared,
        "different": different,
        "tokens_defined": tokens,
        "not_as_defined": odd,
    }


def _frequencies(samples: int, done: Any) -> dict[str, Any]:
    rows = []
    samples = -(-samples // 500) * 500
    for how in FILTERS:
        found, exact = drawn(how, samples)
        options = {name: value for name, value in asdict(how).items() if name != "seed"}
        kept = int((exact > 0).sum())
        rows.append({"options": options, "samples": samples, "kept": kept, "deviation": deviation(found, exact)})
        done("frequencies")
    return {"frequencies": rows}


if __name__ == "__main__":
    typer.run(main)

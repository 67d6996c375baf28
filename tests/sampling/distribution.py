"""Many samples of one token, and the probabilities that they should have."""

from __future__ import annotations

from dataclasses import replace

import torch

from dsl.reference.sampling import adjust, kept
from runtime.engine import Engine
from tests.sampling.asks import Ask, How
from tests.sampling.compare import Scorer
from tests.sampling.model import TEXT, package, weights

FILTERS = [
    How(temperature=1.0),
    How(temperature=0.7, top_k=5),
    How(temperature=1.3, top_p=0.8),
    How(temperature=1.0, min_p=0.2),
    How(temperature=1.0, top_k=20, top_p=0.9, min_p=0.02, repetition_penalty=1.3, logit_bias=((101, 2.0),)),
]


def drawn(how: How, count: int) -> tuple[list[int], torch.Tensor]:
    """First tokens of a prompt by seed, and the exact probabilities of each token id."""
    engine = Engine(package(), weights(), drafts=0)
    ask = Ask(tuple(TEXT[:24]), 1, how)
    scorer = Scorer(engine)
    first = ask.submit(engine)
    while engine.busy:
        engine.step()
    [(_, _, logits)] = scorer.of(first)
    vars(engine.scheduler).pop("_report")
    samples: list[int] = []
    for start in range(0, count, 500):
        requests = [replace(ask, how=replace(how, seed=seed)).submit(engine) for seed in range(start, start + 500)]
        while engine.busy:
            engine.step()
        samples += [request.output[0] for request in requests]
    return samples, probabilities(ask, logits)


def probabilities(ask: Ask, logits: torch.Tensor) -> torch.Tensor:
    """float64 [V] after penalties, biases and filters."""
    how = ask.how
    adjusted = adjust(
        logits, ask.prompt, (), logit_bias=dict(how.logit_bias), repetition_penalty=how.repetition_penalty,
        presence_penalty=how.presence_penalty, frequency_penalty=how.frequency_penalty,
    )  # fmt: skip
    keep = kept(adjusted, how.temperature, how.top_k, how.top_p, how.min_p)
    return torch.softmax((adjusted.double() / how.temperature).where(keep, -torch.inf), 0)

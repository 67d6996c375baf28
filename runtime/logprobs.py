"""Log-probabilities of chosen tokens, from the model's logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Logprobs:
    """Of one token. logprob: natural logarithm of its probability; top: (token, logprob) of the most likely, in order.

    Probabilities are those of the model: the softmax of the raw logits, whatever temperature the token was drawn at.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def logprobs(logits: Tensor, tokens: Sequence[int], top: int = 0) -> list[Logprobs]:
    """One Logprobs per token. logits: [n, V] fp32, row i that of tokens[i]; top: how many of the most likely, 0 .. V.

    log-softmax is computed in float64; the temperature is not applied. Equal logits in `top` are ordered by token id.
    """
    rows = torch.log_softmax(logits, -1, dtype=torch.float64)
    found = []
    for scores, row, token in zip(logits, rows, tokens, strict=True):
        best = tuple((i, float(row[i])) for i in _largest(scores, top))
        found.append(Logprobs(token, float(row[token]), best))
    return found


def _largest(scores: Tensor, count: int) -> list[int]:
    """Ids of the largest of `scores` [V], in order; of equal ones the lowest come first, where topk may take any."""
    if count == 0:
        return []
    ids = torch.nonzero(scores >= scores.topk(count).values[-1])[:, 0]
    order = torch.sort(scores[ids], descending=True, stable=True).indices[:count]
    return ids[order].tolist()

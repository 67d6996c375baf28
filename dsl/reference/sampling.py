"""Choose a token: argmax(logits / temperature + Gumbel noise of (seed, position, token id)), from a counter-based RNG.

Before it, logits are adjusted (biases, penalties, masks) and filtered (min_p, top_k, top_p): see docs/sampling.md.

The noise of a token depends on nothing else, so a draft drawn with the same noise is equal to the target's token
whenever the two distributions are close (Gumbel-max coupling).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

WORD = 0xFFFFFFFF
ROUND_A, ROUND_B = 0xD2511F53, 0xCD9E8D57
KEY_A, KEY_B = 0x9E3779B9, 0xBB67AE85


def multiply(x: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """High and low word of x * factor. x: int64 holding 32-bit words; no intermediate reaches 2 ** 63."""
    low, high = x * (factor & 0xFFFF), x * (factor >> 16)
    return (high + (low >> 16)) >> 16, (((high & 0xFFFF) << 16) + low) & WORD


def philox(seed: Tensor, c0: Tensor, c1: Tensor, c2: Tensor, c3: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox-4x32-10 of a counter (c0, c1, c2, c3) under the key (low, high word of seed).

    All int64: the seed its 64 bits, counters and results 32-bit words; shapes broadcast.
    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011),
    words in the order of `tl.philox` (triton/language/random.py).
    """
    k0, k1 = seed & WORD, (seed >> 32) & WORD
    for _ in range(10):
        (high_a, low_a), (high_b, low_b) = multiply(c0, ROUND_A), multiply(c2, ROUND_B)
        c0, c1, c2, c3 = high_b ^ c1 ^ k0, low_b, high_a ^ c3 ^ k1, low_a
        k0, k1 = (k0 + KEY_A) & WORD, (k1 + KEY_B) & WORD
    return c0, c1, c2, c3


def gumbel(seed: int | Tensor, position: int | Tensor, num_tokens: int) -> Tensor:
    """Noise of every token id at a position: -log(-log(u)), u = ((bits >> 9) + 0.5) * 2 ** -23, strictly in (0, 1).

    seed, position: int64 scalars or [...]; seed: any 64 bits. Returns fp32 [..., num_tokens].
    """
    seed, position = torch.as_tensor(seed)[..., None], torch.as_tensor(position)[..., None]
    zero = torch.zeros((), dtype=torch.int64)
    bits = philox(seed, torch.arange(num_tokens), position, zero, zero)[0]
    u = ((bits >> 9).float() + 0.5) * 2.0**-23
    return -torch.log(-torch.log(u))


def choose(logits: Tensor, temperature: float, seed: int | Tensor, position: int | Tensor) -> Tensor:
    """The token of every row: int64 [...] of logits [..., V]. Ties go to the lowest id. temperature 0: argmax(logits).

    position: that of the chosen token, one per row ([...]) or one for all; seed likewise.
    """
    logits = logits.float()
    if temperature > 0.0:
        logits = logits / temperature + gumbel(seed, position, logits.shape[-1])
    return lowest_argmax(logits)


def adjust(
    logits: Tensor,
    prompt: Sequence[int],
    output: Sequence[int],
    *,
    logit_bias: Mapping[int, float],
    repetition_penalty: float,
    presence_penalty: float,
    frequency_penalty: float,
    stops: Iterable[int] = (),
    min_tokens: int = 0,
    allowed: Tensor | None = None,
) -> Tensor:
    """fp32 [V]: the logits of the token after prompt + output, token by token as it is defined. allowed: bool [V]."""
    adjusted = logits.clone()
    for token, bias in logit_bias.items():
        adjusted[token] += bias
    for token in {*prompt, *output}:
        adjusted[token] = (
            adjusted[token] / repetition_penalty if adjusted[token] > 0 else adjusted[token] * repetition_penalty
        )
    for token, count in Counter(output).items():
        adjusted[token] -= torch.tensor(frequency_penalty) * count
        adjusted[token] -= presence_penalty
    if len(output) < min_tokens:
        adjusted[list(stops)] = -math.inf
    if allowed is not None:
        adjusted[~allowed] = -math.inf
    return adjusted


def kept(logits: Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> Tensor:
    """bool [V]: min_p, then top_k, then the fewest most likely tokens of a share top_p; equal logits stay together.

    In float64, by sorting: what is kept at a boundary that rounding decides may differ from fp32.
    """
    wide = logits.double() / temperature
    weight = (wide - wide.max()).exp()
    keep = weight >= min_p
    if 0 < top_k < len(logits):
        keep &= logits >= logits.where(keep, -math.inf).topk(top_k).values[-1]
    if top_p < 1.0:
        order = torch.argsort(logits, descending=True, stable=True)
        mass = weight.where(keep, 0.0)[order].cumsum(0)
        last = int((mass >= top_p * mass[-1]).nonzero()[0])
        keep &= logits >= logits[order[last]]
    return keep


def lowest_argmax(scores: Tensor) -> Tensor:
    """Index of the first maximum over the last dim."""
    ids = torch.arange(scores.shape[-1])
    return torch.where(scores == scores.amax(-1, keepdim=True), ids, scores.shape[-1]).amin(-1)

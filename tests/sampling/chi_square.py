"""Pearson's test, without scipy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import sqrt

from torch import Tensor

LEAST_EXPECTED = 5.0


def deviation(samples: Sequence[int], probabilities: Tensor) -> float:
    """How many standard deviations chi-square lies above its mean, by Wilson and Hilferty's cube root.

    probabilities: [V], sum 1. Tokens expected fewer than 5 times share a bin. Infinite if an impossible one was drawn.
    """
    counts, total = Counter(samples), len(samples)
    bins, rare = [], [0.0, 0.0]
    for token, probability in enumerate(probabilities.tolist()):
        expected, found = probability * total, counts[token]
        if found and not expected:
            return float("inf")
        if expected >= LEAST_EXPECTED:
            bins.append((found, expected))
        else:
            rare = [rare[0] + found, rare[1] + expected]
    if rare[1] > 0:
        bins.append((rare[0], rare[1]))
    freedom = len(bins) - 1
    if freedom == 0:
        return 0.0
    square = sum((found - expected) ** 2 / expected for found, expected in bins)
    spread = 2 / (9 * freedom)
    return ((square / freedom) ** (1 / 3) - (1 - spread)) / sqrt(spread)

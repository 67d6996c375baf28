"""A guess at candidates that were not tried: the roofline's ratio times a factor for each value of each tunable.

Tunables of a kernel mostly act apart from each other: then a few trials tell the factors, and the product of the best
ones is the best candidate. Where they do not, the search goes on elsewhere as well (autotune.study).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from autotune.space import Values, key

RIDGE = 0.3  # pulls a factor that few trials tell of towards 1


class Surrogate:
    """Fitted to ratios of trials. bounds: of every candidate, relative to the untuned kernel's, by key."""

    def __init__(self, order: Sequence[Values], bounds: Mapping[str, float]) -> None:
        self.order, self.bounds = order, bounds
        columns = dict.fromkeys((name, value) for values in order for name, value in values.items())
        self._columns = {column: index for index, column in enumerate(columns)}
        self._features = np.array([self._row(values) for values in order])
        self._prior = np.array([math.log(bounds[key(values)]) for values in order])
        self._index = {key(values): index for index, values in enumerate(order)}

    def _row(self, values: Values) -> list[float]:
        row = [0.0] * len(self._columns)
        for column in values.items():
            row[self._columns[column]] = 1.0
        return row

    def ranked(self, ratios: Mapping[str, float]) -> list[Values]:
        """All candidates, the one that promises most first. ratios: of trials, by key."""
        known = [(self._index[name], math.log(ratio)) for name, ratio in ratios.items() if name in self._index]
        guess = self._prior
        if known:
            rows = np.array([index for index, _ in known])
            seen = self._features[rows]
            rest = np.array([value for _, value in known]) - self._prior[rows]
            weights = np.linalg.solve(seen.T @ seen + RIDGE * np.eye(seen.shape[1]), seen.T @ rest)
            guess = guess + self._features @ weights
        return [self.order[index] for index in np.argsort(guess, kind="stable")]

"""The number of drafts follows what pays, on a simulated machine whose times and acceptance are known."""

from __future__ import annotations

from random import Random

import pytest

from runtime.adaptive import AdaptiveDrafts

MOST = 7
COSTS = {
    "cheap drafts": [1.0, 1.2, 1.3, 1.4, 1.6, 1.7, 1.8, 1.9],
    "dear drafts": [1.0, 1.6, 2.4, 2.9, 4.0, 4.6, 5.2, 5.8],
    "a step at four": [1.0, 1.3, 1.45, 1.6, 2.6, 2.7, 2.8, 2.9],
}
TEXTS = {
    "predictable": [0.98] * 7,
    "code": [0.8, 0.75, 0.7, 0.7, 0.65, 0.6, 0.6],
    "prose": [0.55, 0.5, 0.45, 0.4, 0.4, 0.35, 0.3],
    "noise": [0.03] * 7,
}


class Machine:
    """Steps whose time is noisy, now and then very much so."""

    def __init__(self, costs: list[float], seed: int) -> None:
        self.costs, self.rng = costs, Random(seed)

    def step(self, rates: list[float], drafts: int) -> tuple[float, int]:
        """Seconds and accepted drafts."""
        accepted = 0
        while accepted < drafts and self.rng.random() < rates[accepted]:
            accepted += 1
        noise = self.rng.lognormvariate(0, 0.04) * (4.0 if self.rng.random() < 0.02 else 1.0)
        return 1e-4 * self.costs[drafts] * noise, accepted


def best_fixed(costs: list[float], rates: list[float]) -> float:
    """Expected seconds per token of the best number of drafts."""

    def tokens(drafts: int) -> float:
        total = likely = 1.0
        for rate in rates[:drafts]:
            likely *= rate
            total += likely
        return total

    return min(1e-4 * costs[k] / tokens(k) for k in range(MOST + 1))


def spent(adaptive: AdaptiveDrafts, machine: Machine, rates: list[float], tokens: int) -> float:
    """Seconds per token, without the outliers that no choice can help, of a request of so many tokens."""
    adaptive.joined()
    total, made, drafted = 0.0, 0, 0
    while made < tokens:
        drafts = adaptive.choose(1)
        verified = drafts if drafts <= drafted else 0
        seconds, accepted = machine.step(rates, verified)
        if adaptive.attentive:
            adaptive.observe(1, verified, seconds if verified == drafts else None, [accepted])
        # drafting costs in the step that makes the drafts
        total += 1e-4 * machine.costs[drafts]
        made += accepted + 1
        drafted = drafts
    return total / made


@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize("text", TEXTS)
def test_within_five_percent_of_the_best_fixed_number(costs: str, text: str) -> None:
    adaptive, machine = AdaptiveDrafts(MOST), Machine(COSTS[costs], 3)
    best = best_fixed(COSTS[costs], TEXTS[text])
    spent(adaptive, machine, TEXTS[text], 300)
    found = sum(spent(adaptive, machine, TEXTS[text], 400) for _ in range(10)) / 10
    assert found / best < 1.05


@pytest.mark.parametrize("costs", COSTS)
def test_it_follows_when_the_text_changes(costs: str) -> None:
    adaptive, machine, rng = AdaptiveDrafts(MOST), Machine(COSTS[costs], 4), Random(5)
    found = best = 0.0
    for _ in range(40):
        rates = TEXTS[rng.choice(sorted(TEXTS))]
        found += spent(adaptive, machine, rates, 400)
        best += best_fixed(COSTS[costs], rates)
    assert found / best < 1.12


def test_it_begins_fast_enough() -> None:
    for costs in COSTS.values():
        for rates in TEXTS.values():
            adaptive, machine = AdaptiveDrafts(MOST), Machine(costs, 6)
            assert spent(adaptive, machine, rates, 300) / best_fixed(costs, rates) < 1.35


def test_without_room_for_drafts_there_is_nothing_to_choose() -> None:
    adaptive = AdaptiveDrafts(0)
    for _ in range(50):
        assert adaptive.choose(1) == 0
        adaptive.observe(1, 0, 1e-4, [0])


def test_buckets_are_judged_each_by_its_own_times() -> None:
    adaptive = AdaptiveDrafts(MOST)
    machines = {1: Machine(COSTS["cheap drafts"], 1), 8: Machine(COSTS["dear drafts"], 2)}
    for _ in range(300):
        for bucket, machine in machines.items():
            drafts = adaptive.choose(bucket)
            seconds, accepted = machine.step(TEXTS["code"], drafts)
            adaptive.observe(bucket, drafts, seconds, [accepted])
    assert adaptive.choose(1) > adaptive.choose(8)

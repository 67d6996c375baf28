"""Acceptance is watched: no word about chance, one about a collapse, and what else changed is in it."""

from __future__ import annotations

import random
import timeit
import warnings
from types import SimpleNamespace

import pytest

from runtime.observe.watch import BLOCK, MIN_HISTORY, RECENT, SETTLED, AcceptanceWarning, AcceptanceWatch

GREEDY = SimpleNamespace(temperature=0.0, restored_position=0)
SAMPLED = SimpleNamespace(temperature=1.0, restored_position=0)
RESUMED = SimpleNamespace(temperature=0.0, restored_position=40)
WARM = (MIN_HISTORY + RECENT + 1) * BLOCK


class Traffic:
    """Steps whose drafts are each accepted with a fixed chance, drawn ahead."""

    def __init__(self, watch: AcceptanceWatch, seed: int = 0) -> None:
        self.watch, self.rng = watch, random.Random(seed)

    def run(self, chance: float, steps: int, request: SimpleNamespace = GREEDY, drafts: int = 3, batch: int = 1) -> int:
        """Returns the collapses that were reported meanwhile."""
        before, draw, watch = len(self.watch.collapses), self.rng.random, self.watch
        for _ in range(steps):
            accepted = 1
            while accepted <= drafts and draw() < chance:
                accepted += 1
            watch.add(request, drafts, accepted, batch)
            if watch.due:
                watch.check()
        return len(self.watch.collapses) - before


@pytest.fixture
def watch() -> AcceptanceWatch:
    return AcceptanceWatch()


@pytest.fixture
def traffic(watch):
    return Traffic(watch)


@pytest.mark.parametrize("chance", [0.3, 0.6, 0.9, 0.98])
def test_a_million_steps_of_constant_acceptance_are_silent(traffic, chance):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert traffic.run(chance, 1_000_000) == 0


def test_easy_and_hard_texts_taking_turns_are_silent(traffic):
    """And so are other numbers of drafts, a larger batch and a slow drift."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for i in range(600):
            hard = traffic.rng.random() < 0.4
            drafts, batch = traffic.rng.randint(0, 7), traffic.rng.randint(1, 8)
            traffic.run((0.55 if hard else 0.85) - i / 6000, 100, drafts=drafts, batch=batch)


def test_a_collapse_is_said_once_and_again_after_it_was_over(watch, traffic):
    traffic.run(0.8, WARM)
    with pytest.warns(AcceptanceWarning, match="of the last 2[56]. drafts were accepted, (79|80|81)% before"):
        assert traffic.run(0.3, 400) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert traffic.run(0.3, 20_000) == 0
        assert traffic.run(0.8, 20_000) == 0
    with pytest.warns(AcceptanceWarning):
        assert traffic.run(0.5, 2000) == 1
    assert [round(collapse.expected, 1) for collapse in watch.collapses] == [0.8, 0.8]
    assert abs(watch.collapses[0].found - 0.3) < 0.1 and watch.collapses[0].z > 5.5


def test_a_small_drop_takes_the_longer_window(watch, traffic):
    traffic.run(0.7, 2 * WARM)
    with pytest.warns(AcceptanceWarning):
        assert traffic.run(0.58, 3000) == 1
    assert watch.collapses[0].recent.share().examined >= RECENT * BLOCK


def test_what_stays_is_the_new_history(watch, traffic):
    traffic.run(0.8, WARM)
    with pytest.warns(AcceptanceWarning):
        assert traffic.run(0.5, (SETTLED + RECENT + 3) * BLOCK) == 1
    with pytest.warns(AcceptanceWarning):
        assert traffic.run(0.2, 2000) == 1
    assert abs(watch.collapses[1].expected - 0.5) < 0.02


def test_more_drafts_per_step_are_no_collapse(traffic):
    """Of 7 drafts a smaller share is accepted than of 1; of those whose predecessors were right, the same."""
    traffic.run(0.7, WARM, drafts=1)
    assert traffic.run(0.7, 20_000, drafts=7) == 0


CHANGES = {
    "sampled": ({"request": SAMPLED}, "tokens of sampled requests 0% -> 100%"),
    "temperature": ({"request": SAMPLED}, "mean temperature 0.00 -> 1.00"),
    "resumed": ({"request": RESUMED}, "tokens of resumed requests 0% -> 100%"),
    "drafts": ({"drafts": 5}, "drafts per step 3.0 -> 5.0"),
    "batch": ({"batch": 4}, "batch 1.0 -> 4.0"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changed_is_named_first(watch, traffic, change):
    options, text = CHANGES[change]
    traffic.run(0.8, WARM)
    with pytest.warns(AcceptanceWarning):
        traffic.run(0.3, 1000, **options)
    changed = [said for differs, said in watch.collapses[0].causes() if differs]
    assert any(text in said for said in changed)
    assert len(changed) == (2 if options.get("request") is SAMPLED else 1)
    assert str(watch.collapses[0]).partition("Not changed")[0].count(text) == 1


def test_resumed_requests_that_fare_worse_are_named_although_they_are_not_more(watch):
    """A third of the requests is resumed, as ever; only theirs are rejected now."""
    traffic = Traffic(watch)
    for chance in (0.8, 0.1):
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            for _ in range(WARM if chance == 0.8 else 1500):
                traffic.run(0.8, 2)
                traffic.run(chance, 1, RESUMED)
                if watch.collapses:
                    break
    (collapse,) = watch.collapses
    (changed,) = [text for differs, text in collapse.causes() if differs]
    assert changed.startswith("tokens of resumed requests 3") and "resumed 80% -> 1" in changed


@pytest.mark.parametrize("agreed", [None, True, False])
def test_what_the_canary_saw_is_said(agreed):
    watch = AcceptanceWatch(canary=lambda: agreed)
    traffic = Traffic(watch)
    traffic.run(0.8, WARM)
    words = {None: "not checked", True: "graphs do what their launches do", False: "graphs do not do"}[agreed]
    with pytest.warns(AcceptanceWarning, match=words):
        traffic.run(0.3, 1000)
    (collapse,) = watch.collapses
    assert collapse.canary is agreed
    assert [text for differs, text in collapse.causes() if differs] == (
        ["graphs do not do what their launches do"] if agreed is False else []
    )
    assert ("nothing that is counted" in str(collapse)) == (agreed is not False)
    assert "\n" not in str(collapse)


def test_a_step_costs_little(watch):
    """Well under a microsecond, with its share of the comparisons."""

    def steps() -> None:
        for _ in range(1000):
            watch.add(GREEDY, 3, 3, 1)
            if watch.due:
                watch.check()

    assert min(timeit.repeat(steps, number=10, repeat=5)) / 10_000 < 3e-6

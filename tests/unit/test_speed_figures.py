"""How the bench of the CPU backend makes figures of times, and what it calls passed."""

from __future__ import annotations

import time

import pytest

from benchmarks.cpu_backend import measure
from benchmarks.cpu_backend.measure import Contest, Figure, burst


@pytest.mark.parametrize(
    ("unit", "value", "passed"),
    [("x", 1.5, True), ("x", 1.49, False), ("us", 0.4, False), ("us", 1.5, True), ("us", 1.51, False)],
)
def test_ratios_are_lower_bounds_and_the_rest_upper_ones(unit: str, value: float, passed: bool) -> None:
    required = 0.3 if value == 0.4 else 1.5
    figure = Figure("name", "size", value, unit, required)
    assert figure.passed is passed
    assert figure.as_json()["passed"] is passed


def test_a_burst_is_the_median_call() -> None:
    waits = iter([0.0, 0.0, 0.05, 0.001, 0.001])  # two calls that warm up, one that was interrupted
    assert burst(lambda: time.sleep(next(waits)), 3) < 0.02


def test_a_contest_compares_median_calls_and_checks_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "REST_SECONDS", 0.0)
    order: list[str] = []
    contest = Contest(
        "name", "size", 2.0, lambda: time.sleep(0.001), check=lambda: order.append("check"), rival="other"
    )

    def other(repeats: int) -> float:
        order.append("other")
        return 0.01

    figure = contest.measure(3, other)
    assert order[0] == "check" and order.count("check") == 1
    assert figure.value == pytest.approx(0.01 / (1e-6 * figure.detail["ours_us"]), rel=0.5)
    assert figure.detail["other_us"] == pytest.approx(10_000)
    assert figure.passed


def test_a_wrong_result_is_not_timed() -> None:
    def wrong() -> None:
        raise AssertionError("results differ")

    contest = Contest("name", "size", 2.0, lambda: None, check=wrong)
    with pytest.raises(AssertionError, match="differ"):
        contest.measure(1, lambda repeats: 1.0)

"""Benchmarks whose result is a ratio: how many times as fast ours is as a yardstick, measured in turns with it.

    make bench
    python -m pytest benchmarks/speed [--history FILE] [-k kernels]

A slower machine slows both, so ratios can be compared between runs. They are kept (benchmarks/history.py) and compared
with the last ones; what fell by more than a tenth is named at the end. That fails nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch

from benchmarks import history, prepared
from runtime.bench.usage import UsageClock
from runtime.cpu import set_num_threads

Run = Callable[[], object]
#: What the fixture `against` gives.
Against = Callable[..., None]

ROOT = Path(__file__).resolve().parents[2]
THREADS = 2
KIND = "speed"
CLOCK = pytest.StashKey[UsageClock]()
RATIOS = pytest.StashKey[dict[str, tuple[float, str]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--history", type=Path, default=None, help=f"file of ratios; else {history.VARIABLE} or the cache")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[RATIOS], config.stash[CLOCK] = {}, UsageClock((), None)


@pytest.fixture(autouse=True, scope="session")
def quiet_torch() -> None:
    """PyTorch, a yardstick, keeps to one thread: idle threads of its own would spin beside ours."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    set_num_threads(THREADS)


@pytest.fixture(scope="session")
def demo() -> Iterator[tuple[Path, Path]]:
    """The demo model: package and weights."""
    yield prepared.package(ROOT / "specs" / "tiny-hybrid.yaml"), ROOT / "specs" / "tiny-hybrid" / "weights.safetensors"


@pytest.fixture
def against(benchmark: Any, request: pytest.FixtureRequest) -> Against:
    """Times ours and a yardstick in turns, and keeps the median ratio of their times under a name.

    of: what the yardstick does, for the table. work: what a call of ours does, in calls of the yardstick. warm_up:
    calls that do not count.
    """

    def measure(
        name: str, ours: Run, yardstick: Run, *, of: str, rounds: int = 30, work: float = 1.0, warm_up: int = 2
    ) -> None:
        taken: list[float] = []
        benchmark.pedantic(ours, setup=lambda: taken.append(seconds(yardstick)), rounds=rounds, warmup_rounds=warm_up)
        found = benchmark.stats.stats.data
        ratio = work * median(other / mine for other, mine in zip(taken[-rounds:], found, strict=True))
        benchmark.extra_info.update(ratio=ratio, yardstick=of)
        request.config.stash[RATIOS][name] = (ratio, of)

    return measure


def seconds(run: Run) -> float:
    """Of one call."""
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def repeated(run: Run, times: int) -> Run:
    """As one call, for what is too short to be timed alone."""

    def several() -> None:
        for _ in range(times):
            run()

    return several


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """The ratios, what they were, and what fell; then the history goes on."""
    found = config.stash[RATIOS]
    if not found:
        return
    path = history.path_of(config.getoption("--history"))
    ratios = {name: ratio for name, (ratio, _) in found.items()}
    changes = {change.name: change for change in history.compare(path, KIND, ratios)}
    terminalreporter.section("ratios: times as fast as a yardstick")
    for name, (ratio, of) in found.items():
        change = changes.get(name)
        before = f"  {change.now / change.before - 1:+.0%} of {change.entries} runs" if change else ""
        terminalreporter.line(f"{name:34} {ratio:8.3f} x {of:44}{before}")
    usage = config.stash[CLOCK].read()
    others = usage.others if usage is not None else 0.0
    trusted = history.quiet(others)
    if not trusted:
        line = f"the rest of the machine used {others:.2f} of its cores: no run will be compared with this one"
        terminalreporter.line(line, yellow=True)
    for change in changes.values():
        if change.regressed:
            note = "for information" if trusted else "on a busy machine"
            terminalreporter.line(f"SLOWER ({note}) {change}", yellow=True)
    history.append(path, KIND, ratios, others)
    terminalreporter.line(f"kept in {path}")

"""Runs in several processes, each with a toy and cold answers of its own."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context

from tests.state.driver import Driver
from tests.state.subject import toy
from tests.state.tally import Tally

PORTION = 10
_driver: Driver | None = None


@dataclass(frozen=True)
class Portion:
    """Some runs. tally: as Tally.as_dict gives it; failed: seed of the run that differs; text: how, with the run."""

    tally: dict[str, object]
    failed: int | None = None
    text: str = ""


def work(first: int, count: int, operations: int, tuned: int | None) -> Portion:
    """Runs from seed `first` on, until one differs."""
    global _driver
    _driver = _driver or Driver(toy(tuned))
    _driver.tally = Tally()
    for seed in range(first, first + count):
        failure = _driver.run(seed, operations)
        if failure is not None:
            text = "".join(traceback.format_exception(failure.error))
            return Portion(_driver.tally.as_dict(), seed, f"{text}\n{failure.as_json()}")
    return Portion(_driver.tally.as_dict())


def portions(runs: int, operations: int, seed: int, jobs: int, tuned: int | None = None) -> Iterator[Portion]:
    """All runs, as they get ready. Leaving the loop ends those that have not begun."""
    starts = [(at, min(PORTION, seed + runs - at), operations, tuned) for at in range(seed, seed + runs, PORTION)]
    if jobs == 1:
        yield from (work(*start) for start in starts)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        try:
            for done in as_completed([pool.submit(work, *start) for start in starts]):
                yield done.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

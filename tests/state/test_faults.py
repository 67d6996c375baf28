"""Each planted fault is found within a few runs. Without one, nothing is: tests/state/test_state.py."""

from __future__ import annotations

import re

import pytest

from tests.state.driver import Driver
from tests.state.faults import FAULTS, Fault, planted
from tests.state.subject import toy

RUNS, OPERATIONS = 40, 50


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_fault_is_found(fault: Fault) -> None:
    with planted(fault, toy()) as faulty:
        driver = Driver(faulty)
        failures = (driver.run(seed, OPERATIONS) for seed in range(RUNS))
        failure = next((found for found in failures if found is not None), None)
    assert failure is not None, f"{RUNS} runs and no difference"
    assert re.search(fault.seen_as, str(failure.error)), f"found by another oracle: {failure.error}"


def test_a_failure_is_made_small_and_can_be_replayed() -> None:
    (fault,) = [fault for fault in FAULTS if fault.name.startswith("stale seed")]
    with planted(fault, toy()) as faulty:
        failure = Driver(faulty).run(0, OPERATIONS)
        small = Driver(faulty).shrink(failure)
        assert len(small.story) <= 4
        assert type(Driver(faulty).replay(small.setup, small.story)) is type(small.error)
    assert Driver(toy()).replay(small.setup, small.story) is None

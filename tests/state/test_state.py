"""A few runs in the gate; `python -m tests.state` and the profile `nightly` make many."""

from __future__ import annotations

import traceback

from hypothesis import HealthCheck, settings

from tests.state.driver import Driver
from tests.state.machine import Machine
from tests.state.subject import toy

OPERATIONS = 50
MET = (
    "preempted mid prefill", "preempted mid decode", "resumed after preemption, nothing prefilled",
    "identical prompt, nothing prefilled", "recomputed", "junction", "restored from another tier",
    "forked: waiting", "forked: decode", "forked: finished", "rewound: decode", "rewound: finished",
    "checkpoints evicted", "checkpoints demoted", "checkpoints promoted", "checkpoints skipped", "files written",
    "pinned", "interrupted", "closed", "killed", "finished: stop", "finished: limit", "accepted 4",
    "slots compared with cold ones", "checkpoints compared with cold ones",
)  # fmt: skip


def test_nothing_differs() -> None:
    driver = Driver(toy())
    for seed in range(settings.default.max_examples):
        failure = driver.run(seed, OPERATIONS)
        if failure is not None:
            small = driver.shrink(failure)
            text = "".join(traceback.format_exception(small.error))
            raise AssertionError(
                f"seed {seed}: {text}\nreplay with `python -m tests.state --replay`:\n{small.as_json()}"
            )
    missed = [event for event in MET if not driver.tally.events[event]]
    assert not missed, f"the runs are less than they were: {missed}"


TestDrawnByHypothesis = Machine.TestCase
TestDrawnByHypothesis.settings = settings(
    max_examples=max(5, settings.default.max_examples // 10),
    stateful_step_count=OPERATIONS + 1,
    suppress_health_check=list(HealthCheck),
    deadline=None,
)

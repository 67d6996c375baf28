"""explain and the bench count the same bytes, from the same plan, by different code."""

from __future__ import annotations

import pytest

from codegen import cost
from runtime import traffic
from runtime.drafter import Drafter
from tests.cpu.engine.toys import toy_plan, toy_spec


@pytest.mark.parametrize("drafts", [0, 1, 3, 7])
@pytest.mark.parametrize("bucket", [1, 4])
def test_explain_and_bench_agree(package, drafts: int, bucket: int) -> None:
    plan = toy_plan(toy_spec())
    explained = [
        (entry.kernel, entry.bytes)
        for entry in cost.step_costs(plan, cost.Shape(bucket, drafts, 50))
        for _ in range(entry.count)
    ]
    shape = traffic.Shape(bucket, drafts, drafts, 50, drafter=Drafter.MTP if drafts else Drafter.NONE)
    counted = [(launch.kernel, launch.bytes) for launch in traffic.step_launches(package.plan, shape)]
    assert sorted(explained) == sorted(counted)

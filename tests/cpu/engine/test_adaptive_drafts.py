"""`drafts="auto"` in an engine: it learns whatever the traffic is, and changes no token."""

from __future__ import annotations

from random import Random

import pytest

from runtime.engine import Engine
from tests.cpu.engine.toys import check_nothing_left, drain, draw_ask


@pytest.mark.parametrize("drafter", ["mtp", "lookup"])
def test_no_token_changes(package, weights, oracle, drafter: str) -> None:
    """While requests join, leave and are preempted, and the number of drafts is chosen by hand now and then."""
    rng = Random(drafter)
    engine = Engine(package, weights, drafts="auto", drafter=drafter, prefill_budget=24)
    asks, requests, used = [draw_ask(rng) for _ in range(40)], [], set()
    while len(requests) < len(asks) or engine.busy:
        if len(requests) < len(asks) and rng.random() < 0.4:
            requests.append(asks[len(requests)].submit(engine))
        engine.step()
        used.add(engine.scheduler.drafts)
        if rng.random() < 0.1 and (seats := engine.scheduler.seats.all()):
            engine.preempt(rng.choice(seats).request)
        if rng.random() < 0.03:
            engine.set_drafts(rng.choice((0, 5)))
        elif rng.random() < 0.2:
            engine.set_drafts("auto")
    assert [(request.output, request.finish_reason) for request in requests] == [oracle(ask) for ask in asks]
    assert len(used) >= 3
    check_nothing_left(engine)


def test_times_are_learned_while_prompts_are_prefilled_all_the_time(package, weights) -> None:
    """A server that is never without a prompt: every step of it has prefill."""
    engine = Engine(package, weights, drafts="auto", prefill_budget=1, checkpoints=False)
    engine.submit([1], max_new_tokens=110, temperature=1.0, stop_at_eos=False)
    engine.step()
    engine.submit([2] * 110, max_new_tokens=1)
    for _ in range(40):
        engine.step()
        assert engine.scheduler.seats.prefilling and len(engine.scheduler.seats.decoding) == 1
    most = engine.package.plan.limits.max_drafts
    assert {0, 2, most} <= set(engine.scheduler.adaptive._times[1])
    drain(engine)

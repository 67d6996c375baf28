"""A package with other values everywhere gives the same bits, and goes on from the checkpoints of the untuned one."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from codegen.lower import lower
from codegen.package import write_package
from codegen.plan import Plan
from dsl import ModelSpec
from runtime.engine import Engine
from runtime.package import Package, open_package
from tests.autotune.test_tuned_plans import last_values
from tests.cpu.engine.toys import Ask, agreeing_weights, drain, draw_ask, write_toy
from tests.state.driver import Driver
from tests.state.subject import toy as subject_of_states

CACHE = Path(__file__).resolve().parents[2] / "build" / "test-kernels"
PROMPT = tuple(b"pack my box with five dozen liquor jugs")


@pytest.fixture(scope="module")
def packages(toy: ModelSpec, toy_plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> tuple[Package, Package]:
    """The toy untuned, and with another value of every tunable that changes no bit, of a kernel of each template."""
    every = {k.template: (k.name, found) for k in toy_plan.kernels if (found := last_values(k, changes_bits=False))}
    values = dict(every.values())
    assert len(values) >= 6
    folder = tmp_path_factory.mktemp("tuned") / "package"
    write_package([lower(toy, "cpu", values)], folder, toy, "toy.yaml")
    (folder / "cache").symlink_to(CACHE)
    return write_toy(tmp_path_factory.mktemp("untuned") / "package", CACHE, toy), open_package(folder)


def test_tokens_of_a_tuned_build_are_those_of_the_untuned_one(
    packages: tuple[Package, Package], toy: ModelSpec
) -> None:
    rng, weights = Random(5), agreeing_weights(toy)
    asks = [draw_ask(rng) for _ in range(5)]
    answers = []
    for package in packages:
        with Engine(package, weights, drafts=3) as engine:
            requests = [ask.submit(engine) for ask in asks]
            drain(engine)
            answers.append([(request.output, request.finish_reason) for request in requests])
    assert answers[0] == answers[1]
    assert sum(len(output) for output, _ in answers[0]) > 20


def test_a_tuned_build_resumes_from_what_an_untuned_one_saved(
    packages: tuple[Package, Package], toy: ModelSpec, tmp_path: Path
) -> None:
    untuned, tuned = packages
    assert untuned.numerics_sha256 == tuned.numerics_sha256
    weights, ask = agreeing_weights(toy), Ask(PROMPT, 16)
    with Engine(untuned, weights, drafts=3, interval=0, checkpoint_dir=tmp_path) as engine:
        first = ask.submit(engine)
        drain(engine)
        assert first.restored_position == 0
    with Engine(tuned, weights, drafts=3, interval=0, checkpoint_dir=tmp_path) as engine:
        again = ask.submit(engine)
        drain(engine)
        assert again.restored_position == len(PROMPT)
        assert again.output == first.output


def test_the_state_machine_finds_nothing_in_tuned_kernels() -> None:
    """Everything an engine can be asked to do, with drawn tunables, against cold answers of the defaults."""
    driver = Driver(subject_of_states(tuned=1))
    for seed in range(12):
        failure = driver.run(seed, 50)
        assert failure is None, f"seed {seed} of `python -m tests.state --tuned 1`: {failure.error!r}"
    assert driver.tally.runs == 12 and driver.tally.tokens > 500

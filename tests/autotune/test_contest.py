"""How candidates are timed and who wins: on made-up times, and that the operands are where a step has them."""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from autotune.arena import PER_LAYER
from autotune.contest import SPARE, Contest, Pool, Timed
from autotune.forge import Forge
from autotune.measure import Bench, GivenUp, Verdict
from autotune.proof import Judge
from autotune.run import shares
from autotune.scenes import timed_scenes
from autotune.space import HOPELESS, Machine, key, space_of
from autotune.surrogate import Surrogate
from codegen.lower import lower
from codegen.lower.targets import pads_little
from codegen.tuned import FREE, KEEP
from dsl import ModelSpec

CPU = torch.device("cpu")
MACHINE = Machine(4e10, 8e11, 2)
RESIDUAL = "matmul_512x256_residual"


def timed(weights: dict[str, float], **ratios: list[float]) -> Timed:
    found = Timed(weights, {name: [] for name in weights}, {name: [] for name in weights})
    for name, values in ratios.items():
        for value in values:
            found.add(name, value, 1.0)
    return found


def test_a_ratio_is_the_weighted_mean_of_medians_which_no_outlier_moves() -> None:
    found = timed({"decode": 3.0, "batch": 1.0}, decode=[0.5, 0.5, 9.0], batch=[2.0, 2.0, 0.01])
    assert found.ratio == pytest.approx(math.exp((3 * math.log(0.5) + math.log(2)) / 4))
    assert found.worst == ("decode", 0.5), "three rounds of four are no better than this"


def test_noise_is_large_where_rounds_differ_and_unknown_of_few() -> None:
    assert timed({"decode": 1.0}, decode=[0.9, 0.9]).noise == math.inf
    calm = timed({"decode": 1.0}, decode=[0.90, 0.91, 0.90, 0.91, 0.90]).noise
    wild = timed({"decode": 1.0}, decode=[0.5, 1.5, 0.6, 1.4, 0.9]).noise
    assert calm < 0.02 < 0.2 < wild


@pytest.mark.parametrize(
    ("ratio", "noise", "wins"), [(0.9, 0.01, True), (0.99, 0.0, False), (0.9, 0.06, False), (1.1, 0.0, False)]
)
def test_a_candidate_wins_only_by_more_than_the_noise(ratio: float, noise: float, wins: bool) -> None:
    assert Verdict(ratio, noise, {}, "measured").wins is wins


def test_codes_are_raced_as_they_are(tiny: ModelSpec, folder: Path) -> None:
    """Numbers read as codes would all escape: a candidate whose weights are coded, or no longer, has them laid out."""
    forge = Forge(tiny, "cpu", folder)
    judge = Judge(forge, RESIDUAL, CPU, KEEP)
    pool = Pool(judge.timed[0], 2)
    usual = pool.operands(judge.untuned, 1).tensors["w"]
    for values in ({"coded": 1}, {"coded": 1, "BLOCK_N": 16}, {"coded": 1}):
        candidate = forge.candidate(RESIDUAL, values)
        for index in (1, 0):
            operands = pool.operands(candidate, index)
            for name in ("w", "escapes"):
                laid_out = judge.timed[0].arena.weights(operands.buffers[name])
                assert operands.buffers[name].dtype == "uint8" and torch.equal(operands.tensors[name], laid_out)
        addresses = {pool.operands(candidate, index).tensors["w"].data_ptr() for index in (0, 1)}
        assert len(addresses) == 2
    assert pool.operands(judge.untuned, 1).tensors["w"].data_ptr() == usual.data_ptr()
    *_, timed = Contest(judge, working_set=1 << 20).race(forge.candidate(RESIDUAL, {"coded": 1}), 2)
    assert timed.plain()["decode"]["ratio"] > 0


def test_launches_take_turns_over_as_many_operands_as_a_step_moves(tiny: ModelSpec, folder: Path) -> None:
    judge = Judge(Forge(tiny, "cpu", folder), RESIDUAL, CPU, KEEP)
    decode = judge.timed[0]
    own = decode.start.bytes(PER_LAYER)
    pool, launches = Contest(judge, working_set=6 * own)._track(decode)
    assert pool.copies == 6
    assert launches % 6 == 0
    sets = [pool.operands(judge.untuned, index) for index in range(6)]
    assert len({operands.tensors["w"].data_ptr() for operands in sets}) == 6
    assert len({operands.tensors["x"].data_ptr() for operands in sets}) == 1
    other = judge.untuned.plan.kernel(RESIDUAL)
    narrow = Forge(tiny, "cpu", folder).candidate(RESIDUAL, {"BLOCK_N": 16})
    mine = pool.operands(narrow, 3).tensors["w"]
    assert mine.data_ptr() == sets[3].tensors["w"].data_ptr(), "a candidate has memory of its own"
    assert mine.shape != sets[3].tensors["w"].shape
    assert other.constant("BLOCK_N") == 64


def test_a_candidate_that_is_much_slower_is_given_up_after_two_rounds(tiny: ModelSpec, folder: Path) -> None:
    bench = Bench(
        Forge(tiny, "cpu", folder), "attention_4x2x64", CPU, working_set=1, numerics=KEEP, measuring=nullcontext()
    )
    rounds: list[int] = []
    bench.contest.race = lambda candidate, count: (  # type: ignore[method-assign, assignment]
        timed({"decode": 1.0}, decode=[1.4] * (index + 1)) for index in range(count)
    )
    with pytest.raises(GivenUp, match="after 2 rounds"):
        bench.evaluate({}, lambda ratio, index: bool(rounds.append(index)))
    assert rounds == [0, 1]


def test_every_scene_that_counts_is_a_launch_of_the_plan(tiny: ModelSpec) -> None:
    plan = lower(tiny, "cpu")
    for kernel in plan.kernels:
        scenes = timed_scenes(plan, kernel)
        assert scenes
        assert all(scene.launch in scene.section.launches for scene in scenes)
        assert max(scene.rows for scene in scenes) <= plan.limits.prefill_chunk


def test_the_roofline_drops_what_cannot_win_and_never_the_untuned_values(tiny: ModelSpec) -> None:
    plan = lower(tiny, "cpu")
    space = space_of(plan, plan.kernel(RESIDUAL), KEEP)
    order = space.promising(MACHINE)
    assert order.candidates[0] == space.default
    assert 1 < len(order) < len(space)
    assert max(order.bounds.values()) <= HOPELESS
    assert {"row_tiles": (1,)} not in [space.changed(values) for values in order.candidates]
    wider = space_of(plan, plan.kernel(RESIDUAL), FREE)
    assert {t.name for t in wider.tunables} - {t.name for t in space.tunables} == {"BLOCK_K"}


def test_the_budget_goes_to_what_a_step_spends_its_time_on(tiny: ModelSpec) -> None:
    plan = lower(tiny, "cpu")
    found = shares(plan, KEEP, MACHINE)
    assert sum(found.values()) == pytest.approx(1)
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert next(iter(found)) == "matmul_256x1160"
    assert set(shares(plan, KEEP, MACHINE, (RESIDUAL,))) == {RESIDUAL}


def test_the_surrogate_puts_factors_together(tiny: ModelSpec) -> None:
    plan = lower(tiny, "cpu")
    space = space_of(plan, plan.kernel(RESIDUAL), KEEP)
    every = tuple(space)
    surrogate = Surrogate(every, {key(values): 1.0 for values in every})
    factors = {("BLOCK_N", 32): 0.8, ("prefetch_bytes", 512): 0.9, ("row_tiles", (1, 2)): 1.3}
    known = {key(space.default): 1.0}
    known |= {key(space.default | {name: value}): factor for (name, value), factor in factors.items()}
    best = surrogate.ranked(known)[0]
    assert (best["BLOCK_N"], best["prefetch_bytes"]) == (32, 512)
    assert best["row_tiles"] != (1, 2)


def test_the_memory_of_a_buffer_holds_it_in_every_layout() -> None:
    """The largest paddings that are allowed of N and of K, together: no candidate gets other memory than the rest."""
    blocks = (16, 32, 64, 128, 256, 512)
    worst = max(-(-n // block) * block / n for n in range(16, 4096) for block in blocks if pads_little(n, block))
    assert 1.12 < worst <= 1.125
    assert SPARE - 1 < 16 * worst**2 <= SPARE

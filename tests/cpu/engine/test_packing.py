"""Prompts that share a prefill launch leave the bits that each leaves alone, and a budget is kept over all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest

from runtime.engine import Engine
from runtime.executor import Chunk, Executor, Phase
from runtime.package import open_package
from tests.cpu.engine.toys import drain, kv_entries, live_parts, poison_free, same_bits
from tests.cpu.verify.mutants import copy_package, edit

LENGTHS = [(1, 1, 1, 1), (3, 4, 5, 4), (16, 1, 2, 3), (2, 20, 9, 1), (31, 17), (18, 20, 19), (5,), (40, 40, 40, 40)]


def prompts(rng: Random, lengths: Sequence[int]) -> list[list[int]]:
    return [[rng.randrange(256) for _ in range(length)] for length in lengths]


def prefilled(package, weights, asked: Sequence[list[int]], **options) -> Engine:
    """An engine that has just processed these prompts, and no more."""
    engine = Engine(package, weights, drafts=3, checkpoints=False, **options)
    for prompt in asked:
        engine.submit(prompt, max_new_tokens=8)
    scheduler = engine.scheduler
    scheduler._begin = lambda seats, emitted: None
    while any(seat.committed_len < seat.target_len for seat in scheduler.seats.all()) or scheduler.num_waiting:
        poison_free(engine)
        engine.step()
    return engine


def differing(together: Engine, alone: Engine, number: int) -> Iterator[str]:
    """Live buffers of prompt `number` that are not what they are in an engine of its own."""
    here, there = together.scheduler.seats.all()[number], alone.scheduler.seats.all()[0]
    assert here.committed_len == there.committed_len
    count = here.committed_len
    mine, other = (live_parts(engine, seat.slot, count) for engine, seat in ((together, here), (alone, there)))
    for (name, one), (_, two) in zip(mine, other, strict=True):
        if not same_bits(one, two):
            yield name
    for name in together.package.plan.kv_buffers:
        entries = count - 1 if name.startswith("mtp") else count
        one, two = (kv_entries(*at, entries) for at in ((together, name, here.pages), (alone, name, there.pages)))
        if not same_bits(one, two):
            yield name


def differences(package, weights, lengths: Sequence[int], **options) -> set[str]:
    asked = prompts(Random(str(lengths)), lengths)
    together = prefilled(package, weights, asked, **options)
    alone = [prefilled(package, weights, [prompt]) for prompt in asked]
    return {name for number in range(len(asked)) for name in differing(together, alone[number], number)}


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("budget", [None, 7, 33])
def test_packed_prompts_leave_the_bits_of_single_ones(package, weights, lengths, budget) -> None:
    assert not differences(package, weights, lengths, prefill_budget=budget)


FAULTS = {
    "a later prompt convolves the first one's rows": (
        "mamba2_conv_prefill_*", "projected + i_r * PROJECTED", "projected + t * PROJECTED", "layers_0_conv_ring",
    ),
    "a later prompt folds the first one's rows": (
        "mamba2_scan_prefill_*", "(first + t)", "(0 + t)", "layers_0_state",
    ),
    "a later prompt's drafter pairs the row before it": (
        "drafter_rows_prefill", "tl.where(i_t == 0, before", "tl.where(i_r == 0, before", "mtp_layer_k_cache",
    ),
    "a later prompt's hidden state is kept elsewhere": (
        "prefill_hidden", "tl.load(committed_len + slot) + i_t)", "tl.load(committed_len + slot) + i_r)", "hidden_ring",
    ),
    "prompts are taken to be of one length": (
        "attention_*", "tl.load(row_first + i_b) + tl.minimum", "tl.program_id(1) * count + tl.minimum",
        "layers_2_conv_ring",
    ),
}  # fmt: skip


OUT_OF_SIGHT = ("a later prompt's drafter pairs the row before it",)  # drafts change no token


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_the_rows_of_a_later_prompt_is_found(package, weights, tmp_path: Path, name: str) -> None:
    kernel, right, wrong, buffer = FAULTS[name]
    mutant = copy_package(package.path, tmp_path / "mutant")
    edit(mutant, f"cpu/kernels/{kernel}.py", (right, wrong))
    assert buffer in differences(open_package(mutant), weights, (18, 20, 19))


class Watched:
    """The chunks of every prefill launch, and the slots of every begin, of an engine."""

    def __init__(self, engine: Engine) -> None:
        self.launches: list[list[Chunk]] = []
        self.begins: list[list[int]] = []
        executor = engine.scheduler.executor
        prefill, begin = executor.prefill, executor.begin
        executor.prefill = lambda chunks: (self.launches.append(list(chunks)), prefill(chunks))[1]
        executor.begin = lambda slots, drafts: (self.begins.append(list(slots)), begin(slots, drafts))[1]

    def sizes(self) -> list[list[int]]:
        return [[len(chunk.tokens) for chunk in launch] for launch in self.launches]


@pytest.mark.parametrize(
    ("lengths", "budget", "sizes"),
    [
        ((3, 4, 5, 4), None, [[3, 4, 5, 4]]),
        ((10, 10, 10), None, [[10, 6], [4, 10]]),
        ((40, 3), None, [[16], [3], [16], [8]]),  # one chunk of each prompt per step
        ((40, 3), 20, [[16], [4], [16], [4], [3]]),  # the first prompt has all of the budget until it has ended
        ((9, 9), 12, [[9, 3], [6]]),
    ],
)
def test_how_prompts_are_packed(package, weights, lengths, budget, sizes) -> None:
    engine = Engine(package, weights, drafts=1, prefill_budget=budget)
    watched = Watched(engine)
    for prompt in prompts(Random(1), lengths):
        engine.submit(prompt, max_new_tokens=2)
    drain(engine)
    assert watched.sizes() == sizes


def test_prompts_that_end_together_begin_together(package, weights) -> None:
    engine = Engine(package, weights, drafts=2)
    watched = Watched(engine)
    for prompt in prompts(Random(2), (2, 3, 4)):
        engine.submit(prompt, max_new_tokens=3)
    engine.step()
    assert [len(slots) for slots in watched.begins] == [3]


def test_a_launch_takes_as_many_prompts_as_the_plan_allows(package, weights) -> None:
    engine = Engine(package, weights, drafts=0)
    executor: Executor = engine.scheduler.executor
    assert executor.limits.prefill_slots == 4
    watched = Watched(engine)
    for prompt in prompts(Random(3), (1,) * 6):
        engine.submit(prompt, max_new_tokens=4)
    drain(engine)
    assert watched.sizes() == [[1, 1, 1, 1], [1, 1]]
    assert sorted(key[1] for key in executor.graphs if key[0] is Phase.PREFILL) == [4]

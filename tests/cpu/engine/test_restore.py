"""A restore puts exactly a checkpoint into a slot, as copies of its parts one by one do, and no other byte changes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from codegen.verify.isolation import snapshot
from runtime.buffers import Buffers
from runtime.drafter import Drafter
from runtime.engine import Engine
from runtime.executor import Executor
from tests.cpu.engine.toys import same_bits
from tests.cpu.verify.mutants import copy_package, edit

HOST_WRITES = (
    *("slot_idx", "page_table", "committed_len", "state_len"),
    *("restore_checkpoint", "page_from", "page_to"),
)
FAULTS = (
    ("mamba2_restore_conv_*.py", ("past = position - (WIDTH - 1) + j", "past = position - WIDTH + j")),
    ("mamba2_restore_conv_*.py", ("& (past >= 0)", "")),
    ("mamba2_restore_state_*.py", ("(slot.to(tl.int64) * HEADS + i_h)", "(slot.to(tl.int64) * HEADS)")),
    ("restore_hidden.py", ("(tl.load(committed_len + slot) - 1)", "tl.load(committed_len + slot)")),
    ("copy_page_*.py", ("tl.load(v_cache + source_tile", "tl.load(k_cache + source_tile")),
    ("copy_page_*.py", ("source_tile = (source * KV_HEADS", "source_tile = (target * KV_HEADS")),
)


def filled(buffers: Buffers) -> None:
    """Finite noise in all that slots, checkpoints and pages hold, so that no two places agree."""
    generator = torch.Generator().manual_seed(0)
    for buffer in buffers.plan.role("state", "ring", "kv", "checkpoint"):
        tensor = buffers[buffer.name]
        tensor.copy_(torch.randn(tensor.shape, generator=generator))


def copied_by_hand(
    executor: Executor, before: dict[str, Tensor], slot: int, position: int, row: int, pages: tuple[int, int] | None
) -> dict[str, Tensor]:
    """What the live buffers must hold afterwards, from docs/architecture.md: one copy per part."""
    plan, found = executor.package.plan, {name: tensor.clone() for name, tensor in before.items()}
    for part in plan.checkpoint_parts:
        live, kept = found[part.live][slot], before[part.checkpoint][row]
        if part.kind == "slot":
            live.copy_(kept)
        elif part.kind == "hidden":
            live[(position - 1) % plan.limits.ring] = kept
        else:
            for j in range(part.width):
                if position - part.width + j >= 0:
                    live[(position - part.width + j) % plan.limits.ring] = kept[j]
    if pages is not None:
        for name in plan.kv_buffers:
            found[name][pages[1]] = before[name][pages[0]]
    return found


def differing(engine: Engine, slot: int, position: int, row: int, pages: tuple[int, int] | None) -> list[str]:
    """Restore over noise; names of the buffers that do not hold what they must."""
    executor = engine.scheduler.executor
    filled(engine.buffers)
    before = snapshot(engine.buffers)
    expected = copied_by_hand(executor, before, slot, position, row, pages)
    executor.restore(slot, SimpleNamespace(position=position, index=row), [3, 1], pages)
    after = snapshot(engine.buffers)
    assert executor.views["committed_len"][slot] == executor.views["state_len"][slot] == position
    return [name for name, tensor in after.items() if name not in HOST_WRITES and not same_bits(tensor, expected[name])]


def cases(engine: Engine):
    """(slot, position, row, pages): the first tokens, before the window is full, and around the end of the ring."""
    limits = engine.package.plan.limits
    positions = (1, 2, 3, 4, limits.ring - 1, limits.ring, limits.ring + 1, 3 * limits.ring + 2)
    for number, position in enumerate(positions):
        pages = None if number % 3 == 0 else (number % limits.num_pages, limits.num_pages - 1)
        yield number % limits.max_slots, position, number % limits.checkpoint_slots, pages


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("drafting", [False, True])
def test_a_restore_is_a_copy_of_each_part_and_touches_nothing_else(package, weights, eager, drafting):
    with Engine(package, weights, drafts=3 if drafting else 0, eager=eager) as engine:
        assert engine.scheduler.executor.drafting is (engine.scheduler.executor.drafter is Drafter.MTP)
        for case in cases(engine):
            assert differing(engine, *case) == [], case


@pytest.mark.parametrize(("kernel", "change"), FAULTS)
def test_a_faulty_restore_is_found(package, weights, tmp_path, kernel, change):
    faulty = copy_package(package.path, tmp_path / "faulty")
    edit(faulty, f"cpu/kernels/{kernel}", change)
    with Engine(faulty, weights, drafts=3) as engine:
        assert any(differing(engine, *case) for case in cases(engine))


@pytest.mark.parametrize("bucket", [1, 2])
def test_several_slots_are_restored_in_one_launch_and_padding_in_none(package, weights, bucket):
    """The section takes a bucket, as the others do."""
    with Engine(package, weights, eager=True) as engine:
        executor, views = engine.scheduler.executor, engine.scheduler.executor.views
        filled(engine.buffers)
        before = expected = snapshot(engine.buffers)
        executor.seat_slots(range(bucket - 1))
        for slot in range(bucket):
            views["committed_len"][slot], views["restore_checkpoint"][slot] = 5 + slot, slot
            views["page_from"][slot] = views["page_to"][slot] = -1
            if slot < bucket - 1:
                expected = copied_by_hand(executor, expected, slot, 5 + slot, slot, None)
        with executor.package.compiling():
            executor.package.step.restore(engine.buffers.b, bucket)
        after = snapshot(engine.buffers)
        parts = [name for part in engine.package.plan.checkpoint_parts for name in (part.live, part.checkpoint)]
        assert before.keys() == after.keys()
        assert [name for name in parts if not same_bits(after[name], expected[name])] == []

"""The host pool: what goes there comes back to the bit, each page is there once, and it is as large as it says."""

from __future__ import annotations

import dataclasses
from random import Random

import pytest
import torch

from runtime import errors
from runtime.checkpoints.checkpoint import Checkpoint
from runtime.checkpoints.host_pool import HostCopy, HostPool, host_pool_bytes, host_pool_size
from runtime.checkpoints.image import ImageLayout, PageKey, image_layout
from runtime.checkpoints.retention import prefix_digests
from runtime.engine import Engine
from tests.cpu.engine.toys import (
    Ask,
    Oracle,
    agreeing_weights,
    check_nothing_left,
    checkpoint_parts,
    drain,
    kv_entries,
    poison_free,
    same_bits,
    toy_spec,
    with_interval,
    write_toy,
)
from tests.cpu.tiers.images import LAYOUT, LAYOUTS, assert_exact, image_of

PROMPT = tuple(b"amazingly few discotheques provide jukeboxes")
ROOMY = 1 << 20


def contents(engine: Engine, checkpoint: Checkpoint) -> list[torch.Tensor]:
    """Every bit that the prefix decides: parts, the target's entries < position, the drafter's < position - 1."""
    found = [part.clone() for _, part in checkpoint_parts(engine, checkpoint)]
    for name in engine.scheduler.tiers.device.layout.page:
        count = checkpoint.position - name.startswith("mtp")
        found.append(kv_entries(engine, name, checkpoint.pages, count))
    return found


def empty_device(engine: Engine) -> None:
    """Demote every checkpoint, then overwrite the rows and pages they had."""
    cache = engine.scheduler.cache
    while cache.evict():
        pass
    assert not [checkpoint for checkpoint in cache.all() if checkpoint.index is not None]
    assert cache.pages.in_use == 0
    poison_free(engine)


def fill(engine: Engine) -> None:
    """Answers that share prefixes, and leave them in the middle of pages."""
    for ask in (Ask(PROMPT, 20), Ask(PROMPT[:16], 9, 0.9, 3), Ask((*PROMPT[:21], 1, 2), 30), Ask(PROMPT[:1], 3)):
        ask.submit(engine)
        drain(engine)


@pytest.mark.parametrize("interval", [None, 1, 5])
@pytest.mark.parametrize("drafts", [0, 3])
def test_what_comes_back_is_what_went_to_the_bit(package, weights, interval, drafts):
    with Engine(with_interval(package, interval), weights, drafts=drafts, host_pool=ROOMY) as engine:
        fill(engine)
        cache = engine.scheduler.cache
        kept = {checkpoint.key: contents(engine, checkpoint) for checkpoint in cache if checkpoint.index is not None}
        assert len(kept) > 5 and {key[0] % 8 for key in kept} >= {0, 1, 4}
        empty_device(engine)
        assert cache.counts.demoted >= len(kept)
        for checkpoint in list(cache):
            assert engine.scheduler.tiers.bring(checkpoint)
            poison_free(engine)
            if checkpoint.key in kept:
                found = contents(engine, checkpoint)
                assert all(same_bits(a, b) for a, b in zip(found, kept[checkpoint.key], strict=True)), checkpoint.key
        assert cache.counts.promoted >= len(kept)
        check_nothing_left(engine)


@pytest.mark.parametrize("drafts", [0, 3, 7])
def test_an_answer_goes_on_from_the_host_pool_as_from_the_device(package, weights, oracle, drafts):
    """What comes back shares the pages of others that are there, and its own are free of what others wrote."""
    with Engine(with_interval(package, 8), weights, drafts=drafts, host_pool=ROOMY) as engine:
        ask = Ask(PROMPT, 20)
        first = ask.submit(engine)
        drain(engine)
        for cut, more in ((44, ()), (44, (1, 2)), (24, (9,)), (16, ()), (8, (3, 3))):
            empty_device(engine)
            again = Ask((*PROMPT[:cut], *more), 20)
            request = again.submit(engine)
            drain(engine, poison=True)
            assert (request.restored_position, request.recomputed_tokens) == (cut, 0)
            assert (request.output, request.finish_reason) == oracle(again)
            if again == ask:
                assert request.accepted == first.accepted
        assert engine.scheduler.cache.counts.promoted == 5
        check_nothing_left(engine)


@pytest.mark.parametrize("kind", ["mamba", "attention"])
def test_models_of_one_kind_of_layer_go_to_the_host_pool_too(tmp_path, cache, kind):
    """Without attention there are no pages to be moved, without Mamba no states."""
    spec = toy_spec(mtp=False, pattern=(kind, kind))
    package, weights = write_toy(tmp_path / "package", cache, spec), agreeing_weights(spec)
    oracle = Oracle(package, weights)
    with Engine(with_interval(package, 5), weights, host_pool=ROOMY) as engine:
        fill(engine)
        published = {checkpoint.key for checkpoint in engine.scheduler.cache}
        on_device = [checkpoint for checkpoint in engine.scheduler.cache if checkpoint.index is not None]
        kept = {checkpoint.key: contents(engine, checkpoint) for checkpoint in on_device}
        for cut in (44, 43, 21, 16):
            empty_device(engine)
            ask = Ask((*PROMPT[:cut], 7), 12)
            longest = max(position for position, _ in published & set(prefix_digests(ask.prompt, range(45))))
            request = ask.submit(engine)
            drain(engine, poison=True)
            assert (request.restored_position, request.recomputed_tokens) == (longest, cut - longest)
            assert (request.output, request.finish_reason) == oracle(ask)
            for checkpoint in engine.scheduler.cache:
                if checkpoint.index is not None and checkpoint.key in kept:
                    found = contents(engine, checkpoint)
                    assert all(same_bits(a, b) for a, b in zip(found, kept[checkpoint.key], strict=True))
        check_nothing_left(engine)


def test_pages_that_come_back_are_shared_with_those_that_are_there(package, weights):
    with Engine(with_interval(package, 8), weights, drafts=3, host_pool=ROOMY) as engine:
        Ask(PROMPT, 2).submit(engine)
        drain(engine)
        empty_device(engine)
        shallow, *_, deep = sorted(engine.scheduler.cache, key=lambda checkpoint: checkpoint.position)[1:]
        assert engine.scheduler.tiers.bring(shallow) and engine.scheduler.tiers.bring(deep)
        assert (shallow.position, shallow.shared_pages) == (16, 1)
        assert [page in shallow.pages for page in deep.pages] == [True] + [False] * (len(deep.pages) - 1)


def test_pages_of_equal_identity_are_kept_once(package, weights):
    with Engine(with_interval(package, 4), weights, drafts=3, host_pool=ROOMY) as engine:
        fill(engine)
        empty_device(engine)
        tiers, layout = engine.scheduler.tiers, engine.scheduler.tiers.device.layout
        keys = [layout.page_keys(c.tokens, c.position) for c in engine.scheduler.cache]
        once = {key for several in keys for key in several}
        rows, pages = tiers.host.size
        assert tiers.host.free == (rows - len(keys), pages - len(once))
        assert len(once) < sum(map(len, keys)) / 2


def test_what_the_prefix_does_not_decide_is_zero_in_an_image(package, weights):
    """Two requests of one prompt go on differently: the image of its end is the same, whoever wrote it."""
    images = []
    for seed in (1, 2):
        with Engine(with_interval(package, 0), weights, drafts=3) as engine:
            request = Ask(PROMPT, 20, temperature=1.3, seed=seed).submit(engine)
            drain(engine, poison=True)
            checkpoint = engine.scheduler.cache.find(request.prompt)
            images.append(engine.scheduler.tiers.device.image(checkpoint))
    first, second = images
    assert [page.key for page in first.pages] == [page.key for page in second.pages]
    for a, b in zip(first.pages, second.pages, strict=True):
        assert all(same_bits(a.tensors[name], b.tensors[name]) for name in a.tensors)


@pytest.mark.parametrize("mtp", [True, False])
@pytest.mark.parametrize("budget", [23_888, 100_000, 123_457, 1 << 20])
def test_the_pool_takes_what_it_says_and_no_more_than_it_may(tmp_path, cache, budget, mtp):
    spec = toy_spec(mtp=mtp, checkpoint_slots=6)
    package, weights = write_toy(tmp_path / "package", cache, spec), agreeing_weights(spec)
    with Engine(package, weights, host_pool=budget) as engine:
        host = engine.scheduler.tiers.host
        tensors = [*host.rows.values(), *host.pages.values()]
        allocated = sum(tensor.untyped_storage().nbytes() for tensor in tensors)
        assert allocated == host.bytes == engine.memory["host_pool"] == engine.stats().memory["host_pool"]
        assert 0 < allocated <= budget
        rows, pages = host.size
        assert pages == rows * -(-package.plan.limits.num_pages // 6)
        assert host_pool_bytes(host.layout, rows + 1, pages * (rows + 1) // rows) > budget


def test_without_a_budget_there_is_no_pool_and_with_too_little_an_error(package, weights):
    layout = image_layout(package.plan, "", True)
    limits = package.plan.limits
    least = host_pool_bytes(layout, 1, -(-limits.num_pages // limits.checkpoint_slots))
    assert "host_pool" not in Engine(package, weights).memory or Engine(package, weights).memory["host_pool"] == 0
    assert Engine(package, weights, host_pool=least).scheduler.tiers.host.size[0] == 1
    for budget in (1, least - 1):
        with pytest.raises(errors.BadOption, match=f"at least {least} bytes"):
            Engine(package, weights, host_pool=budget)
    for wrong in (-1, 1.5, True, "1 GiB", 1 << 80):
        with pytest.raises(errors.BadOption, match="host_pool"):
            Engine(package, weights, host_pool=wrong)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_pool_is_as_large_as_the_budget_allows(name):
    layout = LAYOUTS[name]
    for pages_per_row in (0, 1, 3) if layout.parts else (1, 3):
        one = host_pool_bytes(layout, 1, pages_per_row)
        for budget in (0, one - 1, one, one + 1, 5 * one - 1, 5 * one):
            rows, pages = host_pool_size(layout, budget, pages_per_row)
            assert (rows, pages) == (budget // one, budget // one * pages_per_row)
            assert HostPool(layout, rows, pages).bytes == host_pool_bytes(layout, rows, pages) <= budget


class Shelf:
    """What a pool must hold, plainly: the texts of its copies."""

    def __init__(self, layout: ImageLayout, rows: int, pages: int) -> None:
        self.layout, self.rows, self.pages = layout, rows, pages
        self.texts: list[tuple[int, ...]] = []

    def keys(self, *more: tuple[int, ...]) -> set[PageKey]:
        return {key for text in (*self.texts, *more) for key in self.layout.page_keys(text, len(text))}

    def fits(self, text: tuple[int, ...]) -> bool:
        return len(self.texts) < self.rows and len(self.keys(text)) <= self.pages

    def free(self) -> tuple[int, int]:
        return self.rows - len(self.texts), self.pages - len(self.keys())


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("seed", range(6))
def test_a_pool_agrees_with_a_shelf_of_texts(name, seed):
    rng, layout = Random(seed), LAYOUTS[name]
    pool, shelf = HostPool(layout, 5, 12), Shelf(layout, 5, 12)
    copies: list[tuple[tuple[int, ...], HostCopy]] = []
    for _ in range(150):
        text = tuple(rng.randint(0, 1) for _ in range(rng.randint(1, 3 * LAYOUT.page_size + 2)))
        keys, action = layout.page_keys(text, len(text)), rng.random()
        if action < 0.1:
            copies = [copy for copy in copies if rng.random() < 0.7]
            shelf.texts = [text for text, _ in copies]
            pool.reset([copy for _, copy in copies])
        elif action < 0.4 and copies:
            text, copy = copies.pop(rng.randrange(len(copies)))
            shelf.texts.remove(text)
            pool.drop(copy)
        elif text not in shelf.texts:
            assert pool.fits(keys) == shelf.fits(text)
            if pool.fits(keys):
                copies.append((text, pool.put(image_of(text, layout))))
                shelf.texts.append(text)
        assert pool.free == shelf.free()
        for text, copy in copies:
            image = pool.image(copy, text, len(text), image_of(text, layout).digest)
            assert_exact(image, layout)


def test_a_full_pool_gives_up_what_is_worth_least(package, weights, oracle):
    """Far more than fits: the pool stays full, nothing leaks, and what is found is right."""
    limits = dataclasses.replace(package.plan.limits, checkpoint_slots=3, checkpoint_interval=4)
    small = dataclasses.replace(package, plan=dataclasses.replace(package.plan, limits=limits))
    rng = Random(7)
    with Engine(small, weights, drafts=3, host_pool=130_000) as engine:
        asks = [Ask((*PROMPT[: rng.randint(1, 44)], rng.randrange(256)), 6, seed=seed) for seed in range(6)]
        for ask in [rng.choice(asks) for _ in range(40)]:
            request = ask.submit(engine)
            drain(engine, poison=True)
            assert (request.output, request.finish_reason) == oracle(ask)
            check_nothing_left(engine)
        counts = engine.stats().checkpoint_counts
        assert min(counts.demoted, counts.promoted, counts.evicted) > 10
        assert engine.scheduler.tiers.host.free[0] == 0

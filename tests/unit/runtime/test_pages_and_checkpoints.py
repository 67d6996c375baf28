"""The page pool and the checkpoint store, in lock-step with models that cannot be wrong."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from runtime.checkpoints.cache import CheckpointStore, SeenPrefixes
from runtime.checkpoints.pages import PagePool
from runtime.checkpoints.retention import PrefixHash, prefix_digests

PAGES, ROWS, PAGE_SIZE = 7, 3, 2


class PoolMachine(RuleBasedStateMachine):
    """Holders take, share and drop pages; the model is a counter per page."""

    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(PAGES)
        self.model: Counter[int] = Counter()

    @precondition(lambda self: self.pool.free)
    @rule(target=held)
    def take(self) -> int:
        page = self.pool.take()
        assert self.model[page] == 0
        self.model[page] += 1
        return page

    @rule(target=held, page=held)
    def share(self, page: int) -> int:
        if self.model[page]:
            self.pool.share([page])
            self.model[page] += 1
        return page

    @rule(page=held)
    def drop(self, page: int) -> None:
        if self.model[page]:
            self.pool.drop([page])
            self.model[page] -= 1

    @invariant()
    def agree(self) -> None:
        assert [self.pool.references(page) for page in range(PAGES)] == [self.model[page] for page in range(PAGES)]
        free = {page for page in range(PAGES) if not self.model[page]}
        assert set(self.pool.free_pages()) == free
        assert self.pool.free == len(free) and self.pool.in_use == PAGES - len(free)


class StoreMachine(RuleBasedStateMachine):
    """Publish, find, touch and evict; the model is a list of (tokens, row), least recently used first."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(64)
        self.store = CheckpointStore(ROWS, self.pool, drafting=True, stamp="s")
        self.model: list[tuple[tuple[int, ...], int]] = []
        self.reserved: list[int] = []

    texts = st.lists(st.integers(0, 1), min_size=1, max_size=5).map(tuple)

    def key(self, tokens: tuple[int, ...]) -> tuple[int, bytes]:
        return prefix_digests(tokens, [len(tokens)])[0]

    @rule(tokens=texts, protect=st.booleans())
    def write(self, tokens: tuple[int, ...], protect: bool) -> None:
        if any(tokens == known for known, _ in self.model):
            return
        protected = self.key(self.model[0][0]) if protect and self.model else None
        row = self.store.reserve(protected)
        full = len(self.model) + len(self.reserved) == ROWS
        victims = self.model[1:] if protected is not None else self.model
        if full and not victims:
            assert row is None
            return
        assert row is not None
        if full:
            victim = victims[0]
            assert row == victim[1]
            self.model.remove(victim)
        pages = [self.pool.take() for _ in range(-(-len(tokens) // PAGE_SIZE))]
        self.store.publish(*self.key(tokens), row, pages)
        self.pool.drop(pages)
        self.model.append((tokens, row))

    @rule()
    def reserve_only(self) -> None:
        if len(self.model) + len(self.reserved) < ROWS:
            self.reserved.append(self.store.reserve())

    @precondition(lambda self: self.reserved)
    @rule()
    def release(self) -> None:
        self.store.release(self.reserved.pop())

    @rule(tokens=texts)
    def find(self, tokens: tuple[int, ...]) -> None:
        fits = [known for known, _ in self.model if tokens[: len(known)] == known]
        found = self.store.find(tokens)
        assert (found.position if found else 0) == max(map(len, fits), default=0)
        if found:
            assert self.store.usable(found, tokens)
            self.store.touch(found.key)
            entry = next(entry for entry in self.model if entry[0] == tokens[: found.position])
            self.model.remove(entry)
            self.model.append(entry)

    @rule()
    def evict_around_a_lock(self) -> None:
        if len(self.model) > 1:
            with self.store.in_use(next(iter(self.store))):
                assert self.store.evict()
            del self.model[1]

    @invariant()
    def agree(self) -> None:
        assert [checkpoint.key for checkpoint in self.store] == [self.key(tokens) for tokens, _ in self.model]
        used = {row for _, row in self.model} | set(self.reserved)
        assert set(self.store.free_rows()) == set(range(ROWS)) - used
        assert self.pool.in_use == sum(-(-len(tokens) // PAGE_SIZE) for tokens, _ in self.model)


TestPool = PoolMachine.TestCase
TestStore = StoreMachine.TestCase
TestPool.settings = TestStore.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.lists(st.integers(0, 257), max_size=30), st.lists(st.integers(0, 30), max_size=6))
def test_a_digest_identifies_exactly_its_prefix(tokens: list[int], cuts: list[int]) -> None:
    running = PrefixHash()
    for cut in sorted(cut for cut in cuts if cut <= len(tokens)):
        assert running.at(tokens, cut) == PrefixHash().at(list(tokens[:cut]), cut)
    digests = [digest for _, digest in prefix_digests(tokens, range(1, len(tokens) + 1))]
    assert len(set(digests)) == len(tokens)


def test_seen_prefixes_are_whole_pages_and_bounded() -> None:
    seen = SeenPrefixes(page_size=4, capacity=3)
    seen.add(range(11))
    assert seen.longest([*range(9), 99]) == 8
    assert seen.longest([*range(7)]) == 4
    assert seen.longest([1, 2, 3, 4]) == 0
    seen.add(range(20, 32))
    assert seen.longest([*range(9)]) == 0

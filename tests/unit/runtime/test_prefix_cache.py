"""The prefix cache in lock-step with one that has no tree: rows, pages with reference counts, and published keys."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from runtime.checkpoints.cache import Below, PrefixCache
from runtime.checkpoints.checkpoint import Checkpoint, Reason
from runtime.checkpoints.pages import PagePool
from runtime.checkpoints.retention import prefix_digests
from runtime.errors import OutOfPages, PinRefused
from tests.unit.runtime.naive_cache import PAGE_BYTES, ROW_BYTES, Entry, NaiveCache

ROWS, PAGES, PAGE_SIZE, RESERVED, ROOM = 4, 9, 2, 4, 2
COUNTED = ("written", "evicted", "skipped", "demoted", "given_up")
texts = st.text("ab", min_size=1, max_size=6)


def ids(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def key(text: str) -> tuple[int, bytes]:
    [found] = prefix_digests(ids(text), [len(text)])
    return found


class Shelf(Below):
    """A tier below with room for a few copies. writing: on their way to a file, which keeps them where they are."""

    def __init__(self, room: int) -> None:
        self.room, self.copies, self.writing = room, list[Checkpoint](), list[Checkpoint]()

    def settle(self) -> bool:
        writing, self.writing = self.writing, []
        for checkpoint in writing:
            checkpoint.busy -= 1
        return bool(writing)

    def demote(self, checkpoint: Checkpoint) -> bool:
        assert checkpoint.index is not None and checkpoint.copy is None
        if len(self.copies) == self.room:
            return False
        checkpoint.copy = object()
        self.copies.append(checkpoint)
        return True

    def discard(self, checkpoint: Checkpoint) -> None:
        self.copies.remove(checkpoint)


def new_cache(rows: int = ROWS, pages: int = PAGES, room: int = 0, reserved: int = 0) -> PrefixCache:
    options = {"row_bytes": ROW_BYTES, "page_bytes": PAGE_BYTES, "reserved_pages": reserved, "below": Shelf(room)}
    return PrefixCache(rows, PagePool(pages, rows), False, "stamp", PAGE_SIZE, **options)


class CacheMachine(RuleBasedStateMachine):
    """The model decides by itself who may go; where several are worth the same, the cache may choose among them.

    holds: of requests, as the cache's objects: the model's entry may be gone, and another have come for its text.
    writing: entries on their way to a file.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cache = new_cache(room=ROOM, reserved=RESERVED)
        self.model = NaiveCache(ROWS, PAGES, ROOM, RESERVED)
        self.holds: list[tuple[Checkpoint, Entry]] = []
        self.scopes: list[tuple[AbstractContextManager[None], Entry]] = []
        self.writing: list[Entry] = []

    # Doing the same on both sides

    def pick(self, which: Any, wanted: Callable[[Entry], bool] = lambda _: True) -> tuple[Checkpoint, Entry] | None:
        """Any entry, and the cache's object for it."""
        entries = sorted(filter(wanted, self.model.entries), key=lambda entry: entry.text)
        if not entries:
            return None
        entry = which.choice(entries)
        return self.cache.get(key(entry.text)), entry

    def left(self, candidates: list[Entry], objects: dict[str, Checkpoint]) -> Entry | None:
        """Which of the candidates lost its row."""
        return next((entry for entry in candidates if objects[entry.text].index is None), None)

    def settle(self) -> bool:
        writing, self.writing = self.writing, []
        for entry in writing:
            entry.busy -= 1
        return bool(writing)

    def next_to_leave(self, protected: str | None, for_pages: bool) -> tuple[list[Entry], Callable[[Entry], None]]:
        """Who may go next, and how: for pages the held ones too, then those being written, then the protected one."""
        if (least := self.model.least(protected)) or not for_pages:
            return least, self.model.evict
        if last := self.model.last_resort():
            return last, self.model.give_up
        return self.next_to_leave(protected, True) if self.settle() else (self.model.least(), self.model.evict)

    @contextmanager
    def leaving(self, until: Callable[[], bool], protected: str | None = None, for_pages: bool = False):
        """Within, the cache may take rows; then the model says one by one whose they must have been."""
        objects = {entry.text: self.cache.get(key(entry.text)) for entry in self.model.entries}
        on_device = [text for text, checkpoint in objects.items() if checkpoint.index is not None]
        try:
            yield
        finally:
            gone = {text for text in on_device if objects[text].index is None}
            while gone:
                assert not until(), f"{gone} left without need"
                candidates, go = self.next_to_leave(protected, for_pages)
                entry = self.left(candidates, objects)
                assert entry is not None, f"{gone} left, not {[e.text for e in candidates]}"
                go(entry)
                gone.remove(entry.text)

    def take_page(self, protect: bool = False) -> int | None:
        protected = self.protected(protect)
        try:
            with self.leaving(lambda: bool(self.model.free_pages()), protected, for_pages=True):
                page = self.cache.take_page(None if protected is None else key(protected))
        except OutOfPages:
            assert not (self.model.free_pages() or self.next_to_leave(None, True)[0])
            return None
        assert page in self.model.free_pages()
        return page

    def take_pages(self, text: str, protect: bool = False) -> list[int] | None:
        """The pages of a seat that holds a text: what the nearest checkpoint above can share, and new ones."""
        seat = list(self.cache.shareable(ids(text), len(text)))
        above = [e for e in self.model.entries if e.row is not None and e.text != text and text.startswith(e.text)]
        nearest = max(above, key=lambda entry: len(entry.text), default=Entry(""))
        assert seat == list(nearest.pages[: len(nearest.text) // PAGE_SIZE])
        self.cache.pages.share(seat)
        self.model.seats.append(seat)
        while len(seat) * PAGE_SIZE < len(text):
            page = self.take_page(protect)
            if page is None:
                self.cache.pages.drop(seat)
                self.model.seats.remove(seat)
                return None
            seat.append(page)
        return seat

    def reserve(self, protected: str | None = None) -> int | None:
        free = self.model.free_rows()
        with self.leaving(lambda: bool(self.model.free_rows()), protected):
            row = self.cache.reserve(None if protected is None else key(protected))
        if row is None:
            assert not free and not self.model.least(protected)
            self.model.counts["skipped"] += 1
        else:
            assert row in self.model.free_rows()
            self.model.reserved.append(row)
        return row

    def publish(self, text: str, row: int, pages: list[int], reasons: Reason) -> None:
        checkpoint = self.cache.publish(ids(text), *key(text), row, pages, reasons)
        entry = self.model.get(text)
        self.model.reserved.remove(row)
        self.model.known.append(text)
        if entry is None:
            entry = Entry(text)
            self.model.entries.append(entry)
            self.model.counts["written"] += 1
        if entry.row is None:
            entry.row, entry.pages = row, tuple(pages)
        entry.published |= bool(reasons)
        self.model.touch(entry)
        assert checkpoint is self.cache.get(key(text))

    # Rules

    def protected(self, protect: bool) -> str | None:
        """One that would go next."""
        return self.model.least()[0].text if protect and self.model.least() else None

    @initialize(texts=st.lists(texts, min_size=3, max_size=6))
    def begin(self, texts: list[str]) -> None:
        for text in texts:
            self.write(text, False, False, False)

    @rule(text=texts, hidden=st.booleans(), stays=st.booleans(), protect=st.booleans())
    def write(self, text: str, hidden: bool, stays: bool, protect: bool) -> None:
        """A seat processes a text and publishes or holds a checkpoint of all of it; it may stay and keep its pages."""
        self.cache.learn(ids(text))
        self.model.known.append(text)
        seat = self.take_pages(text, protect)
        if seat is None:
            return
        row = self.reserve(self.protected(protect))
        if row is not None:
            self.publish(text, row, seat, Reason.HELD if hidden else Reason.PROMPT_END)
            if hidden:
                self.hold(text)
        if not stays:
            self.leave(seat)

    def leave(self, seat: list[int]) -> None:
        self.cache.pages.drop(seat)
        self.model.seats = [other for other in self.model.seats if other is not seat]

    @precondition(lambda self: any(entry not in self.model.entries for _, entry in self.holds))
    @rule(which=st.randoms(use_true_random=False), hidden=st.booleans())
    def write_again(self, which: Any, hidden: bool) -> None:
        """A text whose checkpoint was given up under those that hold it."""
        texts = sorted(entry.text for _, entry in self.holds if entry not in self.model.entries)
        self.write(which.choice(texts), hidden, False, False)

    @rule(which=st.randoms(use_true_random=False))
    def bring_back(self, which: Any) -> None:
        """What only the tier below has, as the tiers do it: its copy stays meanwhile."""
        if picked := self.pick(which, lambda entry: entry.row is None):
            with self.cache.in_use(picked[0]):
                picked[1].busy += 1
                self.write(picked[1].text, not picked[1].published, False, False)
            picked[1].busy -= 1

    @precondition(lambda self: self.model.seats)
    @rule(which=st.randoms(use_true_random=False))
    def seat_leaves(self, which: Any) -> None:
        self.leave(which.choice(self.model.seats))

    @rule(which=st.randoms(use_true_random=False), times=st.integers(1, 3), stays=st.booleans())
    def write_on(self, which: Any, times: int, stays: bool) -> None:
        """Texts that go on where a known one does, or otherwise."""
        for _ in range(times):
            known = which.choice([*sorted(self.model.known), ""])
            text = known[: which.randint(0, len(known))] + which.choice(["a", "b", "ab", "ba"])
            self.write(text[:6], which.random() < 0.2, stays, which.random() < 0.3)

    @rule(protect=st.booleans())
    def seat_grows(self, protect: bool) -> None:
        page = self.take_page(protect)
        if page is not None:
            self.model.seats.append([page])

    @rule(text=texts)
    def learn(self, text: str) -> None:
        self.cache.learn(ids(text))
        self.model.known.append(text)

    @rule(protect=st.booleans())
    def reserve_only(self, protect: bool) -> None:
        self.reserve(self.protected(protect))

    @precondition(lambda self: self.model.reserved)
    @rule()
    def release(self) -> None:
        self.cache.release(self.model.reserved.pop())

    def hold(self, text: str) -> None:
        checkpoint, entry = self.cache.get(key(text)), self.model.get(text)
        self.cache.hold(checkpoint)
        entry.holders += 1
        self.holds.append((checkpoint, entry))

    @rule(which=st.randoms(use_true_random=False))
    def hold_any(self, which: Any) -> None:
        if picked := self.pick(which):
            self.hold(picked[1].text)

    @precondition(lambda self: self.holds)
    @rule(which=st.randoms(use_true_random=False))
    def drop(self, which: Any) -> None:
        checkpoint, entry = self.holds.pop(which.randrange(len(self.holds)))
        self.cache.drop(checkpoint)
        entry.holders -= 1
        if not entry.holders and not entry.published and entry in self.model.entries:
            self.model.entries.remove(entry)

    @rule(which=st.randoms(use_true_random=False))
    def pin(self, which: Any) -> None:
        picked = self.pick(which, lambda entry: entry.published and entry.row is not None)
        if picked is None:
            return
        checkpoint, entry = picked
        if self.model.may_pin(entry):
            self.cache.pin(checkpoint)
            entry.pins += 1
        else:
            with pytest.raises(PinRefused):
                self.cache.pin(checkpoint)

    @rule(which=st.randoms(use_true_random=False))
    def unpin(self, which: Any) -> None:
        if picked := self.pick(which):
            self.cache.unpin(picked[0])
            picked[1].pins = max(0, picked[1].pins - 1)

    @rule(which=st.randoms(use_true_random=False))
    def begin_to_use(self, which: Any) -> None:
        if picked := self.pick(which):
            scope = self.cache.in_use(picked[0])
            scope.__enter__()
            picked[1].busy += 1
            self.scopes.append((scope, picked[1]))

    @precondition(lambda self: self.scopes)
    @rule(which=st.randoms(use_true_random=False))
    def end_to_use(self, which: Any) -> None:
        scope, entry = self.scopes.pop(which.randrange(len(self.scopes)))
        scope.__exit__(None, None, None)
        entry.busy -= 1

    @rule(which=st.randoms(use_true_random=False))
    def begin_to_write(self, which: Any) -> None:
        if picked := self.pick(which, lambda entry: entry.published and entry.row is not None):
            picked[0].busy += 1
            self.cache.below.writing.append(picked[0])
            picked[1].busy += 1
            self.writing.append(picked[1])

    @rule()
    def end_to_write(self) -> None:
        assert self.cache.below.settle() == self.settle()

    @rule(which=st.randoms(use_true_random=False), reason=st.sampled_from([Reason.GRID, Reason.ASKED, Reason.HELD]))
    def use(self, which: Any, reason: Reason) -> None:
        if picked := self.pick(which):
            if reason:
                self.cache.justify(picked[0], reason)
            else:
                self.cache.touch(picked[0])
            picked[1].published |= bool(reason)
            self.model.touch(picked[1])

    @rule(protect=st.booleans())
    def evict(self, protect: bool) -> None:
        protected, evicted = self.protected(protect), self.model.counts["evicted"]
        some = bool(self.model.least(protected))
        with self.leaving(lambda: self.model.counts["evicted"] > evicted, protected):
            assert self.cache.evict(None if protected is None else key(protected)) == some
        assert self.model.counts["evicted"] == evicted + some

    @rule(text=st.text("ab", min_size=1, max_size=4))
    def clear(self, text: str) -> None:
        going = [entry for entry in self.model.entries if entry.free_to_go and entry.text.startswith(text)]
        assert self.cache.clear(lambda c: bytes(c.tokens[: len(text)]).decode() == text) == len(going)
        self.model.entries = [entry for entry in self.model.entries if entry not in going]

    @rule(which=st.randoms(use_true_random=False))
    def lose_copy(self, which: Any) -> None:
        picked = self.pick(which, lambda e: e.copied and not (e.row is None and (e.holders or e.busy)))
        if picked is not None:
            self.cache.below.copies.remove(picked[0])
            self.cache.lost_copy(picked[0])
            self.model.lose_copy(picked[1])

    @rule(text=texts, seldom=st.integers(0, 3))
    def interrupt(self, text: str, seldom: int) -> None:
        """In the middle of a hold: written, and nobody's yet."""
        if seldom:
            return
        seat, row = self.take_pages(text), self.reserve()
        if seat is not None and row is not None:
            self.publish(text, row, seat, Reason.HELD)
        self.reset()

    def reset(self) -> None:
        self.cache.reset()
        self.model.reset()
        self.cache.below.copies = [c for c in self.cache.all() if c.copy is not None]
        self.holds = [(checkpoint, entry) for checkpoint, entry in self.holds if entry in self.model.entries]

    @rule(text=texts | st.just(""))
    def look_up(self, text: str) -> None:
        path = self.model.path(text)
        assert [c.position for c in self.cache.candidates(ids(text))] == [len(entry.text) for entry in path]
        found = self.cache.find(ids(text))
        assert (found.key if found else None) == (key(path[0].text) if path else None)
        assert all(self.cache.usable(checkpoint, ids(text)) for checkpoint in self.cache.candidates(ids(text)))
        assert self.cache.known(ids(text)) == self.model.agree(text)
        assert self.cache.junction(ids(text)) == self.model.junction(text)

    @precondition(lambda self: self.model.known)
    @rule(which=st.randoms(use_true_random=False), more=st.text("ab", max_size=3))
    def look_beside(self, which: Any, more: str) -> None:
        """A text that leaves a known one somewhere."""
        known = which.choice(sorted(self.model.known))
        self.look_up(known[: which.randint(0, len(known))] + more)

    # Agreement

    @invariant()
    def agree(self) -> None:
        self.rows_and_pages_have_the_same_holders()
        self.checkpoints_are_the_same()
        self.worth_is_the_same()
        self.ranking_is_that_of_the_rows()
        self.counts_are_the_same()

    def rows_and_pages_have_the_same_holders(self) -> None:
        assert set(self.cache.free_rows()) == self.model.free_rows()
        assert len(self.cache.free_rows()) == len(self.model.free_rows())
        references = self.model.references()
        assert [self.cache.pages.references(page) for page in range(PAGES)] == [references[p] for p in range(PAGES)]
        assert set(self.cache.pages.free_pages()) == self.model.free_pages()

    def checkpoints_are_the_same(self) -> None:
        found = {c.key: (c.index, c.pages, c.published, c.holders, c.pins, c.busy) for c in self.cache.all()}
        entries = self.model.entries
        assert found == {key(e.text): (e.row, e.pages, e.published, e.holders, e.pins, e.busy) for e in entries}
        published = {key(entry.text) for entry in entries if entry.published}
        assert {c.key for c in self.cache} == published and len(self.cache) == len(published)
        assert all(name in self.cache for name in published)
        assert [c.key for c in self.cache.below.writing] == [key(entry.text) for entry in self.writing]
        copied = {key(entry.text) for entry in entries if entry.copied}
        assert {c.key for c in self.cache.below.copies} == copied == {c.key for c in self.cache.all() if c.copy}

    def worth_is_the_same(self) -> None:
        for entry in self.model.entries:
            checkpoint = self.cache.get(key(entry.text))
            measured = self.cache.measure(checkpoint)
            assert (measured.saved_tokens, measured.bytes, measured.age) == self.model.measure(entry)
            assert checkpoint.node.checkpoint is checkpoint and checkpoint.node.end == len(entry.text)

    def ranking_is_that_of_the_rows(self) -> None:
        """Every row that has a checkpoint is ranked by its worth, as soon as those that changed are measured."""
        ranking, now = self.cache._ranking, self.cache._clock + 1
        stale, ranked = {row for row, _ in ranking.unmeasured()}, list(ranking.ascending(now))
        for value, checkpoint in ranked:
            assert checkpoint.index in stale or value == self.cache.worth(checkpoint)
        assert [value for value, _ in ranked] == sorted(value for value, _ in ranked)
        on_device = sorted(entry.row for entry in self.model.entries if entry.row is not None)
        assert sorted(checkpoint.index for _, checkpoint in ranked) == on_device

    def counts_are_the_same(self) -> None:
        counts = {name: getattr(self.cache.counts, name) for name in COUNTED}
        assert counts == {name: self.model.counts[name] for name in COUNTED}
        assert self.cache.counts.mismatched == 0


TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=300, stateful_step_count=50, deadline=None)


def written(cache: PrefixCache, text: str, reasons: Reason = Reason.PROMPT_END) -> Checkpoint:
    """A checkpoint of a text, with pages of its own."""
    pages = [cache.take_page() for _ in range(-(-len(text) // PAGE_SIZE))]
    row = cache.reserve()
    assert row is not None
    checkpoint = cache.publish(ids(text), *key(text), row, pages, reasons)
    cache.pages.drop(pages)
    return checkpoint


def test_pins_leave_a_row_to_slots() -> None:
    cache = new_cache(rows=3, pages=6)
    first, second, third = (written(cache, text) for text in ("aaaa", "aa", "b"))
    for checkpoint in (first, first, second):
        cache.pin(checkpoint)
    with pytest.raises(PinRefused, match="checkpoint at 1 cannot be pinned: 0 rows"):
        cache.pin(third)
    cache.unpin(second)
    cache.pin(third)
    cache.unpin(first)
    assert list(cache.evictable()) == [second]
    cache.unpin(first)
    assert list(cache.evictable()) == [first, second]


def test_pins_leave_the_pages_that_slots_may_need() -> None:
    cache = new_cache(rows=8, pages=6, reserved=3)
    cache.pin(written(cache, "aaaa"))
    with pytest.raises(PinRefused, match="checkpoint at 4 cannot be pinned: 6 rows and 2 pages"):
        cache.pin(written(cache, "bbbb"))
    cache.pin(written(cache, "b"))


def test_dropping_a_checkpoint_that_was_given_up_leaves_its_successor_alone() -> None:
    """A request's own checkpoint went for want of pages; another request has processed the same text since."""
    cache = new_cache(rows=2, pages=2)
    held = written(cache, "abab", Reason.HELD)
    cache.hold(held)
    page = cache.take_page()
    assert cache.counts.given_up == 1 and cache.all() == []
    cache.pages.drop([page])
    successor = written(cache, "abab", Reason.HELD)
    cache.hold(successor)
    cache.drop(held)
    assert cache.all() == [successor] and successor.node.checkpoint is successor
    cache.drop(successor)
    assert cache.all() == [] and cache.pages.in_use == 0 and len(cache.free_rows()) == 2

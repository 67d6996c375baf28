"""The page pool in lock-step with a counter per page."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from runtime.checkpoints.pages import PagePool

PAGES = 7


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

    @rule(holders=st.lists(st.lists(st.integers(0, PAGES - 1), max_size=3), max_size=3))
    def reset(self, holders: list[list[int]]) -> None:
        """Only these are left: pages held before may be free, and free ones held."""
        self.pool.reset(holders)
        self.model = Counter(page for pages in holders for page in pages)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

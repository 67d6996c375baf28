"""The page pool in lock-step with a list of holders per page."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from runtime.checkpoints.pages import PagePool

PAGES, OWNERS = 7, 3
owners = st.integers(0, OWNERS)


class PoolMachine(RuleBasedStateMachine):
    """Holders take, share and drop pages; the model counts the references of each owner by page."""

    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(PAGES, OWNERS)
        self.model: list[Counter[int]] = [Counter() for _ in range(PAGES)]

    @precondition(lambda self: self.pool.free)
    @rule(target=held)
    def take(self) -> int:
        page = self.pool.take()
        assert not self.model[page]
        self.model[page][0] += 1
        return page

    @rule(target=held, page=held, owner=owners)
    def share(self, page: int, owner: int) -> int:
        if self.model[page] and not (owner and self.model[page][owner]):
            self.pool.share([page], owner)
            self.model[page][owner] += 1
        return page

    @rule(page=held, owner=owners)
    def drop(self, page: int, owner: int) -> None:
        if self.model[page][owner]:
            self.pool.drop([page], owner)
            self.model[page] -= Counter([owner])

    @invariant()
    def agree(self) -> None:
        references = [self.model[page].total() for page in range(PAGES)]
        assert [self.pool.references(page) for page in range(PAGES)] == references
        free = {page for page in range(PAGES) if not references[page]}
        assert set(self.pool.free_pages()) == free
        assert self.pool.free == len(free) and self.pool.in_use == PAGES - len(free)

    @invariant()
    def sole_holders_are_counted(self) -> None:
        alone = Counter(owner for holders in self.model if holders.total() == 1 for owner in holders.elements())
        assert self.pool.sole.tolist() == [alone[owner] for owner in range(OWNERS + 1)]

    @rule(
        holders=st.lists(
            st.tuples(owners, st.sets(st.integers(0, PAGES - 1), max_size=3)),
            max_size=3,
            unique_by=lambda held: held[0],
        )
    )
    def reset(self, holders: list[tuple[int, set[int]]]) -> None:
        """Only these are left: pages held before may be free, and free ones held."""
        self.pool.reset(holders)
        self.model = [Counter(owner for owner, pages in holders if page in pages) for page in range(PAGES)]


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

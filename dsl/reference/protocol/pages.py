"""KV pages: fixed-size arrays of target and drafter entries, shared by reference count."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

POISON = -(1 << 62)


class ProtocolError(Exception):
    """The protocol was used against its rules, or it read an entry that nothing has written."""


class PagePool:
    """Pages of one engine: `page_size` target entries and as many drafter entries each, poisoned when handed out.

    target, drafter: [page][page_size]. references: how many slots and checkpoints hold each page.
    """

    def __init__(self, page_size: int) -> None:
        """An empty pool; it grows as pages are taken."""
        self.page_size = page_size
        self.target: list[list[int]] = []
        self.drafter: list[list[int]] = []
        self.references: list[int] = []
        self.free: list[int] = []

    def take(self) -> int:
        """A page of the free list (a new one if it is empty), with one reference."""
        if not self.free:
            self.free.append(len(self.references))
            self.references.append(0)
            self.target.append([])
            self.drafter.append([])
        page = self.free.pop()
        self.references[page] = 1
        self.target[page] = [POISON] * self.page_size
        self.drafter[page] = [POISON] * self.page_size
        return page

    def share(self, pages: Sequence[int]) -> tuple[int, ...]:
        """Add a reference to each page."""
        for page in pages:
            self.references[page] += 1
        return tuple(pages)

    def drop(self, pages: Sequence[int]) -> None:
        """Give up a reference to each page; the last one frees it."""
        for page in pages:
            self.references[page] -= 1
            if not self.references[page]:
                self.free.append(page)

    def copy(self, page: int, target_entries: int, drafter_entries: int) -> int:
        """A new page with the leading entries of `page`; the rest stays poisoned."""
        new = self.take()
        self.target[new][:target_entries] = self.target[page][:target_entries]
        self.drafter[new][:drafter_entries] = self.drafter[page][:drafter_entries]
        return new

    def write(self, pool: list[list[int]], table: Sequence[int], entry: int, value: int) -> None:
        """Write one entry of `self.target` or `self.drafter`. Raises ProtocolError beyond the reserved pages."""
        index, offset = divmod(entry, self.page_size)
        if index >= len(table):
            raise ProtocolError(f"KV entry {entry} is beyond the {len(table)} reserved pages of {self.page_size}")
        pool[table[index]][offset] = value

    def read(self, pool: list[list[int]], table: Sequence[int], start: int, stop: int) -> tuple[int, ...]:
        """Entries start .. stop - 1. Raises ProtocolError if one was never written."""
        values = tuple(chain.from_iterable([pool[page] for page in table]))[start:stop]
        if len(values) != stop - start or POISON in values:
            raise ProtocolError(f"KV entries {start}..{stop - 1} are read before all of them are written")
        return values

    @property
    def in_use(self) -> int:
        """Pages that somebody holds."""
        return sum(count > 0 for count in self.references)

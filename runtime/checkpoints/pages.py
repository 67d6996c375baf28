"""Pages of the KV cache: who holds them, nothing else. Independent of torch."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


class PagePool:
    """`num_pages` pages; a page is free at zero references. The last page freed is taken first.

    Holders are owners 1, 2 ..., which hold a page once at most, or 0: whoever else, any number of times.
    sole: by owner, how many pages nobody holds but this one; int64 [owners + 1], always right.
    """

    def __init__(self, num_pages: int, owners: int = 0) -> None:
        self.num_pages = num_pages
        self.sole = np.zeros(owners + 1, np.int64)
        self._sole = self.sole.data
        self.reset(())

    @property
    def free(self) -> int:
        """Number of pages that nobody holds."""
        return len(self._free)

    @property
    def in_use(self) -> int:
        """Number of pages that somebody holds."""
        return self.num_pages - len(self._free)

    def free_pages(self) -> list[int]:
        """The pages that nobody holds."""
        return list(self._free)

    def references(self, page: int) -> int:
        """How many holders a page has."""
        return self._references[page]

    def take(self) -> int:
        """A free page with one reference, of owner 0. Raises IndexError if there is none: ask `free` first."""
        page = self._free.pop()
        self._references[page], self._holders[page] = 1, 0
        self._sole[0] += 1
        return page

    def share(self, pages: Iterable[int], owner: int = 0) -> None:
        """One more holder for each of `pages`, which must be held already."""
        references, holders, sole = self._references, self._holders, self._sole
        for page in pages:
            count = references[page]
            assert count, f"page {page} is free"
            if count == 1:
                sole[holders[page]] -= 1
            references[page] = count + 1
            holders[page] ^= owner

    def drop(self, pages: Iterable[int], owner: int = 0) -> None:
        """One holder less for each of `pages`."""
        references, holders, sole = self._references, self._holders, self._sole
        for page in pages:
            count = references[page]
            assert count > 0, f"page {page} is free"
            references[page] = count - 1
            holders[page] ^= owner
            if count == 2:
                sole[holders[page]] += 1
            elif count == 1:
                sole[owner] -= 1
                self._free.append(page)

    def reset(self, holders: Iterable[tuple[int, Iterable[int]]]) -> None:
        """Start again with only these (owner, pages): forget every other reference."""
        self._references = [0] * self.num_pages
        self._holders = [0] * self.num_pages  # exclusive or of all owners that hold it: the owner, if there is one
        for owner, pages in holders:
            for page in pages:
                self._references[page] += 1
                self._holders[page] ^= owner
        self._free = [page for page in range(self.num_pages - 1, -1, -1) if not self._references[page]]
        self.sole[:] = 0
        for page, count in enumerate(self._references):
            if count == 1:
                self._sole[self._holders[page]] += 1

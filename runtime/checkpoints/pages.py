"""Pages of the KV cache: reference counts, nothing else. Independent of torch."""

from __future__ import annotations

from collections.abc import Iterable


class PagePool:
    """`num_pages` pages; a page is free at zero references. The last page freed is taken first."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._references = [0] * num_pages
        self._free = list(range(num_pages - 1, -1, -1))

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

    def sole(self, pages: Iterable[int]) -> int:
        """How many of `pages` have one holder."""
        return [self._references[page] for page in pages].count(1)

    def take(self) -> int:
        """A free page with one reference. Raises IndexError if there is none: ask `free` first."""
        page = self._free.pop()
        self._references[page] = 1
        return page

    def share(self, pages: Iterable[int]) -> None:
        """One more holder for each of `pages`, which must be held already."""
        references = self._references
        for page in pages:
            assert references[page], f"page {page} is free"
            references[page] += 1

    def reset(self, holders: Iterable[Iterable[int]]) -> None:
        """Start again with only these holders: forget every other reference."""
        self._references = [0] * self.num_pages
        for pages in holders:
            for page in pages:
                self._references[page] += 1
        self._free = [page for page in range(self.num_pages - 1, -1, -1) if not self._references[page]]

    def drop(self, pages: Iterable[int]) -> None:
        """One holder less for each of `pages`."""
        for page in pages:
            count = self._references[page]
            assert count > 0, f"page {page} is free"
            self._references[page] = count - 1
            if count == 1:
                self._free.append(page)

"""The host pool: checkpoints in host memory, in rows and pages allocated once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from runtime.checkpoints.image import TORCH_DTYPES, CheckpointImage, ImageLayout, PageImage, PageKey, Shape


@dataclass(frozen=True)
class HostCopy:
    """Where the pool has a checkpoint. pages: (identity, page of the pool), in order."""

    row: int
    pages: tuple[tuple[PageKey, int], ...]


class HostPool:
    """`rows` checkpoints and `pages` KV pages. Pages of equal identity are kept once. pinned: for copies to a GPU.

    size: rows and pages.
    """

    def __init__(self, layout: ImageLayout, rows: int, pages: int, pinned: bool = False) -> None:
        self.layout, self.size = layout, (rows, pages)
        self.rows = _allocate(rows, layout.parts, pinned)
        self.pages = _allocate(pages, layout.page, pinned)
        self._free_rows = list(range(rows - 1, -1, -1))
        self._free_pages = list(range(pages - 1, -1, -1))
        self._holders: dict[PageKey, int] = {}
        self._where: dict[PageKey, int] = {}

    @property
    def bytes(self) -> int:
        """Allocated bytes."""
        return sum(t.numel() * t.element_size() for t in (*self.rows.values(), *self.pages.values()))

    @property
    def free(self) -> tuple[int, int]:
        """Free rows and pages."""
        return len(self._free_rows), len(self._free_pages)

    def fits(self, keys: Sequence[PageKey], without: Sequence[HostCopy] = ()) -> bool:
        """Whether a checkpoint with these pages has room now, or would have without some copies."""
        given = Counter(key for copy in without for key, _ in copy.pages)
        going = {key for key, count in given.items() if count == self._holders[key]}
        wanted = sum(key not in self._where or key in going for key in keys)
        return bool(self._free_rows or without) and wanted <= len(self._free_pages) + len(going)

    def sole(self, copy: HostCopy) -> int:
        """Pages that only this copy has."""
        return sum(self._holders[key] == 1 for key, _ in copy.pages)

    def put(self, image: CheckpointImage) -> HostCopy:
        """Copy an image in. It must fit."""
        row = self._free_rows.pop()
        for name, tensor in image.parts.items():
            self.rows[name][row].copy_(tensor)
        return HostCopy(row, tuple((page.key, self._put_page(page)) for page in image.pages))

    def _put_page(self, page: PageImage) -> int:
        known = self._where.get(page.key)
        self._holders[page.key] = self._holders.get(page.key, 0) + 1
        if known is not None:
            return known
        place = self._where[page.key] = self._free_pages.pop()
        for name, tensor in page.tensors.items():
            self.pages[name][place].copy_(tensor)
        return place

    def drop(self, copy: HostCopy) -> None:
        """Free a copy's row, and its pages that no other copy has."""
        self._free_rows.append(copy.row)
        for key, place in copy.pages:
            self._holders[key] -= 1
            if not self._holders[key]:
                del self._holders[key], self._where[key]
                self._free_pages.append(place)

    def image(self, copy: HostCopy, tokens: Sequence[int], position: int, digest: bytes) -> CheckpointImage:
        """A copy as an image; its tensors are views, valid until the copy is dropped."""
        return CheckpointImage(
            position,
            tuple(tokens[:position]),
            digest,
            {name: tensor[copy.row] for name, tensor in self.rows.items()},
            tuple(
                PageImage(key, {name: tensor[place] for name, tensor in self.pages.items()})
                for key, place in copy.pages
            ),
        )

    def reset(self, copies: Sequence[HostCopy]) -> None:
        """After an interruption: only these copies are kept."""
        rows, places = {copy.row for copy in copies}, {place for copy in copies for _, place in copy.pages}
        self._free_rows = [row for row in range(self.size[0] - 1, -1, -1) if row not in rows]
        self._free_pages = [place for place in range(self.size[1] - 1, -1, -1) if place not in places]
        self._holders, self._where = {}, {}
        for copy in copies:
            for key, place in copy.pages:
                self._where[key] = place
                self._holders[key] = self._holders.get(key, 0) + 1


def _allocate(count: int, shapes: Mapping[str, tuple[Shape, str]], pinned: bool) -> dict[str, Tensor]:
    return {
        name: torch.empty((count, *shape), dtype=TORCH_DTYPES[dtype], pin_memory=pinned)
        for name, (shape, dtype) in shapes.items()
    }


def host_pool_size(layout: ImageLayout, budget: int, pages_per_row: int) -> tuple[int, int]:
    """(rows, pages) of a pool of at most `budget` bytes, with `pages_per_row` pages for each row."""
    rows = budget // (layout.row_bytes + pages_per_row * layout.page_bytes)
    return rows, rows * pages_per_row


def host_pool_bytes(layout: ImageLayout, rows: int, pages: int) -> int:
    """What a pool of this size allocates."""
    return rows * layout.row_bytes + pages * layout.page_bytes

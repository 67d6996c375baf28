"""Checkpoints between the device's buffers and images."""

from __future__ import annotations

from collections.abc import Mapping

from runtime.buffers import Buffers
from runtime.checkpoints.checkpoint import Checkpoint
from runtime.checkpoints.image import CheckpointImage, ImageLayout, PageImage, PageKey, drafter_caches
from runtime.layouts import clear_entries


class DevicePool:
    """The checkpoint rows and KV pages of an engine's buffers."""

    def __init__(self, buffers: Buffers, layout: ImageLayout) -> None:
        self.buffers, self.layout = buffers, layout
        self._drafter = drafter_caches(buffers.plan)

    def image(self, checkpoint: Checkpoint, to_host: bool = False) -> CheckpointImage:
        """A checkpoint on the device as an image.

        Tensors are views of the buffers where these are in host memory, else copies; the last page is always a copy,
        without what the prefix does not determine.
        """
        assert checkpoint.index is not None
        keys = self.layout.page_keys(checkpoint.tokens, checkpoint.position)
        pages = checkpoint.pages if self.layout.page else ()  # without attention there is nothing in them
        parts = {name: self.buffers[name][checkpoint.index] for name in self.layout.parts}
        image = CheckpointImage(
            checkpoint.position,
            tuple(checkpoint.tokens[: checkpoint.position]),
            checkpoint.digest,
            {name: tensor.cpu() if to_host else tensor for name, tensor in parts.items()},
            tuple(self._page(key, page, to_host) for key, page in zip(keys, pages, strict=True)),
        )
        if keys and keys[-1][0] < 0:
            self._clear(image.pages[-1], checkpoint.position, len(keys) - 1)
        return image

    def _page(self, key: PageKey, page: int, to_host: bool) -> PageImage:
        tensors = {name: self.buffers[name][page] for name in self.layout.page}
        if key[0] < 0:
            tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        return PageImage(key, {name: tensor.cpu() if to_host else tensor for name, tensor in tensors.items()})

    def _clear(self, page: PageImage, position: int, number: int) -> None:
        """Zero the entries that depend on more than tokens[:position]."""
        size, start = self.layout.page_size, number * self.layout.page_size
        for name, tensor in page.tensors.items():
            valid = position - 1 if name in self._drafter else position
            clear_entries(self.buffers.plan.buffers[name], tensor, max(0, valid - start), size)

    def load(self, image: CheckpointImage, row: int, pages: Mapping[int, int]) -> None:
        """Write an image into a row, and those of its pages that are in `pages`: number of the page -> device page."""
        for name, tensor in image.parts.items():
            self.buffers[name][row].copy_(tensor)
        for number, page in pages.items():
            for name, tensor in image.pages[number].tensors.items():
                self.buffers[name][page].copy_(tensor)

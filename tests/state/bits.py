"""What a prefix determines of a checkpoint or a slot, as bytes in one order: equal prefixes must have equal ones."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from runtime.checkpoints.image import drafter_caches
from runtime.engine import Engine
from runtime.layouts import read_entries
from runtime.plan import Plan

Pages = dict[str, np.ndarray]


def digest(data: bytes) -> bytes:
    """Short for bytes."""
    return hashlib.blake2b(data, digest_size=16).digest()


def entry_order(plan: Plan, name: str) -> np.ndarray:
    """Where a page of a KV buffer has its entries: [page_size, elements of an entry]."""
    buffer = plan.buffers[name]
    index = torch.arange(buffer.shape[1] * buffer.shape[2]).view(1, *buffer.shape[1:])
    return read_entries(buffer, index, plan.limits.page_size).reshape(plan.limits.page_size, -1).numpy()


class Bits:
    """The buffers of one engine as numpy arrays, and the bytes in them that mean something."""

    def __init__(self, engine: Engine) -> None:
        self.plan, self.drafting = engine.package.plan, engine.scheduler.executor.drafting
        self.parts = self.plan.checkpoint_parts
        names = {name for part in self.parts for name in (part.live, part.checkpoint)}
        self.arrays = {name: engine.buffers[name].numpy() for name in names}
        self.caches: Pages = {
            name: engine.buffers[name].view(torch.int16).flatten(1).numpy() for name in self.plan.kv_buffers
        }
        self.order = {name: entry_order(self.plan, name) for name in self.plan.kv_buffers}
        self.of_drafter = frozenset(drafter_caches(self.plan))

    # A checkpoint, and the slot that it is of

    def of_row(self, row: int, position: int) -> bytes:
        """The parts of a checkpoint; window rows before position zero are left out."""
        return b"".join(self._kept(part, row, position) for part in self.parts)

    def _kept(self, part: object, row: int, position: int) -> bytes:
        kept = self.arrays[part.checkpoint][row]
        return (kept[max(0, part.width - position) :] if part.kind == "window" else kept).tobytes()

    def of_slot(self, slot: int, position: int) -> bytes:
        """What a checkpoint at `position` of a slot that has folded exactly so many tokens would hold."""
        return b"".join(self._live(part, slot, position) for part in self.parts)

    def _live(self, part: object, slot: int, position: int) -> bytes:
        live, ring = self.arrays[part.live][slot], self.plan.limits.ring
        if part.kind == "slot":
            return live.tobytes()
        if part.kind == "hidden":
            return live[(position - 1) % ring].tobytes()
        return b"".join(live[at % ring].tobytes() for at in range(max(0, position - part.width), position))

    # KV entries

    def entries(self, pages: Sequence[int], target: int, drafter: int) -> bytes:
        """The first `target` entries of the target's caches, and `drafter` of the drafter's."""
        taken = {name: cache[list(pages)] for name, cache in self.caches.items()}
        return self.join(taken, target, drafter)

    def join(self, pages: Pages, target: int, drafter: int) -> bytes:
        """The same of pages that were taken out: [n, elements] by buffer."""
        return b"".join(self._leading(pages, target, drafter))

    def _leading(self, pages: Pages, target: int, drafter: int) -> Iterator[bytes]:
        for name, taken in pages.items():
            order = self.order[name]
            count = (drafter if self.drafting else 0) if name in self.of_drafter else target
            yield taken[:, order].reshape(-1, order.shape[1])[:count].tobytes()

    def checkpoint(self, row: int, pages: Sequence[int], position: int) -> bytes:
        """Digest of all that a checkpoint at `position` must hold."""
        return digest(self.of_row(row, position) + self.entries(pages, position, position - 1))

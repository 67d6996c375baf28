"""NaN or nonsense in everything that no live bit may depend on."""

from __future__ import annotations

from collections import defaultdict

import torch

from runtime.engine import Engine
from tests.state.bits import Bits

WHOLE = (
    "row_slot",
    "row_seat",
    "row_pos",
    "row_token",
    "row_first",
    "row_count",
    "row_checkpoint",
    "targets",
    "slot_idx",
)
NONSENSE = (0x5A5A5A5A, -1)


def poison(engine: Engine, bits: Bits, number: int) -> None:
    """Free slots, their rings and protocol rows; free pages and rows; scratch; tails of pages and rings in use."""
    Poison(engine, bits, number).run()


class Poison:
    """One round. number: which nonsense."""

    def __init__(self, engine: Engine, bits: Bits, number: int) -> None:
        self.engine, self.bits = engine, bits
        self.plan, self.limits = engine.package.plan, engine.package.plan.limits
        self.integer = NONSENSE[number % len(NONSENSE)]
        self.seats = engine.scheduler.seats.all()
        used = {seat.slot for seat in self.seats}
        self.slots = [slot for slot in range(self.limits.max_slots) if slot not in used]

    def run(self) -> None:
        """All of it."""
        cache = self.engine.scheduler.cache
        rows = self.plan.buffers["checkpoint_hidden"].shape[0]
        pages = self.plan.buffers[self.plan.kv_buffers[0]].shape[0]
        used_rows = {c.index for c in cache.all()}
        used_pages = {page for owner in (*cache.all(), *self.seats) for page in owner.pages}
        free = {
            "state": self.slots,
            "ring": self.slots,
            "kv": [page for page in range(pages) if page not in used_pages],
            "checkpoint": [row for row in range(rows) if row not in used_rows],
        }
        for buffer in self.plan.buffers.values():
            if buffer.role in free:
                self._fill(self.engine.buffers[buffer.name], free[buffer.role])
            elif buffer.role == "scratch" or buffer.name in WHOLE:
                self._fill(self.engine.buffers[buffer.name], slice(None))
            elif buffer.role == "protocol" and buffer.shape[0] == self.limits.max_slots:
                self._fill(self.engine.buffers[buffer.name], self.slots)
        self._rings()
        self._pages()

    def _fill(self, tensor: torch.Tensor, where: list[int] | slice) -> None:
        tensor[where] = float("nan") if tensor.is_floating_point() else self.integer

    def _rings(self) -> None:
        """Ring entries of positions that no row and no commit of a slot in use will read."""
        ring, width = self.limits.ring, max(part.width for part in self.plan.checkpoint_parts)
        for seat in self.seats:
            live = {at % ring for at in range(max(0, seat.state_len - width), seat.committed_len)}
            dead = [at for at in range(ring) if at not in live]
            for buffer in self.plan.role("ring"):
                self.engine.buffers[buffer.name][seat.slot, dead] = float("nan")

    def _pages(self) -> None:
        """KV entries beyond what any slot or checkpoint has of a page in use."""
        size, valid = self.limits.page_size, defaultdict(int)
        for owner in (*self.engine.scheduler.cache.all(), *self.seats):
            length = owner.position if hasattr(owner, "position") else owner.committed_len
            for number, page in enumerate(owner.pages):
                valid[page] = max(valid[page], min(size, length - number * size))
        for name, cache in self.bits.caches.items():
            order = self.bits.order[name]
            for page, count in valid.items():
                if count < size:
                    cache[page, order[max(0, count) :].ravel()] = 0x7FC0  # NaN in bf16

"""What one decode step may change, as rows of buffers: copied, written back and compared by their bits.

By the protocol of docs/architecture.md. What a broken launch writes elsewhere is in no footprint: it is seen by what it
then fails to write here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from runtime.buffers import Buffers

Kept = dict[str, Tensor]
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Footprint:
    """Rows of the leading index by buffer name; None: all of it. In plan order."""

    def __init__(self, buffers: Buffers, rows: Mapping[str, Tensor | None]) -> None:
        self._buffers, self._rows = buffers, rows

    @classmethod
    def of_step(cls, buffers: Buffers, slots: Sequence[int], verify_drafts: int, next_drafts: int) -> Footprint:
        """Of a step of `slots`: states, rings, the pages it appends to, checkpoint rows armed, the whole protocol."""
        armed, checkpoint = buffers.host.views["emit_position"], buffers.host.views["emit_checkpoint"]
        by_role: dict[str, Sequence[int]] = {
            "state": slots,
            "ring": slots,
            "kv": _pages(buffers, slots, verify_drafts + max(next_drafts, 1)),
            "checkpoint": sorted({checkpoint[slot] for slot in slots if armed[slot] >= 0}),
        }
        rows: dict[str, Tensor | None] = {}
        for buffer in buffers.plan.buffers.values():
            if buffer.role == "protocol":
                rows[buffer.name] = None
            elif by_role.get(buffer.role):
                rows[buffer.name] = torch.tensor(by_role[buffer.role], device=buffers[buffer.name].device)
        return cls(buffers, rows)

    def with_scratch(self) -> Footprint:
        """The same and all scratch buffers."""
        scratch = {buffer.name: None for buffer in self._buffers.plan.role("scratch")}
        return Footprint(self._buffers, {**self._rows, **scratch})

    def only(self, names: Sequence[str]) -> Footprint:
        """The part of it in these buffers."""
        return Footprint(self._buffers, {name: self._rows[name] for name in names})

    def take(self) -> Kept:
        """Copies of all it covers."""
        return {
            name: self._buffers[name].clone() if rows is None else self._buffers[name].index_select(0, rows)
            for name, rows in self._rows.items()
        }

    def put(self, kept: Kept) -> None:
        """Write copies back in place: all that it covers, or those that `kept` holds."""
        for name, value in kept.items():
            rows = self._rows[name]
            if rows is None:
                self._buffers[name].copy_(value)
            else:
                self._buffers[name].index_copy_(0, rows, value)

    def index(self, name: str, index: tuple[int, ...]) -> tuple[int, ...]:
        """An index into a copy as one into its buffer."""
        rows = self._rows[name]
        return index if rows is None else (int(rows[index[0]]), *index[1:])


def _pages(buffers: Buffers, slots: Sequence[int], rows: int) -> list[int]:
    """Pages of positions committed_len .. committed_len + rows - 1 of the slots."""
    limits, table = buffers.plan.limits, buffers.host.views["page_table"]
    committed, pages = buffers.host.views["committed_len"], set[int]()
    for slot in slots:
        first, start = committed[slot] // limits.page_size, slot * limits.pages_per_slot
        end = min((committed[slot] + rows - 1) // limits.page_size + 1, limits.pages_per_slot)
        pages.update(table[start + first : start + end].tolist())
    return sorted(pages)


def bits(tensor: Tensor) -> Tensor:
    """The same memory as integers, so that NaN equals NaN and -0 differs from 0."""
    return tensor.view(BITS[tensor.element_size()])


def differing(a: Kept, b: Kept) -> list[str]:
    """Names of the copies whose bits differ, in the order of `b`."""
    return [name for name, value in b.items() if not torch.equal(bits(a[name]), bits(value))]

"""What a committed prefix decides, bit by bit: read from a live slot or from a checkpoint, in execution order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from runtime.buffers import Buffers
from runtime.checkpoints.checkpoint import Checkpoint
from runtime.plan import Plan

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Part:
    """One live buffer. kind: "window" (raw conv inputs), "slot" (state), "hidden", "k" or "v" (KV entries).

    layer: label of the launch that writes it; checkpoint: its buffer in a checkpoint, "" for KV; width: of a window;
    drafter: whether the drafter writes it: then its last entry belongs to the position before the last.
    """

    kind: str
    layer: str
    buffer: str
    checkpoint: str
    width: int
    drafter: bool


@dataclass(frozen=True)
class Content:
    """Everything that `tokens[:position]` decides: one tensor per part."""

    position: int
    values: tuple[Tensor, ...]


@dataclass(frozen=True)
class Difference:
    """The first part that differs, and where in it."""

    part: Part
    detail: str


def writers(plan: Plan) -> dict[str, tuple[str, str, str]]:
    """Live buffers in the order in which a step writes them: (section, layer, parameter) of the launch that does.

    That is the first launch which has the buffer, but for hidden states the last: others read those of earlier rows.
    """
    hidden = {part.live for part in plan.checkpoint_parts if part.kind == "hidden"}
    found: dict[str, tuple[str, str, str]] = {}
    for section in ("verify", "drafter"):
        for launch in plan.sections.get(section, ()):
            for parameter, value in launch.args.items():
                if value in plan.buffers and plan.buffers[value].role in ("state", "ring", "kv"):
                    if value in hidden:
                        found.pop(value, None)
                    found.setdefault(value, (section, launch.layer, parameter))
    return found


def parts(plan: Plan, drafting: bool) -> list[Part]:
    """All parts in the order in which a step writes them."""
    kept = {part.live: part for part in plan.checkpoint_parts}
    found = []
    for buffer, (section, layer, parameter) in writers(plan).items():
        if buffer in plan.kv_buffers:
            found.append(Part(parameter[0], layer, buffer, "", 0, section == "drafter"))
        elif buffer in kept:
            part = kept[buffer]
            found.append(Part(part.kind, layer, buffer, part.checkpoint, part.width, section == "drafter"))
    return [part for part in found if drafting or not part.drafter]


def live_content(buffers: Buffers, chosen: Sequence[Part], slot: int, position: int) -> Content:
    """Of a slot that has committed `position` tokens or more, and whose states stand at exactly `position`."""
    size, ring = buffers.plan.limits.page_size, buffers.plan.limits.ring
    pages = buffers["page_table"][slot, : -(-position // size)].tolist()
    values = []
    for part in chosen:
        live = buffers[part.buffer]
        if part.kind == "slot":
            values.append(live[slot].clone())
        elif part.kind == "hidden":
            values.append(live[slot, (position - 1) % ring].clone())
        elif part.kind == "window":
            values.append(_window(live[slot], position, part.width, ring))
        else:
            values.append(kv_entries(live, part.kind, pages, position - part.drafter, size))
    return Content(position, tuple(values))


def stored_content(buffers: Buffers, chosen: Sequence[Part], checkpoint: Checkpoint) -> Content:
    """Of a checkpoint."""
    size, position = buffers.plan.limits.page_size, checkpoint.position
    values = []
    for part in chosen:
        if part.checkpoint:
            values.append(buffers[part.checkpoint][checkpoint.index].clone())
        else:
            live = buffers[part.buffer]
            values.append(kv_entries(live, part.kind, checkpoint.pages, position - part.drafter, size))
    return Content(position, tuple(values))


def _window(ring_rows: Tensor, position: int, width: int, ring: int) -> Tensor:
    """Ring rows of positions position - width .. position - 1; zeros before position 0. ring_rows: [ring, C]."""
    rows = torch.zeros((width, ring_rows.shape[1]), dtype=ring_rows.dtype)
    for j in range(max(0, width - position), width):
        rows[j] = ring_rows[(position - width + j) % ring]
    return rows


def kv_entries(cache: Tensor, kind: str, pages: Sequence[int], count: int, size: int) -> Tensor:
    """Entries 0 .. count - 1 as [count, kv_heads, D].

    cache: [pages, kv_heads, D * size], in tiles [D/2, size, 2] if kind is "k", [size/2, D, 2] if it is "v".
    """
    heads = cache.shape[1]
    tiles = cache[list(pages[: -(-count // size)])]
    if kind == "k":
        tiles = tiles.view(-1, heads, tiles.shape[2] // (2 * size), size, 2).permute(0, 3, 1, 2, 4)
    else:
        tiles = tiles.view(-1, heads, size // 2, tiles.shape[2] // size, 2).permute(0, 2, 4, 1, 3)
    return tiles.reshape(-1, heads, cache.shape[2] // size)[:count]


def bits(tensor: Tensor) -> Tensor:
    """The same memory as integers, so that NaN equals NaN and -0 differs from 0."""
    return tensor.contiguous().view(BITS[tensor.element_size()])


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same bits."""
    return a.shape == b.shape and a.dtype == b.dtype and bool(torch.equal(bits(a), bits(b)))


def first_difference(chosen: Sequence[Part], expected: Content, found: Content) -> Difference | None:
    """The first part, in execution order, whose bits differ."""
    for part, a, b in zip(chosen, expected.values, found.values, strict=True):
        if not same_bits(a, b):
            return Difference(part, describe(a, b, part.kind in ("k", "v")))
    return None


def describe(expected: Tensor, found: Tensor, by_entry: bool = False) -> str:
    """Where two tensors of one shape differ first, and how many elements do."""
    if expected.shape != found.shape:
        return f"shape {list(found.shape)}, expected {list(expected.shape)}"
    differs = bits(expected) != bits(found)
    index = tuple(int(i[0]) for i in torch.nonzero(differs, as_tuple=True))
    where = f"entry {index[0]}" if by_entry else f"element {list(index)}"
    values = f"{found[index].item():g} instead of {expected[index].item():g}"
    return f"{int(differs.sum())} of {differs.numel()} elements differ, first {where}: {values}"

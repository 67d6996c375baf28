"""The device side of the engine: writes the protocol buffers, replays graphs, reads what was accepted.

Everything the host prepares is rewritten completely before a replay, padding included. See docs/architecture.md.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from runtime.buffers import Buffers
from runtime.checkpoints.checkpoint import Checkpoint
from runtime.drafter import Drafter
from runtime.grammar import Matcher, fill_masks
from runtime.graphs import Graph, record
from runtime.package import Package
from runtime.plan import PAD_SLOT_ID
from runtime.request import Options
from runtime.sampling import write_sampling

GraphKey = tuple["Phase", int, int, int]
FREE_EMISSION = -1
NO_PAGE = -1
CHUNK_ROWS = ("row_slot", "row_seat", "row_pos", "row_token", "row_checkpoint", "row_first", "row_count")
PADDED_ROWS = ("row_slot", "row_seat", "row_checkpoint")


class Phase(StrEnum):
    """What a graph does."""

    PREFILL = "prefill"
    BEGIN = "begin"
    STEP = "step"
    SAVE = "save"
    SCORE = "score"
    RESTORE = "restore"


class Chunk(NamedTuple):
    """Neighbouring tokens of a slot's prompt, the first at position `start`. rows: checkpoint row by its position."""

    slot: int
    start: int
    tokens: array[int]
    rows: Mapping[int, int]


class Executor:
    """Graphs over one set of buffers, recorded on first use and kept. The drafter is fixed for all of them."""

    def __init__(self, package: Package, buffers: Buffers, drafter: Drafter, eager: bool) -> None:
        self.package, self.buffers, self.drafter, self.eager = package, buffers, drafter, eager
        self.limits = package.plan.limits
        self.views: Mapping[str, memoryview] = buffers.host.views
        self.graphs: dict[GraphKey, Graph] = {}
        self._sections: dict[Phase, Callable[[int, int, int], Any]] = {
            Phase.PREFILL: lambda rows, *_: package.step.prefill_chunk(
                buffers.b, self.limits.prefill_bucket(rows), rows, drafter
            ),
            Phase.BEGIN: lambda bucket, _, drafts: package.step.begin_slots(buffers.b, bucket, drafter, drafts),
            Phase.STEP: lambda bucket, *drafts: package.step.step(buffers.b, bucket, drafter, *drafts),
            Phase.SAVE: lambda bucket, *_: package.step.save(buffers.b, bucket, 0),
            Phase.SCORE: lambda rows, *_: package.step.score(buffers.b, rows),
            Phase.RESTORE: lambda bucket, *_: package.step.restore(buffers.b, bucket),
        }
        most = max(len(self.views[name]) for name in PADDED_ROWS)
        self._pads, self._zeros = array("i", [PAD_SLOT_ID]) * most, array("i", [0]) * most
        self._chunk_views = [self.views[name] for name in CHUNK_ROWS]
        self._chunk_padding = [
            (view, (self._pads if name in PADDED_ROWS else self._zeros)[: len(view)])
            for name, view in zip(CHUNK_ROWS, self._chunk_views, strict=True)
        ]
        self._positions = array("i", range(self.limits.max_context))
        self._stale = True

    @property
    def drafting(self) -> bool:
        """Whether the MTP module runs."""
        return self.drafter is Drafter.MTP

    # Graphs

    def graph(self, phase: Phase, size: int, verify_drafts: int = 0, next_drafts: int = 0) -> Graph:
        """The graph of a key. size: rows of a prefill or score, else the bucket."""
        key = (phase, size, verify_drafts, next_drafts)
        graph = self.graphs.get(key)
        if graph is None:
            self._idle()
            section = self._sections[phase]
            run = partial(section, size, verify_drafts, next_drafts)
            graph = self.graphs[key] = record(run, self.package.compiling, self.package.device, self.eager)
        return graph

    def warm_up(self, drafts: Sequence[int]) -> int:
        """Record the graphs of requests without logprobs, for these numbers of drafts per step.

        Of several numbers also the steps from none to each. Returns how many there are. No slot may be in use.
        """
        for bucket, number in product(reversed(self.limits.buckets), drafts):
            self.graph(Phase.STEP, bucket, number, number)
            if len(drafts) > 1:
                self.graph(Phase.STEP, bucket, 0, number)
            self.graph(Phase.BEGIN, bucket, 0, number)
        for rows in reversed(self.limits.prefill_rows):
            self.graph(Phase.PREFILL, rows)
        self.graph(Phase.SAVE, 1)
        self.graph(Phase.RESTORE, 1)
        return len(self.graphs)

    def _idle(self) -> None:
        """Make a section harmless, for devices where recording runs it once: no slot and no row."""
        if self.buffers.host.shared:
            return
        self.seat_slots([])
        for name in PADDED_ROWS:
            self._fill(name, PAD_SLOT_ID)
        self._fill("row_count", 0)
        self.buffers.host.upload(everything=True)
        self._stale = True

    def _fill(self, name: str, value: int, start: int = 0, count: int | None = None) -> None:
        view = self.views[name]
        count = len(view) - start if count is None else count
        view[start : start + count] = array("i", [value]) * count

    def _write(self, name: str, values: array[int]) -> None:
        """The whole of a buffer, padded."""
        view, pads = self.views[name], self._pads if name in PADDED_ROWS else self._zeros
        view[:] = values + pads[len(values) : len(view)] if len(values) < len(view) else values

    def replay(self, graph: Graph) -> None:
        """Run a graph over what was written: upload, replay, and fetch what the kernels own."""
        host = self.buffers.host
        host.upload(everything=self._stale)
        self._stale = False
        graph.replay()
        host.download()

    def reset(self) -> None:
        """Trust nothing of what the device was last told: the next replay sends everything."""
        self._stale = True

    # Slots

    def seat_slots(self, slots: Sequence[int]) -> None:
        """Write `slot_idx` for a launch over `slots`, padded."""
        self.views["slot_idx"][:] = self.slot_row(slots)

    def slot_row(self, slots: Sequence[int]) -> array[int]:
        """Contents of `slot_idx` for `slots`."""
        return self._padded(slots, self.limits.max_slots)

    def _padded(self, values: Sequence[int], size: int) -> array[int]:
        return array("i", values) + array("i", [PAD_SLOT_ID]) * (size - len(values))

    def admit(self, slot: int, text: Sequence[int], prompt_len: int, options: Options) -> None:
        """Start a slot from nothing: lengths zero, no emission, an empty page table. text: to be processed."""
        views, limits = self.views, self.limits
        views["committed_len"][slot] = views["state_len"][slot] = 0
        views["limit_len"][slot] = options.limit_len
        write_sampling(self.buffers, slot, options.sampling, text, prompt_len, options.grammar is not None)
        views["emit_position"][slot] = FREE_EMISSION
        views["emit_checkpoint"][slot] = 0
        start, stops = slot * limits.max_stop_tokens, sorted(options.stops)
        views["stop_tokens"][start : start + limits.max_stop_tokens] = self._padded(stops, limits.max_stop_tokens)
        self._fill("page_table", 0, slot * limits.pages_per_slot, limits.pages_per_slot)
        self._stale = True

    def set_pages(self, slot: int, first: int, pages: Sequence[int]) -> None:
        """Write entries `first ..` of a slot's page table."""
        start = slot * self.limits.pages_per_slot + first
        self.views["page_table"][start : start + len(pages)] = array("i", pages)
        self._stale = True

    def mask(self, slot: int, matcher: Matcher, num_drafts: int) -> None:
        """Have a grammar say what the next rows of a slot may choose: after none, one ... of its drafts."""
        drafts = self.buffers["tokens"][slot, 1 : 1 + num_drafts].tolist() if num_drafts else []
        masks = self.buffers["grammar_mask"][slot, : 1 + num_drafts]
        if masks.device.type == "cpu":
            fill_masks(matcher, masks, drafts)
        else:
            filled = torch.empty(masks.shape, dtype=masks.dtype)
            fill_masks(matcher, filled, drafts)
            masks.copy_(filled)

    def arm(self, slot: int, position: int, row: int) -> None:
        """The next commit of the slot that passes `position` writes checkpoint row `row`."""
        self.views["emit_position"][slot] = position
        self.views["emit_checkpoint"][slot] = row

    def disarm(self, slot: int) -> None:
        """No emission."""
        self.views["emit_position"][slot] = FREE_EMISSION

    # Operations

    def prefill(self, chunks: Sequence[Chunk]) -> None:
        """Run a chunk of each of 1 .. prefill_slots slots, prefill_chunk tokens together at most, in one replay."""
        graph = self.graph(Phase.PREFILL, self.limits.prefill_size(sum(len(chunk.tokens) for chunk in chunks)))
        for view, padding in self._chunk_padding:
            view[:] = padding
        row_slot, row_seat, row_pos, row_token, row_checkpoint, row_first, row_count = self._chunk_views
        end = 0
        for seat, (slot, start, tokens, kept) in enumerate(chunks):
            first, count = end, len(tokens)
            end += count
            row_first[seat], row_count[seat] = first, count
            row_slot[first:end] = array("i", (slot,)) * count
            row_seat[first:end] = array("i", (seat,)) * count
            row_pos[first:end] = self._positions[start : start + count]
            row_token[first:end] = tokens
            for position, row in kept.items():
                row_checkpoint[first + position - 1 - start] = row
        self.seat_slots([chunk.slot for chunk in chunks])
        self._stale = True
        self.replay(graph)

    def begin(self, slots: Sequence[int], next_drafts: int) -> list[int]:
        """Sample the first token of each slot, and its drafts. Returns the tokens."""
        graph = self.graph(Phase.BEGIN, self.limits.bucket(len(slots)), 0, next_drafts)
        self.seat_slots(slots)
        self.replay(graph)
        tokens, width = self.views["out_tokens"], self.limits.max_rows
        return [tokens[slot * width] for slot in slots]

    def save(self, slot: int, position: int, row: int) -> None:
        """Fold the records of [state_len, position), then write checkpoint row `row`; state_len becomes position."""
        graph = self.graph(Phase.SAVE, 1)
        self.seat_slots([slot])
        committed = self.views["committed_len"]
        length = committed[slot]
        committed[slot] = position
        self.arm(slot, position, row)
        self._stale = True
        self.replay(graph)
        self.disarm(slot)
        committed[slot] = length
        self._stale = True

    def score(self, slot: int, positions: Sequence[int]) -> Tensor:
        """The model's logits for the tokens after `positions` of a slot: a copy, [len(positions), V] fp32.

        positions: 1 .. max_rows of the last max_rows committed ones, none before the last token of the prompt: of what
        was prefilled or restored the ring holds that hidden state only. Only scratch changes, no bit of a later step.
        """
        count, limits, views = len(positions), self.limits, self.views
        committed = views["committed_len"][slot]
        assert 0 < count <= limits.max_rows
        assert all(max(0, committed - limits.max_rows) <= position < committed for position in positions)
        graph = self.graph(Phase.SCORE, score_size(count))
        self._write("row_slot", array("i", [slot]) * count)
        self._write("row_pos", array("i", positions))
        self._stale = True
        self.replay(graph)
        return self.buffers["logits"][:count].clone()

    def restore(self, slot: int, checkpoint: Checkpoint, pages: Sequence[int], copied: tuple[int, int] | None) -> None:
        """Copy a checkpoint into a slot just admitted. pages: the slot's; copied: (from, to) of its own copy."""
        assert checkpoint.index is not None
        graph, views = self.graph(Phase.RESTORE, 1), self.views
        self.seat_slots([slot])
        self.set_pages(slot, 0, pages)
        views["committed_len"][slot] = views["state_len"][slot] = checkpoint.position
        views["restore_checkpoint"][slot] = checkpoint.index
        views["page_from"][slot], views["page_to"][slot] = (NO_PAGE, NO_PAGE) if copied is None else copied
        self.replay(graph)


def score_size(positions: int) -> int:
    """Rows of the graph that scores so many positions: the next power of two, as max_rows is one."""
    return 1 << (positions - 1).bit_length()

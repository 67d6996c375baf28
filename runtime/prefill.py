"""Prompts of one iteration: how many tokens of which, packed into few launches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from time import perf_counter_ns

from runtime.admission import Admission
from runtime.checkpoints.cache import PrefixCache
from runtime.emission import Emitter
from runtime.executor import Chunk, Executor
from runtime.observe.stats import Counters
from runtime.seats import Seat

Share = tuple[Seat, int]  # tokens of a prompt


class Prefill:
    """Processes prompts. chunk: tokens of a launch; budget: of an iteration over all slots, None for a chunk each."""

    def __init__(
        self,
        executor: Executor,
        cache: PrefixCache,
        emitter: Emitter,
        admission: Admission,
        counters: Counters,
        *,
        chunk: int,
        budget: int | None,
    ) -> None:
        self.executor, self.cache, self.emitter, self.admission = executor, cache, emitter, admission
        self.counters, self.chunk, self.budget = counters, chunk, budget

    def run(self, seats: Iterable[Seat]) -> None:
        """Process what this iteration may of prompts, in this order."""
        for pack in packed(shares(seats, self.chunk, self.budget), self.chunk, self.executor.limits.prefill_slots):
            begun = perf_counter_ns()
            self._launch(pack)
            self.counters.prefill_ns += perf_counter_ns() - begun

    def _launch(self, pack: list[Share]) -> None:
        """One launch. What a prompt shares with those before it in the pack is known text already."""
        chunks, emissions = [], []
        for seat, size in pack:
            start, end, rows = seat.committed_len, seat.committed_len + size, {}
            if end > seat.room:
                self.admission.make_room(seat, end)
            for emission in self.emitter.rows(seat, end):
                emissions.append((seat, emission))
                rows[emission.position] = emission.row
            chunks.append(Chunk(seat.slot, start, seat.text[start:end], rows))
            if self.emitter.enabled:
                self.cache.learn(seat.text, seat.near, end)
        self.executor.prefill(chunks)
        for seat, size in pack:
            seat.committed_len = seat.state_len = seat.committed_len + size
            seat.request.prefilled_tokens += size
            self.counters.prefilled_tokens += size
        for seat, emission in emissions:
            self.emitter.publish(seat, emission)


def shares(seats: Iterable[Seat], chunk: int, budget: int | None) -> Iterator[Share]:
    """Tokens of each prompt: a chunk of each, or the first ones as far as the budget goes."""
    left = budget
    for seat in seats:
        share = min(seat.target_len - seat.committed_len, chunk if left is None else left)
        if left is not None:
            left -= share
        yield seat, share
        if left == 0:
            return


def packed(wanted: Iterable[Share], rows: int, slots: int) -> Iterator[list[Share]]:
    """Shares cut into launches of at most so many rows and slots, each full before the next one begins."""
    pack: list[Share] = []
    room = rows
    for seat, share in wanted:
        while share:
            part = min(share, room)
            pack.append((seat, part))
            share, room = share - part, room - part
            if not room or len(pack) == slots:
                yield pack
                pack, room = [], rows
    if pack:
        yield pack

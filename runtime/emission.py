"""Checkpoints of the slots: which are due, the rows they get, and when kernels write them."""

from __future__ import annotations

from runtime.checkpoints.cache import PrefixCache
from runtime.checkpoints.checkpoint import Checkpoint, Emission, Reason
from runtime.checkpoints.retention import next_retained, retained, worth_keeping
from runtime.checkpoints.tiers import Tiers
from runtime.executor import Executor
from runtime.seats import Seat


class Emitter:
    """Writes the checkpoints of slots. interval: None every page, n every n tokens, 0 semantic positions only."""

    def __init__(self, executor: Executor, cache: PrefixCache, tiers: Tiers, interval: int | None) -> None:
        self.executor, self.cache, self.tiers, self.interval = executor, cache, tiers, interval
        self.page_size = executor.limits.page_size

    @property
    def enabled(self) -> bool:
        """Whether there is any room for checkpoints."""
        return self.cache.capacity > 0

    # Prefill

    def rows(self, seat: Seat, end: int) -> list[Emission]:
        """What the next chunk of a prompt, which goes to `end`, has to write."""
        if not self.enabled:
            return []
        self._find_junction(seat)
        request = seat.request
        found = retained(request.prompt_len, self.interval, self.page_size, end, seat.committed_len, request.points)
        return self._due(seat, found) if found else []

    def _find_junction(self, seat: Seat) -> None:
        """Where the prompt leaves text that others have processed by now."""
        request = seat.request
        found = self.cache.junction(seat.text, seat.near, request.prompt_len)
        if found is None or found[0] in request.points:
            return
        position, above = found
        if worth_keeping(position, max(above, self._grid_before(position)), self.page_size):
            request.points = tuple(sorted((*request.points, position)))
            request.junctions.add(position)

    def _grid_before(self, position: int) -> int:
        """The last multiple of the interval up to a position."""
        step = self.page_size if self.interval is None else self.interval
        return position // step * step if step else 0

    def publish(self, seat: Seat, emission: Emission) -> Checkpoint:
        """Offer what a kernel wrote to others."""
        pages = seat.pages[: -(-emission.position // self.page_size)]
        checkpoint = self.cache.publish(
            seat.text, emission.position, emission.digest, emission.row, pages, emission.reasons, seat.near
        )
        seat.near = (checkpoint.node, checkpoint.position)
        self.tiers.offer(checkpoint)
        return checkpoint

    # Decode

    def start(self, seat: Seat) -> None:
        """A slot begins to decode: which position is due next."""
        if self.enabled:
            seat.next_due = self._next(seat, seat.committed_len)

    def arm(self, seat: Seat) -> None:
        """Have the next step write the last position due. A step writes one: those before it are saved first."""
        due = self._take_due(seat)
        for emission in due[:-1]:
            self.save(seat, emission)
        if due:
            seat.emit = due[-1]
            self.executor.arm(seat.slot, due[-1].position, due[-1].row)

    def emitted(self, seat: Seat) -> None:
        """The step has written what was armed."""
        if seat.emit is not None:
            self.publish(seat, seat.emit)
            seat.emit = None
            self.executor.disarm(seat.slot)

    def save(self, seat: Seat, emission: Emission) -> Checkpoint:
        """Write one now: the slot's state is folded up to its position."""
        self.executor.save(seat.slot, emission.position, emission.row)
        seat.state_len = emission.position
        return self.publish(seat, emission)

    def finish(self, seat: Seat) -> None:
        """The last of a finished answer: what is due, and its end."""
        if not self.enabled:
            return
        request = seat.request
        if seat.committed_len > request.prompt_len:
            request.points = (*request.points, seat.committed_len)
            request.answer_end = seat.committed_len
            seat.next_due = min(seat.next_due, seat.committed_len)
        self.flush(seat)

    def flush(self, seat: Seat) -> None:
        """Write what is due of a slot that leaves."""
        if seat.next_due <= seat.committed_len:
            for emission in self._take_due(seat):
                self.save(seat, emission)

    def hold(self, seat: Seat) -> Checkpoint | None:
        """All that a slot has processed, as a checkpoint that a request holds; None if no row can be had."""
        if not self.enabled or not seat.committed_len:
            return None
        self.flush(seat)
        digest = seat.request.prefix.at(seat.text, seat.committed_len)
        checkpoint = self.cache.get((seat.committed_len, digest))
        if checkpoint is None or checkpoint.index is None:
            row = self.cache.reserve(protected=seat.request.prompt_key)
            if row is None:
                return None
            checkpoint = self.save(seat, Emission(seat.committed_len, digest, row, Reason.HELD))
        self.cache.hold(checkpoint)
        return checkpoint

    # Positions

    def _next(self, seat: Seat, position: int) -> int:
        return next_retained(self.interval, self.page_size, position, seat.request.points)

    def _take_due(self, seat: Seat) -> list[Emission]:
        """Reserved rows of the positions that can be written now: next_due .. committed_len."""
        positions = []
        while seat.next_due <= seat.committed_len:
            positions.append(seat.next_due)
            seat.next_due = self._next(seat, seat.next_due)
        return self._due(seat, positions)

    def _due(self, seat: Seat, positions: list[int]) -> list[Emission]:
        """Those of the positions, with rows, whose checkpoints do not exist yet.

        If there are too few rows, the deepest have them: the end of a prompt or an answer is the last.
        """
        request, cache = seat.request, self.cache
        missing = [found for at in positions[-cache.capacity :] if (found := self._missing(seat, at)) is not None]
        due = []
        for position, digest, reasons in reversed(missing):
            row = cache.reserve(protected=request.prompt_key)
            if row is not None:
                due.append(Emission(position, digest, row, reasons))
        return due[::-1]

    def _missing(self, seat: Seat, position: int) -> tuple[int, bytes, Reason] | None:
        """Position, digest and reasons of what is to be written; None if the checkpoint exists already."""
        request = seat.request
        digest, reasons = request.prefix.at(seat.text, position), self._reasons(seat, position)
        if position == request.prompt_len:
            request.prompt_key = (position, digest)
        known = self.cache.get((position, digest))
        if known is not None and known.index is not None:
            self.cache.justify(known, reasons)
            return None
        return position, digest, reasons

    def _reasons(self, seat: Seat, position: int) -> Reason:
        request, step = seat.request, self.page_size if self.interval is None else self.interval
        found = Reason.GRID if step and position % step == 0 else Reason.HELD
        if position == request.prompt_len:
            found |= Reason.PROMPT_END
        if position == request.answer_end:
            found |= Reason.ANSWER_END
        if position in request.junctions:
            found |= Reason.JUNCTION
        if position in request.asked:
            found |= Reason.ASKED
        return found

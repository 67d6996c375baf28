"""Who sits where and what runs next: admission, prefill, decode, checkpoints, pages. Host bookkeeping only.

The path of a decode step is written to stay small: the time between two replays is the host's share of a token.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from time import perf_counter_ns

from runtime.checkpoints.cache import Checkpoint, CheckpointStore, SeenPrefixes
from runtime.errors import OutOfPages, StepCorrupt
from runtime.executor import Executor, Phase
from runtime.graphs import Graph
from runtime.checkpoints.pages import PagePool
from runtime.request import Progress, Request
from runtime.checkpoints.retention import NEVER, next_retained, retained, shared_pages
from runtime.seats import Seat, Seats
from runtime.stats import Counters

Emitted = list[tuple[Request, list[int]]]


class Scheduler:
    """Requests of one executor. drafts: tokens to draft in the next step; may be changed between steps."""

    def __init__(
        self,
        executor: Executor,
        pages: PagePool,
        checkpoints: CheckpointStore,
        seen: SeenPrefixes,
        *,
        slots: int,
        drafts: int,
        prefill_chunk: int,
    ) -> None:
        self.executor, self.pages, self.checkpoints, self.seen = executor, pages, checkpoints, seen
        self.limits = executor.limits
        self.seats = Seats(slots)
        self.waiting: deque[Request] = deque()
        self.counters = Counters()
        self.interval, self.page_size = self.limits.checkpoint_interval, self.limits.page_size
        self.drafts = self.drafted = drafts
        self.prefill_chunk = prefill_chunk
        self._last_end = 0
        self._midway = False
        self._step_key: tuple[list[int], int, int] | None = None
        self._step_graph: Graph | None = None
        self._step_row: array[int] = array("i")

    @property
    def busy(self) -> bool:
        """Whether a request waits or runs."""
        return bool(self.waiting) or self.seats.active > 0

    def submit(self, request: Request) -> None:
        """Queue a checked request."""
        self.counters.requests += 1
        self.waiting.append(request)

    def step(self) -> Emitted:
        """Admit, one prefill chunk for each slot that needs one, one decode step. Returns new tokens by request.

        Whatever is raised meanwhile, a KeyboardInterrupt too: every seated request ends with reason "error", nothing
        of the unfinished step is published, and later steps are right again.
        """
        if self._midway:
            self._abandon()
        self._midway = True
        try:
            emitted = self._iterate()
        except BaseException:
            self._abandon()
            raise
        self._midway = False
        return emitted

    def _abandon(self) -> None:
        """The device may be ahead of the host, and any bookkeeping half done: keep only what is published.

        Rebuilds instead of undoing, so that it may itself be interrupted and repeated.
        """
        for seat in self.seats.all():
            if not seat.request.finished:
                self._close(seat.request, "error")
        self.waiting = deque(request for request in self.waiting if not request.finished)
        self.seats.clear()
        self.checkpoints.reset()
        self.executor.reset()
        self._step_key, self._step_graph, self._last_end = None, None, 0
        self._midway = False

    def _iterate(self) -> Emitted:
        emitted: Emitted = []
        if self.waiting and self.seats.free:
            self._admit()
        if self.seats.prefilling:
            self._last_end = 0
            for seat in list(self.seats.prefilling):
                self._prefill(seat, emitted)
        if self.seats.decoding:
            self._decode(emitted)
        return emitted

    # Admission

    def _admit(self) -> None:
        while self.waiting and self.seats.free:
            request = self.waiting[0]
            seat = self.seats.admit(request)
            self.waiting.popleft()
            request.progress = Progress.PREFILL
            self.executor.admit(seat.slot, request.limit_len, request.temperature, request.seed, sorted(request.stops))
            checkpoint = self.checkpoints.find(request.tokens)
            if checkpoint is not None and self.checkpoints.usable(checkpoint, request.tokens):
                self._restore(seat, checkpoint)
            request.restored_position = seat.committed_len
            request.recomputed_tokens = max(0, self.seen.longest(request.tokens) - seat.committed_len)
            self.counters.restored_tokens += seat.committed_len
            self.counters.recomputed_tokens += request.recomputed_tokens

    def _restore(self, seat: Seat, checkpoint: Checkpoint) -> None:
        """Resume at exactly checkpoint.position; its page that is written again becomes the slot's own copy."""
        position, copied = checkpoint.position, None
        shared = shared_pages(position, self.page_size, self.executor.drafting)
        with self.checkpoints.in_use(checkpoint):
            seat.pages = list(checkpoint.pages[:shared])
            self.pages.share(seat.pages)
            for page in checkpoint.pages[shared:]:
                copied = (page, self._take_page())
                seat.pages.append(copied[1])
            self.executor.restore(seat.slot, checkpoint, seat.pages, copied)
        self.checkpoints.touch(checkpoint.key)
        self.checkpoints.counts.restored += 1
        seat.committed_len = seat.state_len = position
        seat.room = len(seat.pages) * self.page_size
        if position == seat.request.prompt_len:
            seat.request.prompt_key = checkpoint.key

    # Pages

    def _take_page(self) -> int:
        while not self.pages.free:
            if not self.checkpoints.evict():
                raise OutOfPages(wanted=1, free=0, total=self.pages.num_pages)
        return self.pages.take()

    def make_room(self, seat: Seat, length: int) -> None:
        """Give a seat the pages of KV entries 0 .. length - 1, or all that its request can ever write."""
        most = seat.request.limit_len - 1 + self.limits.max_drafts
        size, first = self.page_size, len(seat.pages)
        while len(seat.pages) * size < min(length, most):
            seat.pages.append(self._take_page())
        self.executor.set_pages(seat.slot, first, seat.pages[first:])
        seat.room = NEVER if len(seat.pages) * size >= most else len(seat.pages) * size

    # Prefill

    def _prefill(self, seat: Seat, emitted: Emitted) -> None:
        """The next chunk of a prompt; after the last one, the first token."""
        request, start = seat.request, seat.committed_len
        if start < request.prompt_len:
            begun = perf_counter_ns()
            end = min(start + self.prefill_chunk, request.prompt_len)
            self.make_room(seat, end)
            wanted = self._wanted_rows(seat, start, end)
            rows = {position: row for position, _, row in wanted}
            self.executor.prefill(seat.slot, start, request.tokens[start:end], rows)
            seat.committed_len = seat.state_len = end
            for position, digest, row in wanted:
                self._publish(seat, position, digest, row)
            self.counters.prefilled_tokens += end - start
            self.counters.prefill_ns += perf_counter_ns() - begun
        if seat.committed_len == request.prompt_len:
            self._begin(seat, emitted)

    def _wanted_rows(self, seat: Seat, start: int, end: int) -> list[tuple[int, bytes, int]]:
        """(position, digest, row) of the checkpoints to write in (start, end]: those that do not exist yet."""
        capacity = self.checkpoints.capacity
        if not capacity:
            return []
        positions = retained(seat.request.prompt_len, self.interval, self.page_size, end, start)
        wanted = [self._wanted(seat, position) for position in positions[-capacity:]]
        return [row for row in wanted if row is not None]

    def _wanted(self, seat: Seat, position: int) -> tuple[int, bytes, int] | None:
        """Reserve a row for a checkpoint of a seat; None if it exists already or no row can be had."""
        request = seat.request
        digest = request.prefix.at(request.tokens, position)
        key = (position, digest)
        if position == request.prompt_len:
            request.prompt_key = key
        if key in self.checkpoints:
            self.checkpoints.touch(key)
            return None
        row = self.checkpoints.reserve(protected=request.prompt_key)
        return None if row is None else (position, digest, row)

    def _publish(self, seat: Seat, position: int, digest: bytes, row: int) -> None:
        pages = seat.pages[: -(-position // self.page_size)]
        self.checkpoints.publish(position, digest, row, pages)

    def _begin(self, seat: Seat, emitted: Emitted) -> None:
        request = seat.request
        if not self.seats.decoding:
            self.drafted = self.drafts
        if self.executor.drafting:
            self.make_room(seat, seat.committed_len + max(self.drafted - 1, 0))
        token = self.executor.begin(seat.slot, self.drafted)
        self.seats.begin_decoding(seat)
        request.progress = Progress.DECODE
        request.first_token_at = time.perf_counter()
        if self.checkpoints.capacity:
            seat.next_due = next_retained(self.interval, self.page_size, seat.committed_len)
        request.tokens.append(token)
        self.counters.output_tokens += 1
        emitted.append((request, [token]))
        self._finish_if_due(seat, token)

    # Decode

    def _decode(self, emitted: Emitted) -> None:
        """One step of every decoding slot."""
        seats, verify, drafts = self.seats.decoding, self.drafted, self.drafts
        rows = verify + (drafts if drafts > 1 else 1)
        for seat in seats:
            if seat.committed_len + rows > seat.room:
                self.make_room(seat, seat.committed_len + rows)
            if seat.next_due <= seat.committed_len:
                self._arm(seat)
        graph, views = self._graph([seat.slot for seat in seats], verify, drafts), self.executor.views
        views["slot_idx"][:] = self._step_row
        begun = perf_counter_ns()
        self.executor.replay(graph)
        ended = perf_counter_ns()
        if self._last_end:
            self.counters.timeline.append((begun - self._last_end, ended - begun))
        self._last_end = ended
        self.drafted = drafts
        self.counters.steps += 1
        num_accepted, out_tokens, width = views["num_accepted"], views["out_tokens"], self.limits.max_rows
        for seat in tuple(seats):
            count, at = num_accepted[seat.slot], seat.slot * width
            if not 0 < count <= verify + 1:
                raise StepCorrupt(slot=seat.slot, count=count, rows=verify + 1)
            self._accept(seat, verify, out_tokens[at : at + count].tolist(), emitted)

    def _graph(self, slots: list[int], verify_drafts: int, next_drafts: int) -> Graph:
        """The graph of a step, looked up only when slots or drafts change; `_step_row` goes with it."""
        key = (slots, verify_drafts, next_drafts)
        if key != self._step_key or self._step_graph is None:
            bucket = self.executor.bucket(len(slots))
            self._step_graph = self.executor.graph(Phase.STEP, bucket, verify_drafts, next_drafts)
            self._step_row, self._step_key = self.executor.slot_row(slots), key
            self._last_end = 0
        return self._step_graph

    def _accept(self, seat: Seat, verified: int, tokens: list[int], emitted: Emitted) -> None:
        """Book what a slot accepted."""
        request = seat.request
        if seat.emit is not None:
            self._emitted(seat)
        seat.state_len = seat.committed_len
        seat.committed_len += len(tokens)
        request.tokens += tokens
        counts = request.accepted.get(verified)
        if counts is None:
            counts = request.accepted[verified] = [0] * (verified + 2)
        counts[len(tokens)] += 1
        self.counters.output_tokens += len(tokens)
        emitted.append((request, tokens))
        self._finish_if_due(seat, tokens[-1])

    # Checkpoints of a decoding slot

    def _due(self, seat: Seat) -> list[tuple[int, bytes, int]]:
        """Reserved rows of the positions that can be written now: next_due .. committed_len."""
        start, end = seat.next_due - 1, seat.committed_len
        seat.next_due = next_retained(self.interval, self.page_size, end)
        return self._wanted_rows(seat, start, end)

    def _arm(self, seat: Seat) -> None:
        """Have the next step write the last position due. A step writes one: those before it are saved first."""
        due = self._due(seat)
        for position, digest, row in due[:-1]:
            self._save(seat, position, digest, row)
        if due:
            seat.emit = due[-1]
            self.executor.arm(seat.slot, due[-1][0], due[-1][2])

    def _emitted(self, seat: Seat) -> None:
        if seat.emit is not None:
            self._publish(seat, *seat.emit)
            seat.emit = None
            self.executor.disarm(seat.slot)

    def _save(self, seat: Seat, position: int, digest: bytes, row: int) -> None:
        self._last_end = 0
        self.executor.save(seat.slot, position, row)
        seat.state_len = position
        self._publish(seat, position, digest, row)

    # Leaving

    def _finish_if_due(self, seat: Seat, last: int) -> None:
        request = seat.request
        if last in request.stops:
            self._finish(seat, "stop")
        elif len(request.tokens) >= request.limit_len:
            self._finish(seat, "limit")

    def _finish(self, seat: Seat, reason: str) -> None:
        """End a request; what is due of its checkpoints is saved first."""
        if seat.next_due <= seat.committed_len:
            for position, digest, row in self._due(seat):
                self._save(seat, position, digest, row)
        self._close(seat.request, reason)
        self._leave(seat)

    def _leave(self, seat: Seat) -> None:
        self.seen.add(seat.request.tokens[: seat.committed_len])
        self.pages.drop(seat.pages)
        self.seats.leave(seat)

    def _close(self, request: Request, reason: str) -> None:
        request.finished_at, request.finish_reason = time.perf_counter(), reason
        request.progress = Progress.FINISHED
        self.counters.finish(request)

    def cancel(self, request: Request) -> None:
        """End a request between steps. Nothing of it is saved."""
        if self._midway:
            self._abandon()
        if request.finished:
            return
        self._midway = True
        seat = self.seats.of(request)
        self._close(request, "cancelled")
        if seat is None:
            self.waiting.remove(request)
        else:
            self._leave(seat)
        self._midway = False

    def unfinished(self) -> list[Request]:
        """Every request that waits or runs."""
        return [*self.waiting, *(seat.request for seat in self.seats.all())]

    def cancel_all(self) -> None:
        """End every request."""
        for request in self.unfinished():
            self.cancel(request)

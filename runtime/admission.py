"""Give a request a slot with all of its past that a checkpoint has, pages as it grows, and take the slot back."""

from __future__ import annotations

import time
from array import array

from runtime.checkpoints.cache import PrefixCache
from runtime.checkpoints.checkpoint import Checkpoint, Reason
from runtime.checkpoints.retention import NEVER, PrefixHash
from runtime.checkpoints.tiers import Tiers
from runtime.executor import Executor
from runtime.request import Progress, Request
from runtime.roster import Roster
from runtime.seats import Seat


class Admission:
    """Slots and their pages. What requests find there comes from the cache, through its tiers."""

    def __init__(self, roster: Roster, executor: Executor, cache: PrefixCache, tiers: Tiers) -> None:
        self.roster, self.executor, self.cache, self.tiers = roster, executor, cache, tiers
        self.limits = executor.limits
        self.page_size = self.limits.page_size

    def seat(self, request: Request) -> None:
        """Give a request a free slot: it is restored as far as can be, and prefills from there."""
        seat = self.roster.seats.admit(request)
        request.progress = Progress.PREFILL
        self._note_time(request)
        request.prefix = PrefixHash()
        seat.text = array("i", request.tokens[: request.target_len])
        self.executor.admit(seat.slot, seat.text, request.prompt_len, request.options)
        seat.target_len = len(seat.text)
        checkpoint = self._past(request, seat.text)
        if checkpoint is not None:
            self._restore(seat, checkpoint)
        self.roster.let_go(request)
        self._account(seat)

    def _note_time(self, request: Request) -> None:
        now = time.perf_counter()
        if request.admitted_at is None:
            self.roster.counters.queue_seconds.add(now - request.submitted_at)
        request.admitted_at = now

    def _past(self, request: Request, text: array[int]) -> Checkpoint | None:
        """The checkpoint to resume from: its own, else the longest prefix that anybody has."""
        held = request.held
        if held is not None and self.cache.usable(held, text) and self.tiers.bring(held):
            return held
        return self.tiers.fetch(text) if self.cache.capacity else None

    def _restore(self, seat: Seat, checkpoint: Checkpoint) -> None:
        """Resume at exactly checkpoint.position; its page that is written again becomes the slot's own copy."""
        position, copied = checkpoint.position, None
        with self.cache.in_use(checkpoint):
            seat.pages = list(checkpoint.pages[: checkpoint.shared_pages])
            self.cache.pages.share(seat.pages)
            for page in checkpoint.pages[checkpoint.shared_pages :]:
                copied = (page, self.cache.take_page())
                seat.pages.append(copied[1])
            self.executor.restore(seat.slot, checkpoint, seat.pages, copied)
        self.cache.touch(checkpoint)
        self.cache.counts.restored += 1
        seat.committed_len = seat.state_len = position
        seat.near = (checkpoint.node, position)
        seat.room = len(seat.pages) * self.page_size
        if position == seat.request.prompt_len:
            seat.request.prompt_key = checkpoint.key
            self.cache.justify(checkpoint, Reason.PROMPT_END)

    def _account(self, seat: Seat) -> None:
        """What was restored, and what has to be processed again though it was before."""
        request, counters = seat.request, self.roster.counters
        lost = max(0, self.cache.known(seat.text, seat.near) - seat.committed_len)
        request.restored_position = seat.committed_len
        request.recomputed_tokens += lost
        counters.restored_tokens += seat.committed_len
        counters.recomputed_tokens += lost
        self.roster.queue.served(request.client, seat.target_len - seat.committed_len)

    def make_room(self, seat: Seat, length: int) -> None:
        """Give a seat the pages of KV entries 0 .. length - 1, or all that its request can ever write."""
        most = seat.request.limit_len - 1 + self.limits.max_drafts
        size, first = self.page_size, len(seat.pages)
        while len(seat.pages) * size < min(length, most):
            seat.pages.append(self.cache.take_page(seat.request.prompt_key))
        self.executor.set_pages(seat.slot, first, seat.pages[first:])
        seat.room = NEVER if len(seat.pages) * size >= most else len(seat.pages) * size

    def leave(self, seat: Seat) -> None:
        """Take a slot back. What it has processed is known text from now on."""
        if self.cache.capacity:
            self.cache.learn(seat.text, seat.near, seat.committed_len)
        self.cache.pages.drop(seat.pages)
        self.roster.seats.leave(seat)

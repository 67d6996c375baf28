"""Every request that lives, and where it is: in the queue, in a slot, or among the forks that wait for a prompt."""

from __future__ import annotations

import time

from runtime.checkpoints.cache import PrefixCache
from runtime.observe.stats import Counters
from runtime.queue import WaitingQueue
from runtime.request import Progress, Request
from runtime.seats import Seat, Seats


class Roster:
    """Bookkeeping of requests; nothing here touches the device. cache: of the checkpoints that requests hold."""

    def __init__(self, slots: int, cache: PrefixCache, counters: Counters) -> None:
        self.seats, self.queue = Seats(slots), WaitingQueue()
        self.requests: dict[int, Request] = {}
        self.cache, self.counters = cache, counters
        self.entering = False
        self.any_deadline = False

    # In

    def enter(self, request: Request) -> None:
        """A new request, or one that goes on after it had finished. It waits nowhere yet."""
        self.requests[request.id] = request
        self.any_deadline |= request.deadline is not None

    def submit(self, request: Request) -> None:
        """A new request, at the end of its line."""
        self.entering = True
        self.counters.requests += 1
        self.enter(request)
        self.queue.push(request)
        self.entering = False

    # Out

    def finish(self, request: Request, reason: str) -> None:
        """It has ended: what it held goes, and forks that waited for it are on their own."""
        self.mark_finished(request, reason)
        self.let_go(request)
        self.release_children(request)
        self.requests.pop(request.id, None)

    def mark_finished(self, request: Request, reason: str) -> None:
        """It has ended; nothing else changes."""
        request.finished_at, request.finish_reason = time.perf_counter(), reason
        request.progress = Progress.FINISHED
        self.counters.finish(request)

    def let_go(self, request: Request) -> None:
        """It needs the checkpoint that it held no longer."""
        if request.held is not None:
            held, request.held = request.held, None
            self.cache.drop(held)

    def release_children(self, request: Request) -> None:
        """Queue the forks that waited for this request's prompt."""
        children, request.children = request.children, []
        for child in children:
            if not child.finished:
                self.queue.push(child)

    def wait_no_more(self, request: Request) -> None:
        """Take it out of the queue, or from among the forks that wait for a prompt."""
        if request in self.queue:
            self.queue.remove(request)
        for other in self.requests.values():
            if request in other.children:
                other.children.remove(request)

    def late(self) -> list[Request]:
        """Requests whose deadline has passed."""
        if not self.any_deadline:
            return []
        now = time.perf_counter()
        timed = [request for request in self.requests.values() if request.deadline is not None]
        self.any_deadline = bool(timed)
        return [request for request in timed if request.deadline is not None and request.deadline <= now]

    # Next

    def next_to_seat(self) -> tuple[Request, Seat | None] | None:
        """Who gets a slot now, and whose, if none is free: that of the lowest priority, if it is lower."""
        if self.seats.free:
            request = self.queue.peek()
            return None if request is None else (request, None)
        top = self.queue.top()
        victim = None if top is None else self.seats.lowest(below=top)
        request = None if victim is None else self.queue.highest()
        return None if request is None else (request, victim)

    # After an interruption

    def abandon(self) -> None:
        """Those in slots have ended in an error; those that wait stay, with what they hold."""
        for request in list(self.requests.values()):
            if request.progress in (Progress.PREFILL, Progress.DECODE):
                request.held, request.children = None, []
                self.mark_finished(request, "error")
        self.seats.clear()
        self.requeue()
        for checkpoint in self.cache.all():
            checkpoint.busy, checkpoint.holders = 0, 0
        for request in self.requests.values():
            if request.held is not None:
                request.held.holders += 1

    def requeue(self) -> None:
        """Fill the queue anew: the unfinished requests without a seat, but for forks that wait for their parent."""
        seated = {seat.request.id for seat in self.seats.all()}
        self.requests = {request.id: request for request in self.requests.values() if not request.finished}
        elsewhere = seated.union(child.id for request in self.requests.values() for child in request.children)
        self.queue.reset([request for request in self.requests.values() if request.id not in elsewhere])
        self.entering = False

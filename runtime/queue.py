"""The requests that wait for a slot: by priority, within one priority fair over clients, within one client in turn.

Fairness is the virtual token counter of "Fairness in Serving Large Language Models" (Sheng et al., OSDI 2024; the
authors' code: Ying1123/VTC-artifact, slora/server/router/vtc_req_queue.py): each client has a counter of the service it
got, the one with the least goes first, and who comes to wait is lifted to the least counter among those who wait
already, so that nobody saves up credit by staying away.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtime.request import Request

PROMPT_WEIGHT, OUTPUT_WEIGHT = 1, 2  # of a token processed as a prompt and of one emitted, as in the paper
DEFAULT_PATIENCE = 256
REMEMBERED = 4096


@dataclass(slots=True, eq=False)
class Line:
    """Requests of one client and one priority, in turn. waits_from: admissions at its last one, or when it filled."""

    client: str
    priority: int
    waits_from: int
    requests: OrderedDict[Request, None] = field(default_factory=OrderedDict)


class WaitingQueue:
    """Requests that wait. The order depends on the calls only, not on time.

    patience: a line that is passed over by so many admissions rises by one priority, again after as many more, until
    one of it is admitted. A line of priority p is therefore passed over by at most `patience * (q - p + 1)` admissions,
    q being the highest priority that is asked for, and one more per other line. The line rises, not each request that
    stands in it, or a client would overtake the others by the length of its line. While no line rises, the service of
    two clients that always have requests of one priority waiting differs by at most twice what one admission, or all
    running requests together, can cost.

    A request's id, priority and client must not change while it waits. Every change is one operation on one
    container: an exception between any two (KeyboardInterrupt) leaves a queue that can be used.
    """

    def __init__(self, patience: int = DEFAULT_PATIENCE) -> None:
        self.patience = patience
        self._lines: dict[tuple[str, int], Line] = {}
        self._service: dict[str, int] = {}
        self._admissions = 0
        self._last_client: str | None = None
        self._head: Request | None = None
        self._top: int | None = None

    # In

    def push(self, request: Request) -> None:
        """At the end of its client's line."""
        line = self._line(request)
        self._head = self._top = None
        line.requests[request] = None

    def push_front(self, request: Request) -> None:
        """At the front of its client's line: a request that had been admitted and was preempted."""
        self.push(request)
        self._line(request).requests.move_to_end(request, last=False)

    def _line(self, request: Request) -> Line:
        """The line of a request; an empty one begins to age now, and lifts its client."""
        key = request.client, request.priority
        line = self._lines.get(key)
        if line is None or not line.requests:
            self._lift(request.client)
            line = self._lines[key] = Line(*key, self._admissions)
        return line

    def _lift(self, client: str) -> None:
        """Give who comes to wait at least the least counter among those who wait, or that of the last who did."""
        active = {line.client for line in self._lines.values() if line.requests}
        if not active and self._last_client is not None:
            active = {self._last_client}
        level = min((self._service.get(other, 0) for other in active), default=0)
        self._service[client] = max(self._service.get(client, 0), level)
        self._forget(active | {client})

    def _forget(self, active: set[str]) -> None:
        """Keep the table of counters bounded: those who are away and owe least are forgotten."""
        if len(self._service) > 2 * (REMEMBERED + len(active)):
            away = sorted((client for client in self._service if client not in active), key=self._service.__getitem__)
            for client in away[:-REMEMBERED]:
                del self._service[client]

    # Out

    def peek(self) -> Request | None:
        """Who is next. O(lines), O(1) until something changes."""
        if self._head is None:
            first = min(filter(_waits, self._lines.values()), key=self._rank, default=None)
            self._head = None if first is None else next(iter(first.requests))
        return self._head

    def _rank(self, line: Line) -> tuple[int, int, int]:
        """The least goes first: effective priority, then service, then the older request."""
        return -line.priority - self._risen(line), self._service[line.client], next(iter(line.requests)).id

    def top(self) -> int | None:
        """The highest priority that waits, without what lines have risen by; None if nobody does. O(1), as `peek`."""
        if self._top is None:
            self._top = max((line.priority for line in self._lines.values() if line.requests), default=None)
        return self._top

    def highest(self) -> Request | None:
        """Who is next by priority alone, without what lines have risen by: the one that may take another's slot."""
        lines = filter(_waits, self._lines.values())
        first = min(lines, key=lambda line: (-line.priority, *self._rank(line)), default=None)
        return None if first is None else next(iter(first.requests))

    def pop(self) -> Request:
        """Admit the one that `peek` shows. Raises IndexError if nobody waits."""
        request = self.peek()
        if request is None:
            raise IndexError("nobody waits")
        self.admit(request)
        return request

    def admit(self, request: Request) -> None:
        """Take out one that gets a slot: the first of its line. Raises KeyError if it does not wait."""
        line = self._lines[request.client, request.priority]
        self.remove(request)
        self._admissions += 1
        line.waits_from = self._admissions

    def remove(self, request: Request) -> None:
        """Take one out that gave up. Raises KeyError if it does not wait."""
        line = self._lines[request.client, request.priority]
        self._head = self._top = None
        del line.requests[request]
        if not line.requests:
            self._last_client = line.client
            del self._lines[line.client, line.priority]

    def reset(self, requests: Iterable[Request]) -> None:
        """Start again with these, in order: for a scheduler that was interrupted. What clients were served stays."""
        self._lines, self._head, self._top = {}, None, None
        for request in requests:
            self.push(request)

    # Fairness

    def served(self, client: str, prompt_tokens: int, output_tokens: int = 0) -> None:
        """Charge a client for tokens processed and emitted.

        A prompt should be charged as soon as it is admitted, or one client could fill all the slots that are free.
        """
        self._head = None
        cost = PROMPT_WEIGHT * prompt_tokens + OUTPUT_WEIGHT * output_tokens
        self._service[client] = self._service.get(client, 0) + cost

    def effective_priority(self, request: Request) -> int:
        """Its own, and what its line has risen by. Raises KeyError if it does not wait."""
        line = self._lines[request.client, request.priority]
        return line.priority + self._risen(line)

    def _risen(self, line: Line) -> int:
        return (self._admissions - line.waits_from) // self.patience

    # Looking

    def __len__(self) -> int:
        return sum(len(line.requests) for line in self._lines.values())

    def __bool__(self) -> bool:
        return any(line.requests for line in self._lines.values())

    def __iter__(self) -> Iterator[Request]:
        """In the order of their ids: as they were submitted."""
        waiting = [request for line in self._lines.values() for request in line.requests]
        return iter(sorted(waiting, key=lambda request: request.id))

    def __contains__(self, request: Request) -> bool:
        line = self._lines.get((request.client, request.priority))
        return line is not None and request in line.requests


def _waits(line: Line) -> bool:
    return bool(line.requests)

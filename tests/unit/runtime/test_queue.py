"""The waiting queue in lock-step with a model that looks at every request, and what it promises: turns and shares."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from runtime import queue as module
from runtime.queue import OUTPUT_WEIGHT, PROMPT_WEIGHT, WaitingQueue

CLIENTS, PRIORITIES, PATIENCE = "abc", (-1, 0, 0, 2), 3


@dataclass(eq=False)
class Waiting:
    """What the queue reads of a request."""

    id: int
    priority: int = 0
    client: str = ""


class Model:
    """One flat list, in turn; everything else is computed from it when it is asked for."""

    def __init__(self, patience: int) -> None:
        self.patience, self.admissions = patience, 0
        self.waiting: list[Waiting] = []
        self.service: defaultdict[str, int] = defaultdict(int)
        self.last_turn: dict[tuple[str, int], int] = {}
        self.last_client: str | None = None

    def line(self, request: Waiting) -> list[Waiting]:
        return [r for r in self.waiting if (r.client, r.priority) == (request.client, request.priority)]

    def push(self, request: Waiting, front: bool = False) -> None:
        clients = {r.client for r in self.waiting}
        if request.client not in clients:
            others = clients or {self.last_client or request.client}
            level = min(self.service[client] for client in others)
            self.service[request.client] = max(self.service[request.client], level)
        if not self.line(request):
            self.last_turn[request.client, request.priority] = self.admissions
        line = self.line(request)
        self.waiting.insert(self.waiting.index(line[0]) if front and line else len(self.waiting), request)

    def effective(self, request: Waiting) -> int:
        passed = self.admissions - self.last_turn[request.client, request.priority]
        return request.priority + passed // self.patience

    def peek(self) -> Waiting | None:
        heads = [r for r in self.waiting if self.line(r)[0] is r]
        order = sorted(heads, key=lambda r: (-self.effective(r), self.service[r.client], r.id))
        return order[0] if order else None

    def remove(self, request: Waiting) -> None:
        self.waiting.remove(request)
        if not self.line(request):
            self.last_client = request.client

    def pop(self) -> Waiting:
        request = self.peek()
        self.remove(request)
        self.admissions += 1
        self.last_turn[request.client, request.priority] = self.admissions
        return request


class QueueMachine(RuleBasedStateMachine):
    """Every call on both; the invariant compares all that can be seen."""

    def __init__(self) -> None:
        super().__init__()
        self.queue, self.model = WaitingQueue(PATIENCE), Model(PATIENCE)
        self.ids, self.running = itertools.count(), []

    @rule(client=st.sampled_from(CLIENTS), priority=st.sampled_from(PRIORITIES))
    def push(self, client: str, priority: int) -> None:
        request = Waiting(next(self.ids), priority, client)
        self.queue.push(request)
        self.model.push(request)

    @precondition(lambda self: self.running)
    @rule(which=st.randoms(use_true_random=False))
    def preempt(self, which: Random) -> None:
        request = self.running.pop(which.randrange(len(self.running)))
        self.queue.push_front(request)
        self.model.push(request, front=True)

    @precondition(lambda self: self.model.waiting)
    @rule()
    def pop(self) -> None:
        request = self.queue.pop()
        assert request is self.model.pop()
        self.running.append(request)

    @precondition(lambda self: self.model.waiting)
    @rule(which=st.randoms(use_true_random=False))
    def remove(self, which: Random) -> None:
        request = which.choice(self.model.waiting)
        self.queue.remove(request)
        self.model.remove(request)

    @rule(client=st.sampled_from(CLIENTS), prompt=st.integers(0, 30), output=st.integers(0, 30))
    def serve(self, client: str, prompt: int, output: int) -> None:
        self.queue.served(client, prompt, output)
        self.model.service[client] += PROMPT_WEIGHT * prompt + OUTPUT_WEIGHT * output

    @rule(which=st.randoms(use_true_random=False))
    def reset(self, which: Random) -> None:
        requests = [r for r in [*self.model.waiting, *self.running] if which.random() < 0.8]
        which.shuffle(requests)
        self.running = [r for r in self.running if r not in requests]
        self.queue.reset(requests)
        self.model.waiting = []
        for request in requests:
            self.model.push(request)

    @invariant()
    def agree(self) -> None:
        waiting = self.model.waiting
        assert self.queue.peek() is self.queue.peek() is self.model.peek()
        highest = self.queue.highest()
        assert (highest.priority if highest else None) == max((r.priority for r in waiting), default=None)
        assert list(self.queue) == sorted(waiting, key=lambda r: r.id)
        assert len(self.queue) == len(waiting) and bool(self.queue) == bool(waiting)
        assert all(request in self.queue for request in waiting)
        assert not any(request in self.queue for request in self.running)
        assert all(self.queue.effective_priority(r) == self.model.effective(r) for r in waiting)


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=80, stateful_step_count=60, deadline=None)


def test_turns_of_one_client_and_empty_queues() -> None:
    queue = WaitingQueue()
    assert not queue and queue.peek() is queue.highest() is None
    for call in (queue.pop, lambda: queue.remove(Waiting(0)), lambda: queue.effective_priority(Waiting(0))):
        with pytest.raises(LookupError):
            call()
    requests = [Waiting(i) for i in range(5)]
    for request in requests[1:]:
        queue.push(request)
    queue.push_front(requests[0])
    assert [queue.pop() for _ in requests] == requests and not queue


def test_who_was_away_has_saved_nothing() -> None:
    """Both ways a client can come back: others wait, or nobody does."""
    queue, ids = WaitingQueue(), itertools.count()
    queue.served("steady", 1000)
    queue.push(Waiting(next(ids), client="steady"))
    for _ in range(3):
        queue.push(Waiting(next(ids), client="back"))
    order = []
    while queue:
        request = queue.pop()
        order.append(request.client)
        queue.served(request.client, 10)
    assert order == ["steady", "back", "back", "back"]  # lifted to 1000; the older request goes first
    queue.served("back", 500)
    for client in ("third", "back", "third"):
        queue.push(Waiting(next(ids), client=client))
    order = []
    while queue:
        request = queue.pop()
        order.append(request.client)
        queue.served(request.client, 1)
    assert order == ["third", "back", "third"]  # lifted to that of "back", who waited last


def test_who_was_away_owes_what_it_owed() -> None:
    queue = WaitingQueue()
    queue.served("greedy", 1000)
    for i, client in enumerate(("steady", "steady", "greedy", "steady")):
        queue.push(Waiting(i, client=client))
    order = []
    while queue:
        order.append(queue.pop().client)
        queue.served(order[-1], 10)
    assert order == ["steady", "steady", "steady", "greedy"]


@given(st.data())
def test_a_line_is_passed_over_a_bounded_number_of_times(data: st.DataObject) -> None:
    """Others may flood the queue with higher priorities, new clients and cheap requests."""
    queue, ids, patience = WaitingQueue(PATIENCE), itertools.count(), PATIENCE
    highest, lowest, clients = 2, data.draw(st.integers(-2, 2)), data.draw(st.integers(1, 8))
    flood = Random(data.draw(st.integers(0, 1 << 32)))
    queue.served("victim", 10**6)
    victims = [Waiting(next(ids), lowest, "victim") for _ in range(4)]
    lines = 2 * clients
    bound = max(0, patience * (highest - lowest + 1)) + lines
    for victim in victims:
        queue.push(victim)
    passed, admitted = 0, []
    while len(admitted) < len(victims):
        for client in range(clients):
            queue.push(Waiting(next(ids), flood.choice((highest, highest - 1)), f"c{client}"))
        request = queue.pop()
        passed = 0 if request in victims else passed + 1
        admitted += [request] if request in victims else []
        assert passed <= bound
        if flood.random() < 0.3:
            queue.served(request.client, flood.randrange(3))
    assert admitted == victims


@given(st.data())
def test_two_clients_that_always_wait_get_the_same_service(data: st.DataObject) -> None:
    """Over every interval it differs by at most twice max(cost of a prompt, cost of all tokens that run at once)."""
    sizes = [data.draw(st.tuples(st.integers(1, 40), st.integers(1, 40)), label=client) for client in "fg"]
    slots, others = data.draw(st.integers(1, 6)), data.draw(st.integers(0, 3))
    rng = Random(data.draw(st.integers(0, 1 << 32)))
    sizes += [(rng.randint(1, 40), rng.randint(1, 40)) for _ in range(others)]
    longest_prompt, longest_answer = max(p for p, _ in sizes), max(a for _, a in sizes)
    most = 2 * max(PROMPT_WEIGHT * longest_prompt, OUTPUT_WEIGHT * slots * (longest_prompt + longest_answer))
    queue, ids, running, got = WaitingQueue(10**9), itertools.count(), [], [0] * len(sizes)
    for client in (0, 1, *range(len(sizes))):
        queue.push(Waiting(next(ids), client=str(client)))
    differences = []
    for _ in range(300):
        while len(running) < slots:
            request = queue.pop()
            client = int(request.client)
            if client < 2 or rng.random() < 0.5:
                queue.push(Waiting(next(ids), client=request.client))
            queue.served(request.client, sizes[client][0])
            got[client] += PROMPT_WEIGHT * sizes[client][0]
            running.append([client, rng.randint(1, sizes[client][1])])
            differences.append(got[0] - got[1])
        for seat in running:
            queue.served(str(seat[0]), 0, 1)
            got[seat[0]] += OUTPUT_WEIGHT
            seat[1] -= 1
        running = [seat for seat in running if seat[1]]
        differences.append(got[0] - got[1])
        if others and not any(request.client == "2" for request in queue) and rng.random() < 0.2:
            queue.push(Waiting(next(ids), client="2"))
    assert max(differences) - min(differences) <= most


@pytest.mark.parametrize("flood", [1, 1000])
def test_the_length_of_a_line_wins_nothing(flood: int) -> None:
    """A client with few requests is next but one, however many another has waiting, and for how long."""
    queue, ids = WaitingQueue(PATIENCE), itertools.count()
    for _ in range(flood + 50):
        queue.push(Waiting(next(ids), client="many"))
    for _ in range(flood):
        queue.served(queue.pop().client, 10)
    few = Waiting(next(ids), client="few")
    queue.push(few)
    admitted = []
    while few not in admitted:
        admitted.append(queue.pop())
        queue.served(admitted[-1].client, 10)
    assert len(admitted) <= 2


def test_counters_stay_bounded(monkeypatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 10)
    queue = WaitingQueue()
    for i in range(500):
        queue.served(f"c{i}", 1000 - i)
        request = Waiting(i, client=f"c{i % 3}")
        queue.push(request)
        assert queue.pop() is request
    assert len(queue._service) <= 2 * 11 + 1
    assert {f"c{i}" for i in range(8)} <= set(queue._service), "those who owe most are remembered"


def test_thousands_of_requests_are_no_trouble() -> None:
    queue, rng = WaitingQueue(), Random(5)
    requests = [Waiting(i, rng.randrange(2), f"c{rng.randrange(100)}") for i in range(10_000)]
    begun = time.perf_counter()
    for request in requests:
        queue.push(request)
    while queue:
        queue.served(queue.pop().client, 7, 3)
    assert time.perf_counter() - begun < 10

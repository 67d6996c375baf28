"""Who runs when: admits, prefills in chunks under a budget, decodes all slots together, preempts, finishes.

Device work goes through an Executor, checkpoints through an Emitter, requests through a Roster.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter, perf_counter_ns

from runtime.adaptive import AdaptiveDrafts
from runtime.admission import Admission
from runtime.checkpoints.cache import PrefixCache
from runtime.checkpoints.checkpoint import Checkpoint
from runtime.checkpoints.tiers import Tiers
from runtime.emission import Emitter
from runtime.errors import GrammarFailed, ResumeDiffers, StepCorrupt
from runtime.executor import Executor, GraphKey, Phase
from runtime.grammar import asking_grammar_of, follow
from runtime.graphs import Graph
from runtime.logprobs import logprobs
from runtime.observe.canary import Canary
from runtime.observe.stats import Counters
from runtime.observe.watch import AcceptanceWatch
from runtime.prefill import Prefill
from runtime.request import Options, Progress, Request
from runtime.roster import Roster
from runtime.seats import Seat
from runtime.stops import stopped_at

Emitted = list[tuple[Request, list[int]]]


class Scheduler:
    """Requests of one executor. drafts: tokens to draft in the next step; may be changed between steps.

    prefill_chunk: tokens of one prefill launch; prefill_budget: prompt tokens per step over all slots, None for one
    chunk of each slot that prefills. interval: of checkpoints, as an Emitter's; canary: None to check no step.
    """

    def __init__(
        self,
        executor: Executor,
        cache: PrefixCache,
        tiers: Tiers,
        *,
        slots: int,
        drafts: int,
        prefill_chunk: int,
        prefill_budget: int | None,
        interval: int | None,
        canary: Canary | None = None,
    ) -> None:
        self.executor, self.cache, self.tiers = executor, cache, tiers
        self.emitter = Emitter(executor, cache, tiers, interval)
        self.limits = executor.limits
        self.counters = Counters()
        self.roster = Roster(slots, cache, self.counters)
        self.seats, self.queue = self.roster.seats, self.roster.queue
        self.admission = Admission(self.roster, executor, cache, tiers)
        self.canary = canary
        self.watch = AcceptanceWatch(lambda: None if canary is None else canary.agreed)
        self.drafts = self.drafted = drafts
        self.adaptive: AdaptiveDrafts | None = None
        parts = (executor, cache, self.emitter, self.admission, self.counters)
        self.prefill = Prefill(*parts, chunk=prefill_chunk, budget=prefill_budget)
        self._last_end = 0
        self._midway = False
        self._step_key: tuple[list[int], int, int] | None = None
        self._graph_key: GraphKey = (Phase.STEP, 0, 0, 0)
        self._step_graph: Graph | None = None
        self._step_row: array[int] = array("i")

    @property
    def busy(self) -> bool:
        """Whether a request waits or runs."""
        return bool(self.roster.requests)

    @property
    def num_waiting(self) -> int:
        """Requests without a slot."""
        return len(self.roster.requests) - self.seats.active

    def submit(self, request: Request) -> None:
        """Queue a checked request."""
        self._recover()
        self.roster.submit(request)

    def step(self) -> Emitted:
        """Admit, prefill within the budget, one decode step. Returns new tokens by request.

        Whatever is raised meanwhile, a KeyboardInterrupt too: every seated request ends with reason "error", nothing
        of the unfinished step is published, and later steps are right again.
        """
        self._recover()
        self._midway = True
        try:
            emitted = self._iterate()
        except BaseException:
            self._abandon()
            raise
        self._midway = False
        return emitted

    def _iterate(self) -> Emitted:
        emitted: Emitted = []
        self.tiers.collect()
        for request in self.roster.late():
            self._end(request, "deadline")
        if self.queue:
            self._admit()
        if self.seats.prefilling:
            self._last_end = 0
            self._prefill(emitted)
        if self.seats.decoding:
            self._decode(emitted)
        return emitted

    def _admit(self) -> None:
        """Fill free slots; a request of higher priority takes that of the lowest."""
        while (chosen := self.roster.next_to_seat()) is not None:
            request, victim = chosen
            self.queue.admit(request)
            if victim is not None:
                self._preempt(victim)
            self.admission.seat(request)

    # Interruption

    @contextmanager
    def changing(self) -> Iterator[None]:
        """A change of several parts: if an exception leaves it, the next call abandons what was running."""
        self._recover()
        self._midway = True
        yield
        self._midway = False

    def _recover(self) -> None:
        if self._midway:
            self._abandon()
        elif self.roster.entering:
            self.roster.requeue()

    def _abandon(self) -> None:
        """The device may be ahead of the host, and any bookkeeping half done: keep only what is published or held.

        Rebuilds instead of undoing, so that it may itself be interrupted and repeated.
        """
        self.roster.abandon()
        self.tiers.reset()
        self.executor.reset()
        self._step_key, self._step_graph, self._last_end = None, None, 0
        self._midway = False

    # Prefill

    def _prefill(self, emitted: Emitted) -> None:
        """Prompts of this step, packed into few launches; then first tokens of those that have ended, in one."""
        self.prefill.run(self.seats.by_priority())
        ended = [seat for seat in self.seats.prefilling if seat.committed_len == seat.target_len]
        if ended:
            self._begin(ended, emitted)

    def _begin(self, seats: list[Seat], emitted: Emitted) -> None:
        """The tokens after what was prefilled or restored."""
        if not self.seats.decoding:
            self.drafted = self.drafts
        seats = self._masked(seats, 0, begins=True)
        if not seats:
            return
        if self.executor.drafting:
            for seat in seats:
                self.admission.make_room(seat, seat.committed_len + max(self.drafted - 1, 0))
        tokens = self.executor.begin([seat.slot for seat in seats], self.drafted)
        for seat, token in zip(seats, tokens, strict=True):
            try:
                self._begun(seat, token, emitted)
            except GrammarFailed as error:
                self._fail(seat, error)

    def _begun(self, seat: Seat, token: int, emitted: Emitted) -> None:
        """A first token: a new one, or once more the one that a resumed request has."""
        request = seat.request
        self.seats.begin_decoding(seat)
        request.progress = Progress.DECODE
        self.emitter.start(seat)
        self.roster.release_children(request)
        if self.adaptive is not None:
            self.adaptive.joined()
        if request.pending:
            self._check_again(request, token)
            seat.text.append(token)
            if request.options.grammar is not None:
                with asking_grammar_of(request.id):
                    follow(request.options.grammar, [token])
            return
        _, ended = self._ends(request, [token])
        if request.first_token_at is None:
            request.first_token_at = perf_counter()
            self.counters.first_token_seconds.add(request.first_token_at - request.submitted_at)
        request.tokens.append(token)
        request.pending = True
        request.drawn += 1
        self._report(seat, seat.committed_len, [token], emitted)
        self._finish_if_due(seat, token, ended)

    def _masked(self, seats: list[Seat], num_drafts: int, begins: bool = False) -> list[Seat]:
        """Those whose grammar has said what may come next, and those without one. begins: no draft is there yet."""
        guided = [(seat, matcher) for seat in seats if (matcher := seat.request.options.grammar) is not None]
        failed = []
        for seat, matcher in guided:
            try:
                with asking_grammar_of(seat.request.id):
                    if begins and seat.request.pending:
                        matcher.rollback(1)
                    self.executor.mask(seat.slot, matcher, num_drafts)
            except GrammarFailed as error:
                failed.append(seat)
                self._fail(seat, error)
        return [seat for seat in seats if seat not in failed] if failed else seats

    def _fail(self, seat: Seat, error: GrammarFailed) -> None:
        """End one request alone; nothing more of it is saved."""
        seat.request.error = error
        self._end(seat.request, "error")

    def _check_again(self, request: Request, token: int) -> None:
        if token != request.tokens[-1]:
            raise ResumeDiffers(
                request=request.id, position=request.target_len, found=token, expected=request.tokens[-1]
            )

    def _report(self, seat: Seat, position: int, tokens: list[int], emitted: Emitted) -> None:
        """Hand tokens out. position: of the first of them."""
        request = seat.request
        seat.text.extend(tokens)
        if request.options.logprobs is not None:
            scores = self.executor.score(seat.slot, range(position - 1, position - 1 + len(tokens)))
            request.logprobs += logprobs(scores, tokens, request.options.logprobs)
        self.counters.output_tokens += len(tokens)
        self.queue.served(request.client, 0, len(tokens))
        emitted.append((request, tokens))

    # Decode

    def _decode(self, emitted: Emitted) -> None:
        """One step of every decoding slot."""
        seats, verify, adaptive = self.seats.decoding, self.drafted, self.adaptive
        if adaptive is not None:
            started, known = perf_counter_ns(), len(self.executor.graphs)
            self.drafts = adaptive.choose(self._bucket(seats))
            verify = self.drafts if self.drafts <= verify else 0  # so that few graphs do: K to K, and 0 to K
        drafts = self.drafts
        rows = verify + (drafts if drafts > 1 else 1)
        if not (seats := self._masked(seats, verify)):
            return
        for seat in seats:
            if seat.committed_len + rows > seat.room:
                self.admission.make_room(seat, seat.committed_len + rows)
            if seat.next_due <= seat.committed_len:
                self.emitter.arm(seat)
        slots = [seat.slot for seat in seats]
        graph, views = self._graph(slots, verify, drafts), self.executor.views
        views["slot_idx"][:] = self._step_row
        begun = perf_counter_ns()
        twice = self._replay(graph, slots)
        ended = perf_counter_ns()
        if not twice:
            self.counters.step_seconds.add((ended - begun) * 1e-9)
            if self._last_end:
                self.counters.timeline.append((begun - self._last_end, ended - begun))
        if adaptive is not None and adaptive.attentive:
            ordinary = verify == drafts and not twice and len(self.executor.graphs) == known
            seconds = (ended - (self._last_end or started)) * 1e-9 if ordinary else None
            accepted = [views["num_accepted"][seat.slot] - 1 for seat in seats]
            adaptive.observe(self._graph_key[1], verify, seconds, accepted)
        self._last_end = ended
        self.drafted = drafts
        self.counters.steps += 1
        batch = len(seats)
        num_accepted, out_tokens, width = views["num_accepted"], views["out_tokens"], self.limits.max_rows
        for seat in tuple(seats):
            count, at = num_accepted[seat.slot], seat.slot * width
            if not 0 < count <= verify + 1:
                raise StepCorrupt(slot=seat.slot, count=count, rows=verify + 1)
            self._accept(seat, verify, out_tokens[at : at + count].tolist(), emitted)
            if verify and not seat.request.finished:
                self.watch.add(seat.request, verify, count, batch)

    def _bucket(self, seats: list[Seat]) -> int:
        """Of the step before, if it had as many slots."""
        return (
            self._graph_key[1]
            if self._step_key and len(self._step_key[0]) == len(seats)
            else self.limits.bucket(len(seats))
        )

    def _replay(self, graph: Graph, slots: list[int]) -> bool:
        """Run a step; True if the canary ran it twice: the graphs may be others now."""
        if self.canary is None:
            self.executor.replay(graph)
            return False
        if not self.canary.replay(graph, self._graph_key, slots):
            return False
        self._step_key = None
        return True

    def _graph(self, slots: list[int], verify_drafts: int, next_drafts: int) -> Graph:
        """The graph of a step, looked up only when slots or drafts change; `_step_row` goes with it."""
        key = (slots, verify_drafts, next_drafts)
        if key != self._step_key or self._step_graph is None:
            bucket = self.executor.limits.bucket(len(slots))
            self._graph_key = (Phase.STEP, bucket, verify_drafts, next_drafts)
            self._step_graph = self.executor.graph(*self._graph_key)
            self._step_row, self._step_key = self.executor.slot_row(slots), key
            self._last_end = 0
        return self._step_graph

    def _accept(self, seat: Seat, verified: int, tokens: list[int], emitted: Emitted) -> None:
        """Book what a slot accepted."""
        request = seat.request
        if seat.emit is not None:
            self.emitter.emitted(seat)
        try:
            tokens, ended = self._ends(request, tokens)
        except GrammarFailed as error:
            self._fail(seat, error)
            return
        start = seat.state_len = seat.committed_len
        seat.committed_len += len(tokens)
        request.tokens += tokens
        for accepted in (request.accepted, self.counters.accepted):
            counts = accepted.get(verified)
            if counts is None:
                counts = accepted[verified] = [0] * (verified + 2)
            counts[len(tokens)] += 1
        self._report(seat, start + 1, tokens, emitted)
        self._finish_if_due(seat, tokens[-1], ended)

    # Leaving

    @staticmethod
    def _ends(request: Request, tokens: list[int]) -> tuple[list[int], str | None]:
        """New tokens up to the one that ends the answer for a reason that the kernels do not know, and the reason."""
        options, ended = request.options, None
        if options.grammar is not None:
            with asking_grammar_of(request.id):
                count, ended = follow(options.grammar, tokens)
            tokens = tokens[:count]
            if tokens[-1] in request.stops and request.output_len + count <= options.sampling.min_tokens:
                ended = "grammar"  # nothing else was left
        if options.stop:
            count = stopped_at(options.stop, request.tokens, request.prompt_len, tokens, request.earliest_stop) or 0
            tokens, ended = (tokens[:count], "stop") if count else (tokens, ended)
        return tokens, ended

    def _finish_if_due(self, seat: Seat, last: int, ended: str | None) -> None:
        request = seat.request
        if last in request.stops and ended != "grammar":
            self._finish(seat, "stop")
        elif ended is not None:
            self._finish(seat, ended)
        elif len(request.tokens) >= request.limit_len:
            self._finish(seat, "limit")

    def _finish(self, seat: Seat, reason: str) -> None:
        """End a request; what is due of its checkpoints is saved first, its end too."""
        self.emitter.finish(seat)
        self.roster.finish(seat.request, reason)
        self.admission.leave(seat)

    def cancel(self, request: Request, reason: str = "cancelled") -> None:
        """End a request between steps. Nothing of it is saved."""
        with self.changing():
            if not request.finished:
                self._end(request, reason)

    def _end(self, request: Request, reason: str) -> None:
        self._withdraw(request)
        self.roster.finish(request, reason)

    def _withdraw(self, request: Request) -> None:
        """From its slot, or from where it waits."""
        seat = self.seats.of(request)
        if seat is not None:
            self.admission.leave(seat)
        elif not request.finished:
            self.roster.wait_no_more(request)

    def unfinished(self) -> list[Request]:
        """Every request that waits or runs."""
        return list(self.roster.requests.values())

    def cancel_all(self) -> None:
        """End every request."""
        for request in self.unfinished():
            self.cancel(request)

    # Preempt, fork, rewind

    def preempt(self, request: Request) -> None:
        """Take the slot of a running request between steps. It goes on later with the same bits."""
        with self.changing():
            seat = self.seats.of(request)
            assert seat is not None
            self._preempt(seat)

    def _preempt(self, seat: Seat) -> None:
        request = seat.request
        request.held = self.emitter.hold(seat)
        self.admission.leave(seat)
        request.progress = Progress.WAITING
        request.preemptions += 1
        self.counters.preemptions += 1
        self.queue.push_front(request)

    def fork(self, parent: Request, child: Request) -> None:
        """Queue a request that has the parent's tokens, or their beginning, as its past."""
        with self.changing():
            self.counters.requests += 1
            self.roster.enter(child)
            if not parent.finished and not parent.pending:
                parent.children.append(child)  # the prompt is prefilled once
                return
            if len(child.tokens) == len(parent.tokens):
                child.held = self._share_past(parent)
            self.queue.push(child)

    def _share_past(self, parent: Request) -> Checkpoint | None:
        """A checkpoint of all that the parent has processed, held for a fork."""
        seat = self.seats.of(parent)
        if seat is not None:
            return self.emitter.hold(seat)
        if parent.held is not None:
            self.cache.hold(parent.held)
        return parent.held

    def rewind(self, request: Request, checkpoint: Checkpoint, options: Options) -> None:
        """Back to a checkpoint on the request's own path: the tokens after it are gone, and are drawn again."""
        with self.changing():
            self.cache.hold(checkpoint)
            self._withdraw(request)
            self.roster.let_go(request)
            self.roster.enter(request)
            request.rewind_to(checkpoint, options)
            self.queue.push_front(request)

    def retained_by(self, request: Request) -> list[Checkpoint]:
        """Checkpoints of a request's own text, the shallowest first; what is due is written first."""
        with self.changing():
            seat = self.seats.of(request)
            if seat is not None:
                self.emitter.flush(seat)
        own = self.cache.candidates(request.tokens[: request.target_len])
        return [checkpoint for checkpoint in own if checkpoint.position >= request.prompt_len][::-1]

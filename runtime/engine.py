"""The engine: requests in, tokens out. One thread, one scheduler iteration per `step()`."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from runtime.adaptive import AdaptiveDrafts
from runtime.assemble import AUTO, EngineOptions, Interval, assemble, in_range
from runtime.checkpoints.account import CacheView
from runtime.checkpoints.retention import asked_positions
from runtime.checkpoints.store import Store
from runtime.drafter import Drafter
from runtime.errors import (
    BadOption,
    EngineClosed,
    EngineInUse,
    ForeignRequest,
    GrammarHasOneState,
    NotNow,
    NotRetained,
    QueueFull,
)
from runtime.grammar import Matcher, check_matcher
from runtime.observe.stats import Stats, tokens_per_step
from runtime.package import Package, open_package
from runtime.plan import Limits
from runtime.request import Options, Progress, Request, acceptance, check_end, check_prompt, ids_of
from runtime.sampling import sampling_of
from runtime.stops import stop_strings
from runtime.tokenizer import ByteTokenizer, TextStream

Prompt = str | bytes | Sequence[int]


@dataclass(frozen=True)
class Piece:
    """A part of an answer as it arrives. text may lag behind tokens: a character waits for its last byte."""

    text: str
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Result:
    """A finished answer. tokens: a stop token included; text: without it."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: str
    request: Request


class Engine:
    """Runs a package with its weights.

    An engine is not thread-safe: one caller at a time. Several engines may each have a thread of their own; they take
    turns where kernels are compiled and graphs recorded, and share the threads that run CPU kernels.

    An exception that leaves `step` (KeyboardInterrupt too) ends every request that was running with reason "error";
    those that wait stay, and the engine can be used on.

    package: path or opened package. weights: path of a safetensors file, or tensors by name.
    drafts: tokens drafted per step, default 3 or what the package allows; "auto": as many as measured acceptance and
    step times make worth while. drafting: run the drafter although drafts is
    0, so that set_drafts can raise it later; default: if drafts is not 0. drafter: "mtp", the model's module, or
    "lookup", earlier places of the text that read like its end; default: the module if there is one. slots: requests
    decoded together, default all the package has. threads: CPU threads. eager: no graphs.
    prefill_chunk: tokens per prefill launch. prefill_budget: prompt tokens per step over all slots, so that answers
    under way are not held up; default one chunk of each. max_queue: requests that may wait.
    checkpoints: keep and resume from recurrent states. interval: of those on the way, None for every page, n for every
    n tokens, 0 for none but prompt ends, answer ends, junctions and what is asked for; default: the spec's.
    host_pool: bytes of host memory for checkpoints that leave the device. checkpoint_dir: folder that keeps them over
    restarts, and that several processes may share; checkpoint_dir_bytes: what it may grow to.
    canary: share of decode steps that are run twice, as a graph and eagerly, and compared (e.g. 1/1000); a difference
    is a CanaryDiffered warning, with buffer and layer, and the engine goes on eagerly.
    layout_cache: where the weights of a file are kept as kernels read them, so that the next process starts at once:
    True, in the package's cache folder or else the user's; a folder; False, nowhere. See docs/startup.md.
    Raises RuntimeStateError with a code: see runtime.errors.

    cache: what is kept and why, pins; checkpoints: save to and load from a file. See docs/checkpoints.md.
    """

    def __init__(
        self,
        package: str | Path | Package,
        weights: str | Path | Mapping[str, Tensor],
        *,
        drafts: int | Literal["auto"] | None = None,
        drafting: bool | None = None,
        drafter: str | None = None,
        slots: int | None = None,
        threads: int | None = None,
        eager: bool = False,
        checkpoints: bool = True,
        interval: Interval = "as built",
        host_pool: int = 0,
        checkpoint_dir: str | Path | None = None,
        checkpoint_dir_bytes: int | None = None,
        prefill_chunk: int | None = None,
        prefill_budget: int | None = None,
        canary: float = 0.0,
        layout_cache: bool | str | Path = True,
        max_queue: int = 1024,
    ) -> None:
        self.package = package if isinstance(package, Package) else open_package(package)
        self.max_queue = in_range("max_queue", max_queue, 1, 1 << 30)
        options = EngineOptions(
            drafts=drafts,
            drafting=drafting,
            drafter=drafter,
            slots=slots,
            threads=threads,
            eager=eager,
            checkpoints=checkpoints,
            interval=interval,
            host_pool=host_pool,
            checkpoint_dir=checkpoint_dir,
            checkpoint_dir_bytes=checkpoint_dir_bytes,
            prefill_chunk=prefill_chunk,
            prefill_budget=prefill_budget,
            canary=canary,
            layout_cache=layout_cache,
        )
        parts = assemble(self.package, weights, options)
        self.buffers, self.scheduler, self.memory = parts.buffers, parts.scheduler, parts.memory
        self.tokenizer = ByteTokenizer(self.package.plan.specials)
        self._cache = CacheView(
            self.scheduler.cache, self.scheduler.tiers, self._encode, self.check_open, self.scheduler.changing
        )
        self._checkpoints = Store(self.scheduler.tiers, self.check_open, self.scheduler.changing)
        self._next_id = 0
        self.closed = False
        self.owner: int | None = None  # thread id of the AsyncFront that alone may call
        self.front: Any = None

    # Requests

    def submit(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        seed: int = 0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        logit_bias: Mapping[int, float] | None = None,
        grammar: Matcher | None = None,
        min_tokens: int = 0,
        stop_tokens: Sequence[int] = (),
        stop_at_eos: bool = True,
        stop: str | bytes | Sequence[str | bytes] = (),
        priority: int = 0,
        client: str = "",
        deadline: float | None = None,
        checkpoints: Sequence[int] = (),
        logprobs: int | None = None,
    ) -> Request:
        """Queue a request. A str or bytes prompt gets `bos` first if the model has one; ids are taken as they are.

        temperature 0 is greedy. A token is a function of the text before it, the seed and these options: top_k, top_p,
        min_p keep the most likely tokens; penalties and logit_bias change logits; see docs/sampling.md. grammar: an
        xgrammar.GrammarMatcher, or what has its methods, that no other request uses. min_tokens: before any stop.
        stop_tokens: ids that end the answer, with `eos` unless stop_at_eos is off; the one that did is part of the
        tokens, not of the text. stop: text that ends it, and is not part of its text. priority: the higher goes first,
        and takes the slot of a lower one. client: whom fairness among equal priorities is kept for. deadline: seconds
        from now until it is given up. checkpoints: positions to keep, tokens from the start, or negative: back from the
        end of the prompt. logprobs: report each output token's log-probability and so many most likely tokens, in
        request.logprobs.

        Raises PromptEmpty, PromptNotText, NotTokenIds, PromptTooLong, TokenOutOfRange, BadOption, TooManyStopTokens or
        QueueFull.
        """
        self.check_open()
        limits = self.package.plan.limits
        tokens = self._encode(prompt)
        eos = self.tokenizer.specials.get("eos")
        own = [eos] if eos is not None and stop_at_eos else []
        stops = frozenset([*ids_of("stop_tokens", stop_tokens), *own])
        check_end(limits, max_new_tokens, stops)
        sampling = sampling_of(
            limits,
            temperature=temperature,
            seed=seed,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
            logit_bias={} if logit_bias is None else logit_bias,
            min_tokens=min_tokens,
        )
        if grammar is not None:
            check_matcher(grammar)
            self._check_unused(grammar)
        check_prompt(limits, tokens)
        self._check_queue()
        options = Options(
            limit_len=min(len(tokens) + max_new_tokens, limits.max_context),
            sampling=sampling,
            stops=stops,
            stop=stop_strings(stop),
            grammar=grammar,
            priority=in_range("priority", priority, -(1 << 31), 1 << 31),
            client=_text("client", client),
            deadline=None if deadline is None else time.perf_counter() + _seconds("deadline", deadline),
            checkpoints=tuple(ids_of("checkpoints", checkpoints)),
            logprobs=None if logprobs is None else in_range("logprobs", logprobs, 0, limits.vocab_size),
        )
        asked = asked_positions(len(tokens), options.checkpoints)
        request = Request(self._take_id(), tokens, len(tokens), options, self, points=asked, asked=asked)
        self.scheduler.submit(request)
        return request

    def _encode(self, prompt: Prompt) -> list[int]:
        return self.tokenizer.encode(prompt) if isinstance(prompt, (str, bytes)) else ids_of("prompt", prompt)

    @staticmethod
    def _check_no_grammar(request: Request, what: str) -> None:
        if request.options.grammar is not None:
            raise GrammarHasOneState(request=request.id, what=what)

    def _check_unused(self, grammar: Matcher) -> None:
        if any(request.options.grammar is grammar for request in self.scheduler.unfinished()):
            allowed = "one that no other request uses: a matcher has one state"
            raise BadOption(option="grammar", value=type(grammar).__name__, allowed=allowed)

    def _take_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def _check_queue(self) -> None:
        waiting = self.scheduler.num_waiting
        if waiting >= self.max_queue:
            raise QueueFull(waiting=waiting, limit=self.max_queue)

    def preempt(self, request: Request) -> None:
        """Take the slot of a running request; it waits in front of its client's others and goes on with the same bits.

        Raises NotNow if it has no slot.
        """
        self.check_mine(request)
        if request.progress not in (Progress.PREFILL, Progress.DECODE):
            raise NotNow(request=request.id, progress=request.progress, what="preempt", needed="a running request")
        self.scheduler.preempt(request)

    def fork(self, request: Request, seed: int, *, at: int | None = None, max_new_tokens: int | None = None) -> Request:
        """Another continuation of a request's text, with its own seed. State and pages are shared, copied on write.

        at: tokens to keep, from the prompt's length to all there are, the default. max_new_tokens: beyond those kept;
        default: the same limit as the request's. A fork of a request that has not begun waits for its prompt, which is
        prefilled once. All other options are the request's, the moment of its deadline too unless that has passed.
        Raises BadOption, GrammarHasOneState, NotNow if the request has ended and `at` is not given, or QueueFull.
        """
        self.check_mine(request)
        if request.finished and at is None:
            raise NotNow(request=request.id, progress="finished", what="fork", needed="at=, the tokens to keep")
        kept = len(request.tokens) if at is None else in_range("at", at, request.prompt_len, len(request.tokens))
        limits = self.package.plan.limits
        limit = request.limit_len
        if max_new_tokens is not None:
            limit = min(kept + in_range("max_new_tokens", max_new_tokens, 1, 1 << 62), limits.max_context)
        if kept >= limit:
            raise BadOption(option="at", value=kept, allowed=f"less than the limit of {limit} tokens")
        self._check_no_grammar(request, "fork")
        self._check_queue()
        child = Request(
            self._take_id(),
            request.tokens[:kept],
            request.prompt_len,
            _in_time(replace(_reseeded(limits, request.options, seed), limit_len=limit)),
            self,
            points=request.asked,
            asked=request.asked,
            logprobs=request.logprobs[: kept - request.prompt_len],
            inherited=kept - request.prompt_len,
        )
        self.scheduler.fork(request, child)
        return child

    def rewind(self, request: Request, to: int, seed: int | None = None) -> None:
        """Drop all tokens from position `to` on, which must be retained, and continue from there.

        seed: of the tokens from now on; default the same, which draws the same tokens again. A finished request goes on
        too; a deadline that has passed is dropped. Raises BadOption, GrammarHasOneState, NotNow before its first token,
        NotRetained with the positions that there are, or QueueFull if it had finished.
        """
        self.check_mine(request)
        if not request.output:
            raise NotNow(request=request.id, progress=request.progress, what="rewind", needed="a first token")
        self._check_no_grammar(request, "rewind")
        limits = self.package.plan.limits
        options = _in_time(request.options if seed is None else _reseeded(limits, request.options, seed))
        own = {checkpoint.position: checkpoint for checkpoint in self.scheduler.retained_by(request)}
        if type(to) is not int or to not in own:
            positions = ", ".join(map(str, own)) or "none"
            raise NotRetained(request=request.id, position=to, positions=positions)
        if request.finished:
            self._check_queue()
        self.scheduler.rewind(request, own[to], options)

    def logits(self, request: Request) -> Tensor:
        """fp32 [vocab_size]: the model's logits for a request's last token, before biases, penalties and masks.

        Raises NotNow unless it decodes.
        """
        self.check_mine(request)
        seat = self.scheduler.seats.of(request)
        if seat is None or request.progress is not Progress.DECODE:
            raise NotNow(request=request.id, progress=request.progress, what="logits", needed="a decoding request")
        return self.scheduler.executor.score(seat.slot, [seat.committed_len - 1])[0].cpu()

    def cancel(self, request: Request) -> None:
        """End a request now; its tokens so far stay. Nothing happens if it has finished."""
        self.check_mine(request)
        self.scheduler.cancel(request)

    def step(self) -> list[tuple[Request, list[int]]]:
        """One iteration: deadlines, admission, prefill within the budget, one decode step. Returns new tokens."""
        self.check_open()
        emitted = self.scheduler.step()
        if self.scheduler.watch.due:
            self.scheduler.watch.check()
        return emitted

    @property
    def busy(self) -> bool:
        """Whether a request waits or runs."""
        return self.scheduler.busy

    def warm_up(self) -> int:
        """Compile and record now what the first requests would wait for. Returns the number of graphs.

        Raises NotNow while requests run.
        """
        self.check_open()
        running = next((seat.request for seat in self.scheduler.seats.all()), None)
        if running is not None:
            raise NotNow(request=running.id, progress=running.progress, what="warm_up", needed="an engine at rest")
        scheduler, most = self.scheduler, self.package.plan.limits.max_drafts
        return scheduler.executor.warm_up([scheduler.drafts] if scheduler.adaptive is None else range(most + 1))

    def set_drafts(self, drafts: int | Literal["auto"]) -> None:
        """Draft this many tokens per step from now on. Raises BadOption beyond the package, or without drafting."""
        self.check_open()
        scheduler, auto = self.scheduler, drafts == AUTO
        highest = self.package.plan.limits.max_drafts
        if (drafts or auto) and scheduler.executor.drafter is Drafter.NONE:
            allowed = "0: this engine has no drafter; make it with drafts, or with drafting=True"
            raise BadOption(option="drafts", value=drafts, allowed=allowed)
        scheduler.drafts = scheduler.drafts if drafts == AUTO else in_range("drafts", drafts, 0, highest)
        scheduler.adaptive = AdaptiveDrafts(highest) if auto else None

    # Conveniences

    def stream(self, prompt: Prompt | Request, **options: object) -> Iterator[Piece]:
        """Pieces of one answer as they come, while other requests run along. Leaving the loop cancels the request.

        A prompt is submitted when the first piece is asked for, with the options of `submit`; a request has its own.
        """
        if isinstance(prompt, Request) and options:
            raise BadOption(option=", ".join(options), value=options, allowed="only with a prompt, not a request")
        self.check_open()
        request = prompt if isinstance(prompt, Request) else self.submit(prompt, **options)  # type: ignore[arg-type]
        self.check_mine(request)
        text, shown = TextStream(request.options.stop, request.earliest_stop), request.prompt_len
        try:
            while not request.finished or shown < len(request.tokens):
                if not request.finished:
                    self.step()
                shown = min(shown, len(request.tokens))
                new = request.tokens[shown:]
                shown += len(new)
                if new:
                    yield Piece(text.push(request.spoken(new), request.finished), tuple(new))
            if request.error is not None:
                raise request.error
            if rest := text.push((), final=True):
                yield Piece(rest, ())
        finally:
            if not request.finished:
                self.cancel(request)

    def astream(self, prompt: Prompt | Request, **options: object) -> AsyncIterator[Piece]:
        """`stream` for asyncio: `async for piece in engine.astream(prompt)`, any number of them at once.

        From the first use on a thread of its own runs the engine, and calls from elsewhere raise EngineInUse; `await
        AsyncFront.of(engine).run(function)` calls a function between two steps, and its `close` gives the engine back.
        """
        from runtime.front import AsyncFront  # it imports this module

        return AsyncFront.of(self).stream(prompt, **options)

    def generate(self, prompt: Prompt, **options: object) -> Result:
        """Answer one prompt. Options are those of `submit`."""
        return self.generate_batch([prompt], **options)[0]

    def generate_batch(self, prompts: Iterable[Prompt], **options: object) -> list[Result]:
        """Answer several prompts together, in order. If anything is raised, none of them goes on."""
        self.check_open()
        prompts, first = list(prompts), self._next_id
        options = {name: list(value) if isinstance(value, Iterator) else value for name, value in options.items()}
        try:
            requests = [self.submit(prompt, **options) for prompt in prompts]  # type: ignore[arg-type]
            while not all(request.finished for request in requests):
                self.step()
                if error := next((request.error for request in requests if request.error is not None), None):
                    raise error
        except BaseException:
            for request in self.scheduler.unfinished():
                if request.id >= first:
                    self.scheduler.cancel(request)
            raise
        return [self.result(request) for request in requests]

    def result(self, request: Request) -> Result:
        """What a finished request produced; also after `close`, and from any thread."""
        self._check_own(request)
        stream = TextStream(request.options.stop, request.earliest_stop)
        text = stream.push(request.spoken(request.output), final=True)
        return Result(text, tuple(request.output), request.finish_reason or "running", request)

    # State

    @property
    def cache(self) -> CacheView:
        """What is kept and why, and pins. Raises EngineClosed or EngineInUse."""
        self.check_open()
        return self._cache

    @property
    def checkpoints(self) -> Store:
        """Save what is kept to a file, and load it. Raises EngineClosed or EngineInUse."""
        self.check_open()
        return self._checkpoints

    def stats(self) -> Stats:
        """A snapshot of all counters.

        From another thread use runtime.observe.metrics.snapshot: here a table that grows meanwhile raises RuntimeError.
        """
        scheduler = self.scheduler
        counters, cache = scheduler.counters, scheduler.cache
        canary, accepted = scheduler.canary, dict(counters.accepted)
        return Stats(
            requests=counters.requests,
            waiting=scheduler.num_waiting,
            active=scheduler.seats.active,
            finished=counters.finished,
            cancelled=counters.cancelled,
            expired=counters.expired,
            failed=counters.failed,
            preemptions=counters.preemptions,
            steps=counters.steps,
            output_tokens=counters.output_tokens,
            tokens_per_step=tokens_per_step(accepted),
            acceptance=acceptance(accepted),
            prefilled_tokens=counters.prefilled_tokens,
            restored_tokens=counters.restored_tokens,
            recomputed_tokens=counters.recomputed_tokens,
            checkpoints=len(cache),
            checkpoint_counts=replace(cache.counts),
            graphs=len(scheduler.executor.graphs),
            pools=scheduler.tiers.pools(),
            refused_files=scheduler.tiers.refused,
            step_seconds=counters.step_seconds.snapshot(),
            queue_seconds=counters.queue_seconds.snapshot(),
            first_token_seconds=counters.first_token_seconds.snapshot(),
            canary_checked=0 if canary is None else canary.checked,
            canary_differed=0 if canary is None else len(canary.reports),
            acceptance_collapses=len(scheduler.watch.collapses),
            memory=dict(self.memory),
        )

    def close(self) -> None:
        """Cancel everything, and wait until the checkpoint directory has what is kept.

        Afterwards only `stats` and `result` work: the rest raises EngineClosed.
        """
        if self.owner is not None:
            from runtime.front import release  # it imports this module

            release(self)
        if not self.closed:
            self.scheduler.cancel_all()
            self.closed = True
            self.scheduler.tiers.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check_open(self) -> None:
        if self.closed:
            raise EngineClosed
        if self.owner is not None and self.owner != threading.get_ident():
            raise EngineInUse

    def check_mine(self, request: object) -> None:
        self.check_open()
        self._check_own(request)

    def _check_own(self, request: object) -> None:
        if not isinstance(request, Request):
            raise BadOption(option="request", value=request, allowed="what submit returned")
        if request.engine is not self:
            raise ForeignRequest(request=request.id)


def _text(option: str, value: str) -> str:
    if not isinstance(value, str):
        raise BadOption(option=option, value=value, allowed="text")
    return value


def _reseeded(limits: Limits, options: Options, seed: int) -> Options:
    """With another seed. Raises BadOption."""
    sampling_of(limits, seed=seed)
    return replace(options, sampling=replace(options.sampling, seed=seed))


def _in_time(options: Options) -> Options:
    """Without a deadline that has passed."""
    late = options.deadline is not None and options.deadline <= time.perf_counter()
    return replace(options, deadline=None) if late else options


def _seconds(option: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1e9:
        raise BadOption(option=option, value=value, allowed="seconds, more than 0 and at most 1e9")
    return float(value)

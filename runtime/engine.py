"""The engine: requests in, tokens out. One thread, one scheduler iteration per `step()`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import triton
from torch import Tensor

from runtime.buffers import Buffers
from runtime.checkpoints.cache import CheckpointStore, SeenPrefixes
from runtime.errors import BadOption, EngineClosed, ForeignRequest, QueueFull
from runtime.executor import Executor
from runtime.package import Package, open_package
from runtime.checkpoints.pages import PagePool
from runtime.plan import Plan
from runtime.request import Request, acceptance, check_options, check_prompt, ids_of
from runtime.scheduler import Scheduler
from runtime.stats import Stats, tokens_per_step
from runtime.tokenizer import ByteTokenizer, TextStream
from runtime.weights import check_weights, open_weights

Prompt = str | bytes | Sequence[int]
DEFAULT_DRAFTS = 3
MOST_THREADS = 1 << 10


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
    drafts: tokens drafted per step, default 3 or what the package allows; 0 leaves the MTP module out for good unless
    `drafting`. slots: requests decoded together, default all the package has. threads: CPU threads. eager: no graphs.
    checkpoints: keep and resume from recurrent states. prefill_chunk: tokens per prefill launch. max_queue: requests
    that may wait. Raises RuntimeStateError with a code: see runtime.errors.
    """

    def __init__(
        self,
        package: str | Path | Package,
        weights: str | Path | Mapping[str, Tensor],
        *,
        drafts: int | None = None,
        drafting: bool | None = None,
        slots: int | None = None,
        threads: int | None = None,
        eager: bool = False,
        checkpoints: bool = True,
        prefill_chunk: int | None = None,
        max_queue: int = 1024,
    ) -> None:
        self.package = package if isinstance(package, Package) else open_package(package)
        plan = self.package.plan
        limits = plan.limits
        drafts, drafting = _drafting(plan, drafts, drafting)
        slots = _in_range("slots", limits.max_slots if slots is None else slots, 1, limits.max_slots)
        longest = limits.prefill_chunk
        prefill_chunk = _in_range("prefill_chunk", longest if prefill_chunk is None else prefill_chunk, 1, longest)
        self.max_queue = _in_range("max_queue", max_queue, 1, 1 << 30)
        if threads is not None:
            _set_threads(self.package, threads)
        opened = open_weights(weights)
        check_weights(plan, opened)
        self.buffers = Buffers(plan, opened, self.package.device)
        self.tokenizer = ByteTokenizer(plan.specials)
        stamp = f"{self.package.numerics_sha256} {opened.sha256} triton {triton.__version__}"
        pages = PagePool(limits.num_pages)
        self.scheduler = Scheduler(
            Executor(self.package, self.buffers, drafting, eager),
            pages,
            CheckpointStore(limits.checkpoint_slots if checkpoints else 0, pages, drafting, stamp),
            SeenPrefixes(limits.page_size),
            slots=slots,
            drafts=drafts,
            prefill_chunk=prefill_chunk,
        )
        self._next_id = 0
        self._closed = False

    # Requests

    def submit(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        seed: int = 0,
        stop_tokens: Sequence[int] = (),
        stop_at_eos: bool = True,
    ) -> Request:
        """Queue a request. A str or bytes prompt gets `bos` first if the model has one; ids are taken as they are.

        temperature 0 is greedy. stop_tokens: ids that end the answer, with `eos` unless stop_at_eos is off; the one
        that did is part of the tokens, not of the text. Raises PromptEmpty, PromptTooLong, TokenOutOfRange, BadOption,
        TooManyStopTokens or QueueFull.
        """
        self._check_open()
        limits = self.package.plan.limits
        tokens = self.tokenizer.encode(prompt) if isinstance(prompt, (str, bytes)) else ids_of("prompt", prompt)
        eos = self.tokenizer.specials.get("eos")
        own = [eos] if eos is not None and stop_at_eos else []
        stops = frozenset([*ids_of("stop_tokens", stop_tokens), *own])
        check_options(limits, max_new_tokens, temperature, seed, stops)
        check_prompt(limits, tokens)
        if len(self.scheduler.waiting) >= self.max_queue:
            raise QueueFull(waiting=len(self.scheduler.waiting), limit=self.max_queue)
        limit_len = min(len(tokens) + max_new_tokens, limits.max_context)
        request = Request(self._next_id, tokens, len(tokens), limit_len, float(temperature), seed, stops, self)
        self._next_id += 1
        self.scheduler.submit(request)
        return request

    def cancel(self, request: Request) -> None:
        """End a request now; its tokens so far stay. Nothing happens if it has finished."""
        self._check_open()
        self._check_mine(request)
        self.scheduler.cancel(request)

    def step(self) -> list[tuple[Request, list[int]]]:
        """One scheduler iteration: admit, one prefill chunk per new request, one decode step. Returns new tokens."""
        self._check_open()
        return self.scheduler.step()

    @property
    def busy(self) -> bool:
        """Whether a request waits or runs."""
        return self.scheduler.busy

    def set_drafts(self, drafts: int) -> None:
        """Draft this many tokens per step from now on. Raises BadOption beyond the package, or without drafting."""
        self._check_open()
        highest = self.package.plan.limits.max_drafts if self.scheduler.executor.drafting else 0
        self.scheduler.drafts = _in_range("drafts", drafts, 0, highest)

    # Conveniences

    def stream(self, prompt: Prompt | Request, **options: object) -> Iterator[Piece]:
        """Pieces of one answer as they come, while other requests run along. Leaving the loop cancels the request.

        A prompt is submitted when the first piece is asked for, with the options of `submit`; a request has its own.
        """
        if isinstance(prompt, Request) and options:
            raise BadOption(option=", ".join(options), value=options, allowed="only with a prompt, not a request")
        self._check_open()
        request = prompt if isinstance(prompt, Request) else self.submit(prompt, **options)  # type: ignore[arg-type]
        self._check_mine(request)
        text, shown = TextStream(), request.prompt_len
        try:
            while not request.finished or shown < len(request.tokens):
                if not request.finished:
                    self.step()
                new = request.tokens[shown:]
                shown += len(new)
                if new:
                    yield Piece(text.push(_spoken(request, new), request.finished), tuple(new))
        finally:
            if not request.finished:
                self.cancel(request)

    def generate(self, prompt: Prompt, **options: object) -> Result:
        """Answer one prompt. Options are those of `submit`."""
        return self.generate_batch([prompt], **options)[0]

    def generate_batch(self, prompts: Iterable[Prompt], **options: object) -> list[Result]:
        """Answer several prompts together, in order. If anything is raised, none of them goes on."""
        prompts, first = list(prompts), self._next_id
        try:
            requests = [self.submit(prompt, **options) for prompt in prompts]  # type: ignore[arg-type]
            while not all(request.finished for request in requests):
                self.step()
        except BaseException:
            for request in self.scheduler.unfinished():
                if request.id >= first:
                    self.scheduler.cancel(request)
            raise
        return [self.result(request) for request in requests]

    def result(self, request: Request) -> Result:
        """What a finished request produced."""
        self._check_mine(request)
        text = self.tokenizer.decode(_spoken(request, request.output))
        return Result(text, tuple(request.output), request.finish_reason or "running", request)

    # State

    def stats(self) -> Stats:
        """A snapshot of all counters; requests still running are in the totals but not in the acceptance."""
        scheduler = self.scheduler
        counters, store = scheduler.counters, scheduler.checkpoints
        return Stats(
            requests=counters.requests,
            waiting=len(scheduler.waiting),
            active=scheduler.seats.active,
            finished=counters.finished,
            cancelled=counters.cancelled,
            steps=counters.steps,
            output_tokens=counters.output_tokens,
            tokens_per_step=tokens_per_step(counters.accepted),
            acceptance=acceptance(counters.accepted),
            prefilled_tokens=counters.prefilled_tokens,
            restored_tokens=counters.restored_tokens,
            recomputed_tokens=counters.recomputed_tokens,
            checkpoints=len(store),
            checkpoint_counts=store.counts,
            pages_in_use=scheduler.pages.in_use,
            pages=scheduler.pages.num_pages,
            graphs=len(scheduler.executor.graphs),
            memory=self.buffers.memory,
        )

    def close(self) -> None:
        """Cancel everything. Afterwards every call raises EngineClosed."""
        if not self._closed:
            self.scheduler.cancel_all()
            self._closed = True

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise EngineClosed

    def _check_mine(self, request: object) -> None:
        if not isinstance(request, Request):
            raise BadOption(option="request", value=request, allowed="what submit returned")
        if request.engine is not self:
            raise ForeignRequest(request=request.id)


def _in_range(option: str, value: int, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise BadOption(option=option, value=value, allowed=f"an integer from {low} to {high}")
    return value


def _drafting(plan: Plan, drafts: int | None, drafting: bool | None) -> tuple[int, bool]:
    """Drafts per step and whether the MTP module runs at all, from what was asked. Raises BadOption."""
    most = plan.limits.max_drafts
    if drafting is not None and not isinstance(drafting, bool):
        raise BadOption(option="drafting", value=drafting, allowed="True, False or None")
    drafts = min(DEFAULT_DRAFTS, most) if drafts is None else _in_range("drafts", drafts, 0, most)
    drafting = plan.has_drafter and (drafts > 0 if drafting is None else drafting)
    if drafts and not drafting:
        raise BadOption(option="drafts", value=drafts, allowed="0 without drafting")
    return drafts, drafting


def _set_threads(package: Package, threads: int) -> None:
    """Threads of the CPU kernels, for the whole process."""
    _in_range("threads", threads, 1, MOST_THREADS)
    if package.device.type == "cpu":
        from runtime.cpu import set_num_threads

        with package.compiling():
            set_num_threads(threads)


def _spoken(request: Request, tokens: Sequence[int]) -> Sequence[int]:
    """Output tokens without the stop token that ended the answer."""
    return tokens[:-1] if request.finish_reason == "stop" and tokens else tokens

"""A request: what was asked, what came out, and how."""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from torch import Tensor

from runtime.checkpoints.checkpoint import Checkpoint, Key
from runtime.checkpoints.retention import PrefixHash
from runtime.errors import (
    BadOption,
    NotTokenIds,
    PromptEmpty,
    PromptTooLong,
    RuntimeStateError,
    TokenOutOfRange,
    TooManyStopTokens,
)
from runtime.grammar import Matcher
from runtime.logprobs import Logprobs
from runtime.plan import Limits
from runtime.sampling import Sampling

ANSWERED = ("stop", "limit", "grammar")  # reasons of an answer that came to its own end


class Progress(StrEnum):
    """Where a request is in its life."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


@dataclass(frozen=True)
class Options:
    """What was asked of a request, checked. limit_len: tokens at most, prompt included; stops: ids that end it.

    stop: text that ends it, as bytes; grammar: a matcher that says which tokens may come; priority: the higher goes
    first, and may preempt; client: whom fairness is kept for; deadline: perf_counter seconds; checkpoints: positions to
    keep, from the start, or back from the prompt end; logprobs: report so many most likely tokens beside each output
    token, None for none.
    """

    limit_len: int
    sampling: Sampling = field(default_factory=Sampling)
    stops: frozenset[int] = frozenset()
    stop: tuple[bytes, ...] = ()
    grammar: Matcher | None = None
    priority: int = 0
    client: str = ""
    deadline: float | None = None
    checkpoints: tuple[int, ...] = ()
    logprobs: int | None = None


@dataclass(eq=False)
class Request:
    """One request. tokens: prompt, then output.

    engine: the one it was submitted to. finish_reason: once finished, "stop", "limit", "grammar" (nothing may come),
    "cancelled", "deadline" or "error". error: why it alone ended in one. restored_position: tokens taken from a
    checkpoint at its last admission. prefilled_tokens: processed as a prompt, so far. recomputed_tokens: those of them
    that had been processed before, by whomever, for want of a checkpoint. accepted[K][n]: steps that verified K drafts
    and accepted n tokens; drawn: tokens sampled by begin.
    Times are time.perf_counter seconds.

    What the scheduler keeps here: points: positions whose checkpoint is kept, beyond grid and prompt end, asked,
    junctions and answer_end being the reasons; pending: the last token was sampled and not processed yet; held: the
    checkpoint to resume from; children: forks that wait for the prompt; prompt_key: of the prompt-end checkpoint;
    inherited: output tokens that a fork began with.
    """

    id: int
    tokens: list[int]
    prompt_len: int
    options: Options
    engine: Any
    progress: Progress = Progress.WAITING
    finish_reason: str | None = None
    error: RuntimeStateError | None = None
    restored_position: int = 0
    prefilled_tokens: int = 0
    recomputed_tokens: int = 0
    preemptions: int = 0
    accepted: dict[int, list[int]] = field(default_factory=dict)
    drawn: int = 0
    logprobs: list[Logprobs] = field(default_factory=list)
    submitted_at: float = field(default_factory=time.perf_counter)
    admitted_at: float | None = None
    first_token_at: float | None = None
    finished_at: float | None = None
    points: tuple[int, ...] = ()
    asked: tuple[int, ...] = ()
    junctions: set[int] = field(default_factory=set)
    answer_end: int | None = None
    pending: bool = False
    held: Checkpoint | None = None
    children: list[Request] = field(default_factory=list)
    prompt_key: Key | None = None
    prefix: PrefixHash = field(default_factory=PrefixHash)
    inherited: int = 0

    @property
    def limit_len(self) -> int:
        """Tokens at most, prompt included."""
        return self.options.limit_len

    @property
    def temperature(self) -> float:
        """0 is greedy."""
        return self.options.sampling.temperature

    @property
    def seed(self) -> int:
        """Of the sampling noise."""
        return self.options.sampling.seed

    @property
    def stops(self) -> frozenset[int]:
        """Ids that end it."""
        return self.options.stops

    @property
    def priority(self) -> int:
        """The higher goes first."""
        return self.options.priority

    @property
    def client(self) -> str:
        """Whom fairness is kept for."""
        return self.options.client

    @property
    def deadline(self) -> float | None:
        """time.perf_counter seconds."""
        return self.options.deadline

    @property
    def earliest_stop(self) -> int:
        """Output tokens at the beginning that complete no stop string: min_tokens, or what a fork began with."""
        return max(self.options.sampling.min_tokens, self.inherited)

    @property
    def target_len(self) -> int:
        """Tokens to process before the next one can be sampled."""
        return len(self.tokens) - self.pending

    @property
    def prompt(self) -> list[int]:
        """Prompt tokens."""
        return self.tokens[: self.prompt_len]

    @property
    def output(self) -> list[int]:
        """Output tokens, a stop token included."""
        return self.tokens[self.prompt_len :]

    @property
    def output_len(self) -> int:
        """Number of output tokens."""
        return len(self.tokens) - self.prompt_len

    @property
    def finished(self) -> bool:
        """Whether nothing more will come."""
        return self.progress is Progress.FINISHED

    @property
    def steps(self) -> int:
        """Decode steps this request took part in; its first token comes before them."""
        return sum(map(sum, self.accepted.values()))

    @property
    def tokens_per_step(self) -> float:
        """Mean number of tokens a step accepted; nan without a step."""
        total = sum(n * count for counts in self.accepted.values() for n, count in enumerate(counts))
        return total / self.steps if self.steps else math.nan

    def acceptance(self) -> list[tuple[int, int]]:
        """(accepted, proposed) per draft position. A draft after a stop or the limit counts as not accepted."""
        return acceptance(self.accepted)

    def spoken(self, tokens: Sequence[int]) -> Sequence[int]:
        """The last output tokens without the one that ended the answer, if it was a stop token or broke the grammar."""
        refused = self.finish_reason == "grammar"
        stopped = self.finish_reason == "stop" and tokens and tokens[-1] in self.stops
        return tokens[:-1] if refused or stopped else tokens

    def rewind_to(self, checkpoint: Checkpoint, options: Options) -> None:
        """Forget the tokens after a checkpoint, which is held from now on, and wait; go on with these options."""
        position, self.options = checkpoint.position, options
        self.tokens, self.pending, self.held = self.tokens[:position], False, checkpoint
        self.points = tuple(point for point in self.points if point in self.junctions or point in self.asked)
        self.logprobs = self.logprobs[: position - self.prompt_len]
        self.inherited = min(self.inherited, position - self.prompt_len)
        self.progress, self.answer_end = Progress.WAITING, None
        self.finish_reason = self.finished_at = None

    # What can be done with it: the engine's methods, for those who hold a request

    def fork(self, seed: int, **options: object) -> Request:
        """Another continuation of the same text. See Engine.fork."""
        return self.engine.fork(self, seed, **options)

    def rewind(self, to: int, seed: int | None = None) -> None:
        """Go back to a retained position and continue from there. See Engine.rewind."""
        self.engine.rewind(self, to, seed)

    def preempt(self) -> None:
        """Make room for others; it goes on later. See Engine.preempt."""
        self.engine.preempt(self)

    def cancel(self) -> None:
        """End it now. See Engine.cancel."""
        self.engine.cancel(self)

    def logits(self) -> Tensor:
        """fp32 [vocab_size] from which the last token was chosen. See Engine.logits."""
        return self.engine.logits(self)


def acceptance(accepted: dict[int, list[int]]) -> list[tuple[int, int]]:
    """(accepted, proposed) per draft position, from counts accepted[K][n] of steps that accepted n tokens."""
    result = []
    for position in range(max(accepted, default=0)):
        relevant = [counts for drafts, counts in accepted.items() if drafts > position]
        result.append((sum(sum(counts[position + 2 :]) for counts in relevant), sum(map(sum, relevant))))
    return result


def ids_of(field_name: str, values: Iterable[object]) -> list[int]:
    """Token ids as ints: Python's or any library's integers, never bool. Raises NotTokenIds."""
    kind = type(values).__name__
    try:
        values = list(values)
        if set(map(type, values)) == {int}:
            return values  # type: ignore[return-value]
        return [_id(value) for value in values]
    except TypeError:
        allowed = ("text, bytes or " if field_name == "prompt" else "") + "a sequence of integers"
        raise NotTokenIds(field=field_name, allowed=allowed, kind=kind) from None


def _id(value: object) -> int:
    if isinstance(value, bool):
        raise TypeError("a bool is no id")
    return operator.index(value)  # type: ignore[arg-type]


def check_end(limits: Limits, max_new_tokens: int, stops: frozenset[int]) -> None:
    """What ends a request. Raises BadOption, TokenOutOfRange or TooManyStopTokens."""
    if type(max_new_tokens) is not int or max_new_tokens < 1:
        raise BadOption(option="max_new_tokens", value=max_new_tokens, allowed="an integer of at least 1")
    check_tokens("stop_tokens", sorted(stops), limits.vocab_size)
    if len(stops) > limits.max_stop_tokens:
        raise TooManyStopTokens(count=len(stops), limit=limits.max_stop_tokens)


def check_prompt(limits: Limits, tokens: Sequence[int]) -> None:
    """Raise PromptEmpty, PromptTooLong or TokenOutOfRange."""
    if not tokens:
        raise PromptEmpty
    if len(tokens) >= limits.max_context:
        raise PromptTooLong(length=len(tokens), limit=limits.max_context - 1, max_context=limits.max_context)
    check_tokens("prompt", tokens, limits.vocab_size)


def check_tokens(field_name: str, tokens: Sequence[int], vocab_size: int) -> None:
    """Raise TokenOutOfRange with the first token that is not an id."""
    if not tokens or (set(map(type, tokens)) == {int} and min(tokens) >= 0 and max(tokens) < vocab_size):
        return
    for index, token in enumerate(tokens):
        if type(token) is not int or not 0 <= token < vocab_size:
            raise TokenOutOfRange(field=field_name, index=index, token=token, last=vocab_size - 1)

"""A request: what was asked, what came out, and how."""

from __future__ import annotations

import math
import numbers
import operator
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from runtime.checkpoints.cache import Key
from runtime.errors import BadOption, NotTokenIds, PromptEmpty, PromptTooLong, TokenOutOfRange, TooManyStopTokens
from runtime.plan import Limits
from runtime.checkpoints.retention import PrefixHash

SEED_RANGE = range(-(1 << 63), 1 << 63)


class Progress(StrEnum):
    """Where a request is in its life."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


@dataclass(eq=False)
class Request:
    """One request. tokens: prompt, then output; limit_len: tokens at most, prompt included; stops: ids that end it.

    engine: the one it was submitted to. finish_reason: "stop", "limit", "cancelled" or "error" once finished.
    restored_position: tokens taken from a checkpoint. recomputed_tokens: prompt tokens that an earlier request had
    processed and that had to be processed again. accepted[K][n]: steps that verified K drafts and accepted n tokens.
    prompt_key: of its prompt-end checkpoint. Times are time.perf_counter seconds.
    """

    id: int
    tokens: list[int]
    prompt_len: int
    limit_len: int
    temperature: float
    seed: int
    stops: frozenset[int]
    engine: object
    progress: Progress = Progress.WAITING
    finish_reason: str | None = None
    restored_position: int = 0
    recomputed_tokens: int = 0
    accepted: dict[int, list[int]] = field(default_factory=dict)
    submitted_at: float = field(default_factory=time.perf_counter)
    first_token_at: float | None = None
    finished_at: float | None = None
    prompt_key: Key | None = None
    prefix: PrefixHash = field(default_factory=PrefixHash)

    @property
    def prompt(self) -> list[int]:
        """Prompt tokens."""
        return self.tokens[: self.prompt_len]

    @property
    def output(self) -> list[int]:
        """Output tokens, a stop token included."""
        return self.tokens[self.prompt_len :]

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


def acceptance(accepted: dict[int, list[int]]) -> list[tuple[int, int]]:
    """(accepted, proposed) per draft position, from counts accepted[K][n] of steps that accepted n tokens."""
    result = []
    for position in range(max(accepted, default=0)):
        relevant = [counts for drafts, counts in accepted.items() if drafts > position]
        result.append((sum(sum(counts[position + 2 :]) for counts in relevant), sum(map(sum, relevant))))
    return result


def ids_of(field_name: str, values: Iterable[object]) -> list[int]:
    """Token ids as ints: Python's or any library's integers, never bool. Raises NotTokenIds."""
    try:
        return [_id(value) for value in values]
    except TypeError:
        raise NotTokenIds(field=field_name, kind=type(values).__name__) from None


def _id(value: object) -> int:
    if isinstance(value, bool):
        raise TypeError("a bool is no id")
    return operator.index(value)  # type: ignore[arg-type]


def check_options(limits: Limits, max_new_tokens: int, temperature: float, seed: int, stops: frozenset[int]) -> None:
    """Raise BadOption, TokenOutOfRange or TooManyStopTokens."""
    if type(max_new_tokens) is not int or max_new_tokens < 1:
        raise BadOption(option="max_new_tokens", value=max_new_tokens, allowed="an integer of at least 1")
    if not _finite(temperature):
        raise BadOption(option="temperature", value=temperature, allowed="0 (greedy) or a positive finite number")
    if type(seed) is not int or seed not in SEED_RANGE:
        raise BadOption(option="seed", value=seed, allowed="a 64-bit signed integer")
    check_tokens("stop_tokens", sorted(stops), limits.vocab_size)
    if len(stops) > limits.max_stop_tokens:
        raise TooManyStopTokens(count=len(stops), limit=limits.max_stop_tokens)


def _finite(value: object) -> bool:
    """Whether a value is a number, zero or more, that a float can hold."""
    try:
        return isinstance(value, numbers.Real) and not isinstance(value, bool) and 0 <= float(value) < math.inf
    except (OverflowError, ValueError):
        return False


def check_prompt(limits: Limits, tokens: Sequence[int]) -> None:
    """Raise PromptEmpty, PromptTooLong or TokenOutOfRange."""
    if not tokens:
        raise PromptEmpty
    if len(tokens) >= limits.max_context:
        raise PromptTooLong(length=len(tokens), limit=limits.max_context - 1, max_context=limits.max_context)
    check_tokens("prompt", tokens, limits.vocab_size)


def check_tokens(field_name: str, tokens: Sequence[int], vocab_size: int) -> None:
    """Raise TokenOutOfRange with the first token that is not an id."""
    for index, token in enumerate(tokens):
        if type(token) is not int or not 0 <= token < vocab_size:
            raise TokenOutOfRange(field=field_name, index=index, token=token, last=vocab_size - 1)

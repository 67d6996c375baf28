"""The requests that every mode answers: lengths around the borders of chunks and pages, greedy and sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from runtime.engine import Engine
from runtime.plan import Limits
from runtime.request import Request

TEMPERATURES = (0.0, 0.8, 8.0)  # at 8 the noise decides, which draft and target share: drafts are accepted
FORK_TOKENS = 3
LEAVES = 4  # the case whose prompt leaves the first one on its way
CLOSEST_CHECKPOINTS = 5
SHORT_CONTEXT = 256  # up to here the last prompt fills the context


@dataclass(frozen=True)
class Case:
    """One request. Answers do not end at the model's end-of-sequence token, so that their length is known."""

    prompt: tuple[int, ...]
    new_tokens: int
    temperature: float
    seed: int
    stop_tokens: tuple[int, ...] = ()

    def submit(self, engine: Engine) -> Request:
        """Queue it."""
        return engine.submit(
            list(self.prompt),
            max_new_tokens=self.new_tokens,
            temperature=self.temperature,
            seed=self.seed,
            stop_tokens=self.stop_tokens,
            stop_at_eos=False,
        )

    def longer(self, tokens: int) -> Case:
        """The same with so many more new tokens."""
        return replace(self, new_tokens=self.new_tokens + tokens)

    def __str__(self) -> str:
        how = "greedy" if self.temperature == 0.0 else f"temperature {self.temperature:g}"
        return f"prompt of {len(self.prompt)} tokens, {how}"


def grid(limits: Limits) -> int:
    """Tokens between checkpoints in verify: as close as one step allows, so that most are written by steps."""
    return max(CLOSEST_CHECKPOINTS, limits.max_rows)


def junction(prompt: Sequence[int], texts: Sequence[Sequence[int]]) -> int | None:
    """Where a prompt leaves the texts processed before it, if it does: the longest beginning that it shares with any.

    None if it shares nothing, ends there, or if none of those texts goes beyond.
    """
    shared = [_shared(prompt, text) for text in texts]
    longest = max(shared, default=0)
    goes_on = any(count == longest < len(text) for count, text in zip(shared, texts, strict=True))
    return longest if goes_on and 0 < longest < len(prompt) else None


def _shared(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def prompt_lengths(limits: Limits, count: int) -> list[int]:
    """`count` lengths of at least 1: one token, and around one chunk and one or two pages."""
    chunk, page = limits.prefill_chunk, limits.page_size
    borders = [chunk + 1, chunk + 1, page, 1, chunk - 1, 1, page + 1, page - 1, 2 * page + 1, chunk, 2 * chunk + 1]
    return [max(1, borders[i % len(borders)] + i // len(borders)) for i in range(count)]


def draw_cases(limits: Limits, count: int, new_tokens: int, seed: int) -> list[Case]:
    """`count` cases with random prompts. The second one continues the first prompt with other tokens: a fork of it.

    The fifth one leaves the first prompt on its way, as far as can be from the checkpoint before.
    """
    rng, cases = Random(seed), list[Case]()
    room = max(1, limits.max_context - new_tokens - 1)
    for i, length in enumerate(prompt_lengths(limits, count)):
        full = i == count - 1 and limits.max_context <= SHORT_CONTEXT
        prompt = tuple(rng.randrange(limits.vocab_size) for _ in range(room if full else min(length, room)))
        if i == 1 and len(cases[0].prompt) + FORK_TOKENS <= room:
            prompt = cases[0].prompt + tuple(rng.randrange(limits.vocab_size) for _ in range(FORK_TOKENS))
        if i == LEAVES:
            step = grid(limits)
            shared = min(len(cases[0].prompt), len(prompt), 2 * len(prompt) // 3 // step * step + step) - 1
            prompt = cases[0].prompt[:shared] + prompt[shared:]
        cases.append(_case(limits, prompt, new_tokens, i, rng))
    return cases


def given_cases(limits: Limits, prompts: Sequence[Sequence[int]], new_tokens: int, seed: int) -> list[Case]:
    """A case per prompt, with the temperatures of `draw_cases`."""
    rng = Random(seed)
    return [_case(limits, tuple(prompt), new_tokens, i, rng) for i, prompt in enumerate(prompts)]


def _case(limits: Limits, prompt: tuple[int, ...], new_tokens: int, index: int, rng: Random) -> Case:
    new_tokens = max(1, min(new_tokens, limits.max_context - len(prompt) - 1))
    return Case(prompt, new_tokens, TEMPERATURES[index % len(TEMPERATURES)], rng.randrange(-(1 << 63), 1 << 63))

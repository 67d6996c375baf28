"""What is measured: the request that every side answers, what it took, and the figures made of that."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True)
class Ask:
    """`batch` different prompts of `prompt` random ids, each answered greedily with exactly `new` tokens.

    seed: of the prompts; no two runs share one, of whatever figure, so no prefix cache can help.
    """

    prompt: int
    new: int
    batch: int = 1
    seed: int = 0


@dataclass(frozen=True)
class Answer:
    """first: seconds until every prompt has its first token. rest: seconds of the `tokens` tokens after those."""

    first: float
    rest: float
    tokens: int


class Figure(StrEnum):
    """One column of the table. All are speeds but FIRST_TOKEN, a time."""

    DECODE = "decode"
    PREFILL = "prefill"
    FIRST_TOKEN = "first-token"
    BATCH = "batch-8"


PROMPT, NEW, LONG_PROMPT, BATCH = 64, 128, 512, 8
ASKS = {
    Figure.DECODE: Ask(PROMPT, NEW),
    Figure.PREFILL: Ask(LONG_PROMPT, 1),
    Figure.FIRST_TOKEN: Ask(PROMPT, 1),
    Figure.BATCH: Ask(PROMPT, NEW, BATCH),
}
UNITS = {
    Figure.DECODE: "tok/s",
    Figure.PREFILL: "tok/s",
    Figure.FIRST_TOKEN: "ms",
    Figure.BATCH: "tok/s",
}
MEANING = {
    Figure.DECODE: f"{NEW} new tokens after {PROMPT}, one request",
    Figure.PREFILL: f"{LONG_PROMPT} prompt tokens and the first new one",
    Figure.FIRST_TOKEN: f"{PROMPT} prompt tokens and the first new one",
    Figure.BATCH: f"{BATCH} requests of {NEW} new tokens after {PROMPT}, in all",
}


def value_of(figure: Figure, answer: Answer) -> float:
    """The figure in its unit."""
    if figure is Figure.PREFILL:
        return ASKS[figure].prompt / answer.first
    if figure is Figure.FIRST_TOKEN:
        return 1e3 * answer.first
    return answer.tokens / answer.rest


def times_as_fast(figure: Figure, ours: float, theirs: float) -> float:
    """How many times as fast ours is, given both values of a figure."""
    return theirs / ours if figure is Figure.FIRST_TOKEN else ours / theirs

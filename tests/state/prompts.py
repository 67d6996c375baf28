"""What requests ask: prompts that share prefixes, extend earlier texts, or are the same."""

from __future__ import annotations

from collections.abc import Sequence

from tests.state.texts import Text

LONG = tuple(b"jackdaws love my big sphinx of quartz; pack my box with five dozen jugs")
OTHER = tuple(b"waltz, bad nymph, for quick jigs vex")
POOL: tuple[Text, ...] = (
    LONG[:9],
    LONG[:16],
    LONG[:8],
    LONG[:37],
    (*LONG[:12], *OTHER[:9]),
    (*LONG[:16], *OTHER[:8]),
    (*LONG[:20], 1, 2, 3),
    LONG[:1],
    OTHER[:17],
    LONG,
    (*LONG, *OTHER[:20]),
)
TAILS: tuple[Text, ...] = ((), (65, 66), (3,), tuple(b"and now for something else"))
SAMPLING = ((0.0, 0), (0.9, 1), (0.9, 2), (0.5, -7))
CUTS = 8


def prompt(source: int, cut: int, tail: int, texts: Sequence[Text], longest: int) -> Text:
    """A prompt of the pool; or, from len(POOL) on, the leading part of a text, with or without a tail."""
    if source < len(POOL) or not texts:
        return POOL[source % len(POOL)]
    text = texts[-1 - (source - len(POOL)) % len(texts)]
    kept = len(text) * (CUTS - cut) // CUTS
    return (text[: max(1, kept)] + TAILS[tail % len(TAILS)])[:longest]

"""Which positions keep a checkpoint, and what identifies a prefix: pure functions, used by writer and lookup."""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Iterable, Sequence

import numpy as np

DIGEST_BYTES = 16
NEVER = 1 << 62


def retained(
    prompt_len: int, interval: int | None, page_size: int, end: int, start: int = 0, points: Iterable[int] = ()
) -> list[int]:
    """Positions in (start, end] whose checkpoint is kept, ascending, of a request with `prompt_len` prompt tokens.

    Always the prompt end and `points`: junctions, positions that were asked for, the end of a finished answer.
    interval: None also every multiple of page_size, n > 0 every multiple of n, 0 nothing else.
    """
    step = page_size if interval is None else interval
    kept = range((start // step + 1) * step, end + 1, step) if step else range(0)
    more = {position for position in (prompt_len, *points) if start < position <= end}
    return sorted(more.union(kept)) if more else list(kept)


def next_retained(interval: int | None, page_size: int, position: int, points: Sequence[int] = ()) -> int:
    """The first position after `position`, which is at or past the prompt end, that `retained` keeps; NEVER if none."""
    step = page_size if interval is None else interval
    grid = (position // step + 1) * step if step else NEVER
    return min([grid, *(point for point in points if point > position)]) if points else grid


def asked_positions(prompt_len: int, positions: Iterable[int]) -> tuple[int, ...]:
    """Positions from the start, ascending: n > 0 as it is, n < 0 back from the prompt end; none before token 1."""
    absolute = {position if position > 0 else prompt_len + position for position in positions}
    return tuple(sorted(position for position in absolute if position > 0))


def worth_keeping(junction: int, above: int, page_size: int) -> bool:
    """Whether a junction is kept: if it saves at least a quarter of a page, `above` being the checkpoint before it.

    Texts part everywhere, often after their first tokens; a row and its emission cost more than a few tokens.
    """
    return junction - above >= max(1, page_size // 4)


def shared_pages(position: int, page_size: int, drafting: bool) -> int:
    """Leading pages of a checkpoint at `position` that a resuming slot shares; it copies the one after them, if any.

    The drafter's row position - 1 embeds the token at `position`, which each resuming slot has its own of: with a
    drafter the page of entry position - 1 is written again.
    """
    return (position - 1 if drafting else position) // page_size


AS_HASHED = array("i").itemsize == 4 and sys.byteorder == "little"


def _as_bytes(tokens: Sequence[int]) -> bytes | array[int]:
    """Tokens as little-endian int32, in whatever has the bytes."""
    if AS_HASHED and isinstance(tokens, array) and tokens.typecode == "i":
        return tokens
    return np.asarray(tokens, dtype="<i4").tobytes()


class PrefixHash:
    """Running blake2b over tokens as little-endian int32; the digest at p identifies tokens[:p]."""

    def __init__(self) -> None:
        self._hasher = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self.position = 0

    def at(self, tokens: Sequence[int], position: int) -> bytes:
        """Digest of tokens[:position]; positions must not go down between calls, and tokens only grow."""
        assert position >= self.position
        if position > self.position:
            self._hasher.update(_as_bytes(tokens[self.position : position]))
            self.position = position
        return self._hasher.digest()


def prefix_digests(tokens: Sequence[int], positions: Iterable[int]) -> list[tuple[int, bytes]]:
    """(position, digest) of every position in 1 .. len(tokens) out of `positions`, ascending."""
    running = PrefixHash()
    return [(p, running.at(tokens, p)) for p in sorted(set(positions)) if 0 < p <= len(tokens)]

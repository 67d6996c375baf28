"""What the host decides, as pure functions: the same ones must hold for the simulator and for the runtime."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

TOKEN_BYTES = 4  # a token is hashed as a little-endian int32


def ring_size(max_rows: int, conv_width: int) -> int:
    """Entries of every ring: the smallest power of two that is at least 2 * max_rows + 2 * conv_width."""
    return 1 << (2 * max_rows + 2 * conv_width - 1).bit_length()


def min_ring(max_rows: int, conv_width: int, write_first: bool = True) -> int:
    """The smallest safe ring, in entries (`ring_size` is never below it).

    write_first: a pass may write the ring entries of its rows before its commit has read those of accepted ones.
    Then the conv inputs of a checkpoint at state_len + 1, from state_len - conv_width + 2 on, must survive writes up
    to committed_len + max_drafts <= state_len + 2 * max_rows - 1. Otherwise only the window of the first row,
    from committed_len - conv_width + 1 on, must survive the writes of its own pass.
    """
    return 2 * max_rows + max(conv_width - 2, 0) if write_first else max_rows + conv_width - 1


def num_pages(length: int, page_size: int) -> int:
    """Pages that hold positions 0 .. length - 1."""
    return -(-length // page_size)


def shared_pages(position: int, page_size: int, drafter_lag: bool) -> int:
    """Leading pages of a checkpoint at `position` that a resuming slot shares; it copies the one after, if any.

    drafter_lag: the drafter keeps row i in entry i. Its row position - 1 embeds the token at `position`, which each
    resuming slot has its own of, so the page of entry position - 1 is written again and has to be copied, full or
    not. With row i in entry i + 1, every entry below `position` is a function of tokens[:position].
    """
    return (position - 1 if drafter_lag else position) // page_size


def reserved_len(committed_len: int, rows: int, next_drafts: int, drafter: bool, drafter_kv_offset: int = 1) -> int:
    """KV entries a launch may write, from 0: `rows` target rows, then the drafter's accepted and chained rows.

    rows: K + 1 for a step, 0 for begin. The last drafter row is committed_len + rows - 1 + max(next_drafts - 1, 0).
    """
    return committed_len + rows + (max(next_drafts - 1, 0) + drafter_kv_offset if drafter else 0)


def max_kv_len(limit_len: int, max_drafts: int) -> int:
    """KV entries a slot can ever write: rows beyond `limit_len` are computed too, though never accepted.

    The last step starts at committed_len = limit_len - 2 at most: its target rows end at limit_len - 2 + max_drafts,
    and the chained drafter rows after it in the same entry at most.
    """
    return limit_len - 1 + max_drafts


def split_chunks(start: int, end: int, chunk: int) -> tuple[tuple[int, int], ...]:
    """Prefill launches (start, number of tokens) that cover positions start .. end - 1, each of at most `chunk`."""
    return tuple((at, min(chunk, end - at)) for at in range(start, end, chunk))


def retained(
    prompt_len: int,
    interval: int | None,
    page_size: int,
    *,
    length: int | None = None,
    finished: bool = False,
    points: Iterable[int] = (),
) -> tuple[int, ...]:
    """Positions whose checkpoint is kept, ascending, of a request that has `length` committed tokens.

    interval: None keeps every multiple of the KV page, n > 0 every multiple of n (a partial page is shared and copied
    on resume), 0 none. Always kept: the prompt end, `points` (shared-prefix junctions, positions the application
    asked for) and, once finished, the end of the answer. Growing `length` only ever adds positions.

    length: committed tokens, >= prompt_len; None means prompt_len. Positions are in 1 .. length.
    """
    length = prompt_len if length is None else length
    step = page_size if interval is None else interval
    kept = set(range(step, length + 1, step)) if step else set()
    kept.update(points)
    kept.add(prompt_len)
    if finished:
        kept.add(length)
    return tuple(sorted(at for at in kept if 0 < at <= length))


def due(state_len: int, committed_len: int, positions: Iterable[int]) -> tuple[int, ...]:
    """Retained positions inside (state_len, committed_len], ascending: they can be emitted now and never later.

    A step emits one. All but the last are saved before it; a slot that has finished saves them all.
    """
    return tuple(at for at in sorted(positions) if state_len < at <= committed_len)


def next_emission(state_len: int, committed_len: int, positions: Iterable[int]) -> int | None:
    """What to put into `emit_position` of a slot before its next step, once at most one position is due."""
    positions = due(state_len, committed_len, positions)
    return positions[-1] if positions else None


def row_checkpoints(start: int, num_tokens: int, positions: Iterable[int]) -> tuple[int | None, ...]:
    """Per row of a prefill chunk, the position of the checkpoint written after it, or None."""
    wanted = set(positions)
    return tuple(at + 1 if at + 1 in wanted else None for at in range(start, start + num_tokens))


def verify_drafts(num_drafts: Sequence[int], max_drafts: int) -> int:
    """The largest K a batch can verify: a slot never verifies more drafts than were made for it."""
    return min([max_drafts, *num_drafts])


def token_hash(tokens: Sequence[int]) -> bytes:
    """Identity of a prefix: blake2b, 16 bytes, over the tokens as little-endian int32."""
    return hashlib.blake2b(b"".join(t.to_bytes(TOKEN_BYTES, "little") for t in tokens), digest_size=16).digest()


def prefix_hashes(tokens: Sequence[int]) -> list[bytes]:
    """`token_hash` of every prefix: entry p is that of tokens[:p]."""
    hasher = hashlib.blake2b(digest_size=16)
    hashes = [hasher.digest()]
    for token in tokens:
        hasher.update(token.to_bytes(TOKEN_BYTES, "little"))
        hashes.append(hasher.copy().digest())
    return hashes


def resume_position(tokens: Sequence[int], checkpoints: Iterable[tuple[int, bytes]]) -> int:
    """The longest checkpointed position whose prefix is a prefix of `tokens`, or 0: a cold prefill.

    checkpoints: (position, token_hash) pairs. A pair counts only at its own exact position with an equal hash.
    """
    hashes = prefix_hashes(tokens)
    return max((at for at, value in checkpoints if at < len(hashes) and hashes[at] == value), default=0)

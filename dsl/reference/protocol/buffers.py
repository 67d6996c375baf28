"""Sizes, buffers and observable results of the protocol machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from dsl.reference.protocol import policy
from dsl.reference.protocol.pages import POISON


class Phase(Enum):
    """What a slot may do next; set explicitly, never inferred from lengths."""

    FREE = "free"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


@dataclass(frozen=True)
class ProtocolShape:
    """Sizes of one engine, and the two orders the protocol leaves open.

    ring: entries of every ring, any number > 0. None: `policy.ring_size`.
    write_first: whether ring entries of a pass's rows are written before its commit reads the ring, or after.
    drafter_kv_offset: the drafter keeps row i in KV entry i + offset; 1, or 0 (see `policy.shared_pages`).
    """

    max_slots: int = 4
    max_drafts: int = 7
    conv_width: int = 4
    page_size: int = 16
    ring: int | None = None
    write_first: bool = True
    drafter_kv_offset: int = 1

    @property
    def max_rows(self) -> int:
        """Rows of the longest verify pass."""
        return self.max_drafts + 1

    @property
    def drafter(self) -> bool:
        """Whether the engine has a drafter at all."""
        return self.max_drafts > 0

    @property
    def ring_entries(self) -> int:
        """Entries of every ring."""
        return self.ring or policy.ring_size(self.max_rows, self.conv_width)


@dataclass(frozen=True)
class Supplied:
    """Tokens of one seat that an engine under test chose.

    targets: g_0 .. at least up to the last emitted one (begin: the first token). drafts: what the draft phase of this
    call proposed, `next_drafts` of them.
    """

    targets: tuple[int, ...]
    drafts: tuple[int, ...] = ()


@dataclass(frozen=True)
class Checkpoint:
    """Saved state at `position`. tokens: the prefix it stands for. pages: leading pages, the last maybe partial."""

    position: int
    tokens: tuple[int, ...]
    state: int
    conv_inputs: tuple[int, ...]
    h_last: int
    pages: tuple[int, ...]

    @property
    def key(self) -> tuple[int, bytes]:
        """Position and token hash, as `policy.resume_position` wants them."""
        return self.position, policy.token_hash(self.tokens)


@dataclass(frozen=True)
class SlotSnapshot:
    """Observable buffers of a slot. next_token is None and drafts are empty before begin.

    tokens: all tokens known, prompt and emitted: positions 0 .. committed_len once decoding.
    state: `S`, after tokens[:state_len]. target_kv: entries < committed_len. drafter_kv: rows 0 .. committed_len - 1
    once decoding, one row less before begin, none without a drafter.
    """

    slot: int
    phase: Phase
    tokens: tuple[int, ...]
    committed_len: int
    state_len: int
    next_token: int | None
    drafts: tuple[int, ...]
    state: int
    target_kv: tuple[int, ...]
    drafter_kv: tuple[int, ...]


@dataclass(frozen=True)
class PrefillResult:
    """One chunk. checkpoints: those of its rows, ascending. drafter_rows: positions of the drafter's rows."""

    slot: int
    committed_len: int
    checkpoints: tuple[Checkpoint, ...]
    drafter_rows: tuple[int, ...]


@dataclass(frozen=True)
class SeatResult:
    """What one seat of a step (or begin: num_accepted = 0, one token emitted) did; lengths are those after it.

    verified: the drafts that were verified. accepted_drafts: num_accepted - 1, also when a cut made the last emitted
    token a draft. drafts: proposals for positions committed_len + 1 on. drafter_rows: accepted rows, then chained.
    """

    slot: int
    verified: tuple[int, ...]
    num_accepted: int
    emitted: tuple[int, ...]
    finish: str | None
    committed_len: int
    state_len: int
    next_token: int
    drafts: tuple[int, ...]
    drafter_rows: tuple[int, ...]
    checkpoint: Checkpoint | None = None

    @property
    def accepted_drafts(self) -> int:
        """Drafts that count as accepted: sums with one token per step (and per begin) to the emitted tokens."""
        return max(self.num_accepted - 1, 0)


@dataclass
class Slot:
    """Buffers of one slot; a slot that nobody holds is poison. Rings: [ring_entries], entry p % ring_entries."""

    committed_len: int = POISON
    state_len: int = POISON
    next_token: int = POISON
    drafts: list[int] = field(default_factory=list)
    state: int = POISON
    conv_ring: list[int] = field(default_factory=list)
    record_ring: list[int] = field(default_factory=list)
    hidden_ring: list[int] = field(default_factory=list)
    page_table: list[int] = field(default_factory=list)
    limit_len: int = POISON
    stop_tokens: frozenset[int] = frozenset()
    # Kept by the host:
    phase: Phase = Phase.FREE
    tokens: list[int] = field(default_factory=list)
    num_drafts: int = 0

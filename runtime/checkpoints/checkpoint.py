"""A checkpoint as the cache knows it: of which prefix, why it is kept, what it has on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Flag, auto
from typing import NamedTuple

from runtime.checkpoints.retention import shared_pages
from runtime.checkpoints.tree import Node

Key = tuple[int, bytes]


class Reason(Flag):
    """Why a checkpoint is kept. HELD: by requests, and not offered to others."""

    HELD = 0
    GRID = auto()
    PROMPT_END = auto()
    ANSWER_END = auto()
    JUNCTION = auto()
    ASKED = auto()
    LOADED = auto()


@dataclass(eq=False, slots=True)
class Checkpoint:
    """Everything needed to go on after tokens[:position] with nothing recomputed.

    digest: of those tokens; index: row of the device's checkpoint buffers, None where only another tier has it; pages:
    of the KV entries < position, the last one possibly partial; drafting: whether the drafter's KV is there too; stamp:
    numerics it was computed with; holders: requests that will resume from it; pins: of the application; busy: copies
    under way; copy: what the host pool has of it; used: clock of its last use; published: others may resume from it.
    """

    position: int
    digest: bytes
    tokens: Sequence[int]
    index: int | None
    pages: tuple[int, ...]
    page_size: int
    drafting: bool
    stamp: str
    reasons: Reason
    node: Node
    holders: int = 0
    pins: int = 0
    busy: int = 0
    copy: object = None
    used: int = 0
    published: bool = False

    @property
    def key(self) -> Key:
        """Position and digest: the identity of the prefix."""
        return (self.position, self.digest)

    @property
    def shared_pages(self) -> int:
        """Leading pages that a slot which resumes from it shares; it copies the one after them, if any."""
        return shared_pages(self.position, self.page_size, self.drafting)


class Emission(NamedTuple):
    """A checkpoint about to be written by a kernel. row: reserved for it."""

    position: int
    digest: bytes
    row: int
    reasons: Reason


@dataclass
class CheckpointCounts:
    """What happened to checkpoints so far. skipped: wanted, but every row of the pool was protected.

    demoted, promoted: moved to the host pool and back; given_up: held by requests, but pages ran out; read: from files.
    """

    written: int = 0
    evicted: int = 0
    restored: int = 0
    skipped: int = 0
    mismatched: int = 0
    demoted: int = 0
    promoted: int = 0
    given_up: int = 0
    read: int = 0

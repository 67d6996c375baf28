"""The checkpoint store: which prefixes can be resumed from. A pool of fixed size, least recently used evicted first."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from runtime.checkpoints.pages import PagePool
from runtime.checkpoints.retention import prefix_digests

Key = tuple[int, bytes]


@dataclass(frozen=True)
class Checkpoint:
    """Everything needed to go on after tokens[:position] with nothing recomputed.

    digest: of those tokens; index: row of the checkpoint buffers; pages: of the KV entries
    < position, the last one possibly partial; drafting: whether the drafter's KV is there too; stamp: numerics it was
    computed with.
    """

    position: int
    digest: bytes
    index: int
    pages: tuple[int, ...]
    drafting: bool
    stamp: str

    @property
    def key(self) -> Key:
        """Position and digest: the identity of the prefix."""
        return (self.position, self.digest)


@dataclass
class CheckpointCounts:
    """What happened to checkpoints so far. skipped: wanted, but every row of the pool was protected."""

    written: int = 0
    evicted: int = 0
    restored: int = 0
    skipped: int = 0
    mismatched: int = 0


@dataclass
class CheckpointStore:
    """Published checkpoints by prefix. Rows are reserved first, written by kernels, then published or released.

    capacity: rows of the pool; pages: pool whose pages the checkpoints share; drafting, stamp: of everything published.
    """

    capacity: int
    pages: PagePool
    drafting: bool
    stamp: str
    counts: CheckpointCounts = field(default_factory=CheckpointCounts)

    def __post_init__(self) -> None:
        self._free = list(range(self.capacity - 1, -1, -1))
        self._entries: OrderedDict[Key, Checkpoint] = OrderedDict()  # least recently used first
        self._positions: Counter[int] = Counter()
        self._locked: set[Key] = set()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Checkpoint]:
        return iter(self._entries.values())

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def free_rows(self) -> list[int]:
        """Rows of the pool that hold nothing published or reserved."""
        return list(self._free)

    def find(self, tokens: Sequence[int]) -> Checkpoint | None:
        """The published checkpoint of the longest prefix of `tokens`, or None: a cold prefill."""
        for key in reversed(prefix_digests(tokens, self._positions)):
            if key in self._entries:
                return self._entries[key]
        return None

    def touch(self, key: Key) -> None:
        """Mark as just used."""
        self._entries.move_to_end(key)

    def reserve(self, protected: Key | None = None) -> int | None:
        """A row to write a checkpoint into, if need be of an evicted one, never `protected`; None if there is none."""
        if not self._free and not self.evict(protected):
            self.counts.skipped += 1
            return None
        return self._free.pop()

    def release(self, index: int) -> None:
        """Give back a reserved row that was not published."""
        self._free.append(index)

    def reset(self) -> None:
        """Keep what is published and nothing else: rows only reserved are free, pages have no other holder."""
        used = {checkpoint.index for checkpoint in self}
        self._free = [row for row in range(self.capacity - 1, -1, -1) if row not in used]
        self._positions = Counter(checkpoint.position for checkpoint in self)
        self._locked = set()
        self.pages.reset(checkpoint.pages for checkpoint in self)

    def publish(self, position: int, digest: bytes, index: int, pages: Sequence[int]) -> Checkpoint:
        """Offer a written row to later requests. pages: those of the entries < position; they gain a holder.

        If the same prefix was published meanwhile, by a request that went the same way, that one stays.
        """
        checkpoint = Checkpoint(position, digest, index, tuple(pages), self.drafting, self.stamp)
        if checkpoint.key in self._entries:
            self.release(index)
            return self._entries[checkpoint.key]
        self.pages.share(pages)
        self._entries[checkpoint.key] = checkpoint
        self._positions[position] += 1
        self.counts.written += 1
        return checkpoint

    def evict(self, protected: Key | None = None) -> bool:
        """Drop the least recently used checkpoint that is neither locked nor `protected`; False if there is none."""
        for key, checkpoint in self._entries.items():
            if key not in self._locked and key != protected:
                self._remove(checkpoint)
                self.counts.evicted += 1
                return True
        return False

    def _remove(self, checkpoint: Checkpoint) -> None:
        del self._entries[checkpoint.key]
        self._positions[checkpoint.position] -= 1
        if not self._positions[checkpoint.position]:
            del self._positions[checkpoint.position]
        self.pages.drop(checkpoint.pages)
        self._free.append(checkpoint.index)

    @contextmanager
    def in_use(self, checkpoint: Checkpoint) -> Iterator[None]:
        """Inside, the checkpoint is not evicted."""
        self._locked.add(checkpoint.key)
        try:
            yield
        finally:
            self._locked.discard(checkpoint.key)

    def usable(self, checkpoint: Checkpoint, tokens: Sequence[int]) -> bool:
        """Whether it may be restored for a prompt: count, hash, numerics and drafter must be exactly those wanted."""
        [(_, digest)] = prefix_digests(tokens, [checkpoint.position]) or [(0, b"")]
        same = digest == checkpoint.digest and checkpoint.stamp == self.stamp
        if not same or checkpoint.drafting is not self.drafting:
            self.counts.mismatched += 1
            return False
        return True


class SeenPrefixes:
    """Page-aligned prefixes that were processed before, to count what is recomputed for want of a checkpoint."""

    def __init__(self, page_size: int, capacity: int = 1 << 16) -> None:
        self._page_size = page_size
        self._capacity = capacity
        self._seen: OrderedDict[Key, None] = OrderedDict()

    def add(self, tokens: Sequence[int]) -> None:
        """Remember the prefixes of processed tokens; the oldest are forgotten beyond the capacity."""
        for key in prefix_digests(tokens, self._grid(len(tokens))):
            self._seen[key] = None
            self._seen.move_to_end(key)
        while len(self._seen) > self._capacity:
            self._seen.popitem(last=False)

    def longest(self, tokens: Sequence[int]) -> int:
        """Length of the longest remembered prefix of `tokens`, a multiple of the page size."""
        return max((key[0] for key in prefix_digests(tokens, self._grid(len(tokens))) if key in self._seen), default=0)

    def _grid(self, length: int) -> range:
        return range(self._page_size, length + 1, self._page_size)

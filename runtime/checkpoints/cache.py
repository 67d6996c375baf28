"""The prefix cache: published and held checkpoints, what they have of the device pool, and which may go."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from runtime.checkpoints.checkpoint import Checkpoint, CheckpointCounts, Key, Reason
from runtime.checkpoints.eviction import Ranking, Worth, worth
from runtime.checkpoints.pages import PagePool
from runtime.checkpoints.retention import prefix_digests
from runtime.checkpoints.tree import Node, Place, RadixTree
from runtime.errors import OutOfPages, PinRefused


class Below:
    """The tier below the device: here, none. `demote` copies a checkpoint, or not; `discard` forgets its copy."""

    def demote(self, checkpoint: Checkpoint) -> bool:
        """Take a copy of a checkpoint that is on the device, as its `copy`; False if there is no room."""
        return False

    def discard(self, checkpoint: Checkpoint) -> None:
        """Give the place of its copy back."""

    def settle(self) -> bool:
        """Wait for copies under way, which keep checkpoints on the device; False if there are none."""
        return False


@dataclass
class PrefixCache:
    """Checkpoints by prefix. Rows are reserved first, written by kernels, then published, held or released.

    capacity: rows of the pool; pages: pool whose pages checkpoints share, that of row r as owner r + 1; drafting,
    stamp: of everything in it; reserved_pages: pages that the engine's slots may come to need, which pins leave alone.
    below: the tier that is offered a checkpoint before its device row goes.
    """

    capacity: int
    pages: PagePool
    drafting: bool
    stamp: str
    page_size: int
    row_bytes: int = 1
    page_bytes: int = 1
    reserved_pages: int = 0
    below: Below = field(default_factory=lambda: Below())
    counts: CheckpointCounts = field(default_factory=CheckpointCounts)

    def __post_init__(self) -> None:
        self.tree = RadixTree()
        self._free = list(range(self.capacity - 1, -1, -1))
        self._entries: dict[Key, Checkpoint] = {}
        self._ranking = Ranking(self.capacity, self._sizes)
        self._clock = 0

    def __len__(self) -> int:
        return sum(checkpoint.published for checkpoint in self._entries.values())

    def __iter__(self) -> Iterator[Checkpoint]:
        """The published ones."""
        return iter([checkpoint for checkpoint in self._entries.values() if checkpoint.published])

    def __contains__(self, key: Key) -> bool:
        checkpoint = self._entries.get(key)
        return checkpoint is not None and checkpoint.published

    def all(self) -> list[Checkpoint]:
        """Every checkpoint, the held ones too."""
        return list(self._entries.values())

    def get(self, key: Key) -> Checkpoint | None:
        """The checkpoint of exactly this prefix, published or held."""
        return self._entries.get(key)

    @property
    def rows_free(self) -> int:
        """How many rows are free."""
        return len(self._free)

    def free_rows(self) -> list[int]:
        """Rows of the pool that hold nothing published, held or reserved."""
        return list(self._free)

    # Lookup

    def known(self, tokens: Sequence[int], near: Place | None = None) -> int:
        """How many of these tokens were processed before, by whomever. near: a place on the way there."""
        return self.tree.match(tokens, near).length

    def learn(self, tokens: Sequence[int], near: Place | None = None, end: int | None = None) -> None:
        """Remember tokens, the first `end` of them, as processed. near: a place on the way there."""
        self.tree.learn(tokens, near, end)

    def junction(
        self, tokens: Sequence[int], near: Place | None = None, end: int | None = None
    ) -> tuple[int, int] | None:
        """Where these tokens leave text that is known and goes on otherwise, and the published position before it.

        near: a place on the way there; end: the first `end` of the tokens only.
        """
        match = self.tree.match(tokens, near, end)
        if not match.diverges or not match.length:
            return None
        above = self._published(match.last)
        return match.length, 0 if above is None else above.position

    def find(self, tokens: Sequence[int]) -> Checkpoint | None:
        """The published checkpoint of the longest prefix of `tokens`, in whatever tier, or None: a cold prefill."""
        return next(self.candidates(tokens), None)

    def candidates(self, tokens: Sequence[int]) -> Iterator[Checkpoint]:
        """Published checkpoints on the path of `tokens`, the deepest first."""
        for node in reversed(self.tree.match(tokens).nodes):
            checkpoint = node.checkpoint
            if checkpoint is not None and checkpoint.published:
                yield checkpoint

    def usable(self, checkpoint: Checkpoint, tokens: Sequence[int]) -> bool:
        """Whether it may be restored for a prompt: count, hash, numerics and drafter must be exactly those wanted."""
        [(_, digest)] = prefix_digests(tokens, [checkpoint.position]) or [(0, b"")]
        same = digest == checkpoint.digest and checkpoint.stamp == self.stamp
        if not same or checkpoint.drafting is not self.drafting:
            self.counts.mismatched += 1
            return False
        return True

    def touch(self, checkpoint: Checkpoint) -> None:
        """Mark as just used."""
        self._clock += 1
        checkpoint.used = self._clock
        if checkpoint.index is not None:
            self._ranking.use(checkpoint.index, self._clock)

    # Writing

    def reserve(self, protected: Key | None = None) -> int | None:
        """A row to write a checkpoint into, if need be of an evicted one, never `protected`; None if there is none."""
        if not self._free and not self.evict(protected):
            self.counts.skipped += 1
            return None
        return self._free.pop()

    def release(self, index: int) -> None:
        """Give back a reserved row that was not published."""
        self._free.append(index)

    def publish(
        self,
        tokens: Sequence[int],
        position: int,
        digest: bytes,
        index: int,
        pages: Sequence[int],
        reasons: Reason = Reason.GRID,
        near: Place | None = None,
    ) -> Checkpoint:
        """Offer a written row to later requests. pages: those of the entries < position; they gain a holder.

        tokens: a list that only grows, or is never changed. If the same prefix was published meanwhile, by a request
        that went the same way, that one stays. Reason.HELD keeps it for `hold` only. near: a place on the way there.
        """
        key = (position, digest)
        checkpoint = self._entries.get(key)
        if checkpoint is not None and checkpoint.index is not None:
            self.release(index)
            self.justify(checkpoint, reasons)
            return checkpoint
        self.pages.share(pages, index + 1)
        if checkpoint is None:
            node = self.tree.node_at(tokens, near, position)
            made_with = (self.page_size, self.drafting, self.stamp)
            checkpoint = Checkpoint(position, digest, tokens, None, (), *made_with, Reason.HELD, node)
            node.checkpoint = self._entries[key] = checkpoint
            self.counts.written += 1
        checkpoint.index, checkpoint.pages = index, tuple(pages)
        self._ranking.put(index, checkpoint)
        self.justify(checkpoint, reasons)
        return checkpoint

    def justify(self, checkpoint: Checkpoint, reasons: Reason) -> None:
        """One more reason to keep a checkpoint, which counts as a use."""
        if reasons is not checkpoint.reasons:
            checkpoint.reasons = checkpoint.reasons | reasons if checkpoint.reasons else reasons
        if not checkpoint.published and checkpoint.reasons:
            checkpoint.published = True
            if checkpoint.node.children:
                self._moved(checkpoint)
        self.touch(checkpoint)

    # Holding and pinning

    def hold(self, checkpoint: Checkpoint) -> None:
        """A request will resume from it: it stays, published or not, as long as pages last."""
        checkpoint.holders += 1

    def drop(self, checkpoint: Checkpoint) -> None:
        """The opposite of `hold`: what nobody holds any more and was never published goes, if it is still there."""
        checkpoint.holders -= 1
        if not checkpoint.holders and not checkpoint.published and self._entries.get(checkpoint.key) is checkpoint:
            self._remove(checkpoint)

    def pin(self, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint on the device until `unpin`. Raises PinRefused when slots could lack rows or pages."""
        pinned = [other for other in self._entries.values() if other.pins or other is checkpoint]
        pages = {page for other in pinned for page in other.pages}
        rows_left, pages_left = self.capacity - len(pinned), self.pages.num_pages - len(pages)
        if rows_left < 1 or pages_left < self.reserved_pages:
            raise PinRefused(
                position=checkpoint.position, rows=rows_left, pages=pages_left, needed_pages=self.reserved_pages
            )
        checkpoint.pins += 1

    def unpin(self, checkpoint: Checkpoint) -> None:
        """The opposite of `pin`."""
        checkpoint.pins = max(0, checkpoint.pins - 1)

    @contextmanager
    def in_use(self, checkpoint: Checkpoint) -> Iterator[None]:
        """Inside, the checkpoint is not evicted."""
        checkpoint.busy += 1
        try:
            yield
        finally:
            checkpoint.busy -= 1

    # Leaving

    def evict(self, protected: Key | None = None) -> bool:
        """Take the device row of what is worth least; False if all are in use, pinned, held or protected."""
        victim = self._least(protected)
        if victim is None:
            return False
        if victim.copy is None and self.below.demote(victim):
            self.counts.demoted += 1
        self.counts.evicted += 1
        self._vacate(victim)
        return True

    def _least(self, protected: Key | None) -> Checkpoint | None:
        """Of those that may go, the one of least worth."""
        for row, checkpoint in self._ranking.unmeasured():
            self._ranking.measured(row, self._saved_tokens(checkpoint))
        for _, checkpoint in self._ranking.ascending(self._clock + 1):
            if self.may_go(checkpoint, protected):
                return checkpoint
        return None

    def _saved_tokens(self, checkpoint: Checkpoint) -> int:
        """What would be processed again without it, back to the next published one above."""
        above = self._published(checkpoint.node.parent)
        return checkpoint.position - (above.position if above is not None else 0)

    def _moved(self, checkpoint: Checkpoint) -> None:
        """A checkpoint is offered or gone, in every tier: those next below it are measured anew."""
        for below in self.tree.next_below(checkpoint.node):
            if below.index is not None:
                self._ranking.changed(below.index)

    def evictable(self, protected: Key | None = None) -> list[Checkpoint]:
        """Checkpoints whose device row may be taken."""
        on_device = [checkpoint for checkpoint in self._entries.values() if checkpoint.index is not None]
        return [checkpoint for checkpoint in on_device if self.may_go(checkpoint, protected)]

    @staticmethod
    def may_go(checkpoint: Checkpoint, protected: Key | None = None) -> bool:
        """Whether nobody uses, pinned or holds it, or asks for a row on its account."""
        return not (checkpoint.busy or checkpoint.pins or checkpoint.holders or checkpoint.key == protected)

    def worth(self, checkpoint: Checkpoint) -> float:
        """Tokens that it saves per byte and time since its last use; see runtime.checkpoints.eviction."""
        return worth(self.measure(checkpoint))

    def measure(self, checkpoint: Checkpoint) -> Worth:
        """What speaks for a checkpoint."""
        pages = 0 if checkpoint.index is None else int(self.pages.sole[checkpoint.index + 1])
        size = self.row_bytes + pages * self.page_bytes
        return Worth(self._saved_tokens(checkpoint), size, age=self._clock - checkpoint.used + 1)

    def _sizes(self) -> np.ndarray:
        """Bytes of every row and of the pages that nobody else has, [capacity]."""
        sizes: np.ndarray = self.row_bytes + self.pages.sole[1:] * self.page_bytes
        return sizes

    @staticmethod
    def _published(node: Node | None) -> Checkpoint | None:
        """The deepest published checkpoint on the way to a node, its own included."""
        while node is not None:
            found: Checkpoint | None = node.checkpoint
            if found is not None and found.published:
                return found
            node = node.parent
        return None

    def _vacate(self, checkpoint: Checkpoint) -> None:
        """Free its row and pages; without a copy elsewhere it is gone."""
        if checkpoint.index is None:
            return
        index, pages = checkpoint.index, checkpoint.pages
        checkpoint.index, checkpoint.pages = None, ()
        self._ranking.take(index)
        self.pages.drop(pages, index + 1)
        self._free.append(index)
        if checkpoint.copy is None:
            self._forget(checkpoint)

    def _forget(self, checkpoint: Checkpoint) -> None:
        if self._entries.get(checkpoint.key) is checkpoint:
            del self._entries[checkpoint.key]
            self._moved(checkpoint)
            self.tree.release(checkpoint.node)

    def _remove(self, checkpoint: Checkpoint) -> None:
        if checkpoint.copy is not None:
            self.below.discard(checkpoint)
            checkpoint.copy = None
        self._vacate(checkpoint)
        self._forget(checkpoint)

    def lost_copy(self, checkpoint: Checkpoint) -> None:
        """The other tier gave its copy up: without a device row the checkpoint is gone."""
        checkpoint.copy = None
        if checkpoint.index is None:
            self._forget(checkpoint)

    def clear(self, wanted: Callable[[Checkpoint], bool] = lambda _: True) -> int:
        """Give up every `wanted` checkpoint that is not in use, pinned or held. Returns how many."""
        going = [c for c in self._entries.values() if not (c.busy or c.pins or c.holders) and wanted(c)]
        for checkpoint in going:
            self._remove(checkpoint)
        return len(going)

    # Pages

    def take_page(self, protected: Key | None = None) -> int:
        """A free page, if need be of what is evicted, then of held checkpoints, then of those on their way to files.

        protected: goes last of all, the prompt end of the request that asks. Raises OutOfPages.
        """
        while not self.pages.free:
            if not (self.evict(protected) or self._give_up() or self.below.settle() or self.evict()):
                raise OutOfPages(wanted=1, free=0, total=self.pages.num_pages)
        return self.pages.take()

    def _give_up(self) -> bool:
        """Take the device row of a held checkpoint; its requests will prefill their tokens again."""
        held = [c for c in self._entries.values() if c.index is not None and c.holders and not (c.busy or c.pins)]
        if not held:
            return False
        victim = max(held, key=lambda checkpoint: checkpoint.used)
        if victim.copy is None and self.below.demote(victim):
            self.counts.demoted += 1
        else:
            self.counts.given_up += victim.copy is None
        self._vacate(victim)
        return True

    def shareable(self, tokens: Sequence[int], position: int) -> tuple[int, ...]:
        """Leading device pages of tokens[:position] that the nearest checkpoint above, on the device, can share."""
        above = [c for node in self.tree.match(tokens[:position]).nodes if (c := node.checkpoint) is not None]
        on_device = [c for c in above if c.index is not None and c.position < position]
        return on_device[-1].pages[: on_device[-1].shared_pages] if on_device else ()

    def reset(self) -> None:
        """After an interruption: keep what is published or held, entire, and nothing else.

        Rows only reserved are free, pages have no other holder, the tree is made anew from what is kept.
        """
        kept = [c for c in self._entries.values() if (c.index is not None or c.copy is not None)]
        kept = [c for c in kept if c.published or c.holders]
        self._entries = {c.key: c for c in kept}
        self.tree = RadixTree(self.tree.capacity)
        for checkpoint in kept:
            checkpoint.node = self.tree.node_at(checkpoint.tokens, end=checkpoint.position)
            checkpoint.node.checkpoint = checkpoint
        self._rank(kept)
        used = {checkpoint.index for checkpoint in kept}
        self._free = [row for row in range(self.capacity - 1, -1, -1) if row not in used]
        self.pages.reset((c.index + 1, c.pages) for c in kept if c.index is not None)

    def _rank(self, kept: list[Checkpoint]) -> None:
        """A ranking of these alone."""
        self._ranking = Ranking(self.capacity, self._sizes)
        for checkpoint in kept:
            if checkpoint.index is not None:
                self._ranking.put(checkpoint.index, checkpoint)
                self._ranking.use(checkpoint.index, checkpoint.used)

"""Where a checkpoint's bytes are: device pool, host pool, files; and how they get to where they are wanted."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace

from runtime.checkpoints.cache import Below, PrefixCache
from runtime.checkpoints.checkpoint import Checkpoint, Key, Reason
from runtime.checkpoints.device_pool import DevicePool
from runtime.checkpoints.directory import CheckpointDirectory
from runtime.checkpoints.eviction import worth
from runtime.checkpoints.host_pool import HostCopy, HostPool
from runtime.checkpoints.image import CheckpointImage
from runtime.checkpoints.pools import Pools
from runtime.checkpoints.writer import WriteBehind
from runtime.errors import OutOfPages, RuntimeStateError

log = logging.getLogger("stepforge.checkpoints")


class Tiers(Below):
    """The cache's device pool, and the tiers below it that an engine has. `fetch` is how a request finds its past."""

    def __init__(
        self, cache: PrefixCache, device: DevicePool, host: HostPool | None, directory: CheckpointDirectory | None
    ) -> None:
        self.cache, self.device, self.host, self.directory = cache, device, host, directory
        self.writer = None if directory is None else WriteBehind(directory)
        self.refused = 0
        self._writing: dict[Key, Checkpoint] = {}
        cache.below = self

    # Towards the device

    def fetch(self, tokens: Sequence[int]) -> Checkpoint | None:
        """The usable checkpoint of the longest prefix of `tokens` that can be had, brought to the device."""
        usable = (c for c in self.cache.candidates(tokens) if self.cache.usable(c, tokens))
        found = next(usable, None)
        if self.directory is not None:
            read = self._read(tokens, 0 if found is None else found.position)
            if read is not None:
                return read
        while found is not None and not self.bring(found):
            found = next(usable, None)
        return found

    def bring(self, checkpoint: Checkpoint) -> bool:
        """Have a checkpoint on the device; False if there is no room, or nobody has its bytes."""
        if checkpoint.index is not None:
            return True
        if self.host is None or not isinstance(checkpoint.copy, HostCopy):
            return False
        image = self.host.image(checkpoint.copy, checkpoint.tokens, checkpoint.position, checkpoint.digest)
        with self.cache.in_use(checkpoint):
            placed = self._place(image, checkpoint.reasons)
        self.cache.counts.promoted += placed is not None
        return placed is not None

    def adopt(self, image: CheckpointImage, reasons: Reason = Reason.LOADED) -> Checkpoint | None:
        """Publish an image from elsewhere; None if there is no room."""
        known = self.cache.get((image.position, image.digest))
        if known is not None and known.index is not None:
            self.cache.justify(known, reasons)
            return known
        return self._place(image, reasons)

    def _place(self, image: CheckpointImage, reasons: Reason) -> Checkpoint | None:
        """Into a row and pages of the device; pages that a checkpoint above has there are shared."""
        row = self.cache.reserve()
        if row is None:
            return None
        pages = list(self.cache.shareable(image.tokens, image.position))
        shared = len(pages)
        self.cache.pages.share(pages)
        try:
            while len(pages) < len(image.pages):
                pages.append(self.cache.take_page())
        except OutOfPages:
            self.cache.pages.drop(pages)
            self.cache.release(row)
            return None
        self.device.load(image, row, {number: pages[number] for number in range(shared, len(pages))})
        placed = self.cache.publish(image.tokens, image.position, image.digest, row, pages, reasons)
        self.cache.pages.drop(pages)
        return placed

    def _read(self, tokens: Sequence[int], longer_than: int) -> Checkpoint | None:
        """A longer prefix from the directory, if it has one that can be read and placed."""
        assert self.directory is not None
        try:
            key = self.directory.find(tokens, longer_than)
            image = None if key is None else self.directory.read(key)
        except RuntimeStateError as error:
            self.refused += 1
            log.warning("%s", error)
            return None
        placed = None if image is None else self.adopt(image)
        self.cache.counts.read += placed is not None
        return placed

    # Away from it

    def demote(self, checkpoint: Checkpoint) -> bool:
        """Copy a checkpoint to the host pool, over copies that are worth less; False if it does not fit."""
        if self.host is None:
            return False
        keys = self.device.layout.page_keys(checkpoint.tokens, checkpoint.position)
        going: list[Checkpoint] = []
        cheapest = iter(self._worth_less(checkpoint))
        while not self.host.fits(keys, [c.copy for c in going if isinstance(c.copy, HostCopy)]):
            victim = next(cheapest, None)
            if victim is None:
                return False
            going.append(victim)
        for victim in going:
            self._drop_copy(victim)
        checkpoint.copy = self.host.put(self.device.image(checkpoint))
        return True

    def _worth_less(self, checkpoint: Checkpoint) -> list[Checkpoint]:
        """Those whose copies may go in favour of a checkpoint, the cheapest first."""
        copied = [c for c in self.cache.all() if c.copy is not None and not (c.busy or (c.holders and c.index is None))]
        most = self.cache.worth(checkpoint)
        return sorted((c for c in copied if self._worth_of_copy(c) <= most), key=self._worth_of_copy)

    def _worth_of_copy(self, checkpoint: Checkpoint) -> float:
        """Nothing, while the checkpoint is on the device as well."""
        if checkpoint.index is not None:
            return 0.0
        assert self.host is not None and isinstance(checkpoint.copy, HostCopy)
        pages = self.host.sole(checkpoint.copy) * self.cache.page_bytes
        measured = self.cache.measure(checkpoint)
        return worth(replace(measured, bytes=measured.bytes + pages))

    def _drop_copy(self, checkpoint: Checkpoint) -> None:
        assert self.host is not None and isinstance(checkpoint.copy, HostCopy)
        self.host.drop(checkpoint.copy)
        self.cache.lost_copy(checkpoint)

    def discard(self, checkpoint: Checkpoint) -> None:
        """Give the place of a copy in the host pool back."""
        if self.host is not None and isinstance(checkpoint.copy, HostCopy):
            self.host.drop(checkpoint.copy)

    # Files

    def offer(self, checkpoint: Checkpoint) -> None:
        """Have a checkpoint that was just published written to the directory, behind the engine's back.

        It stays on the device until that is done. When the writer is behind, it is left out: `close` comes back to it.
        """
        if self.writer is None or not checkpoint.published or checkpoint.key in self._writing:
            return
        image = self.device.image(checkpoint, to_host=not self._shared)
        if self.writer.put(image, lambda _: None):
            checkpoint.busy += 1
            self._writing[checkpoint.key] = checkpoint

    @property
    def _shared(self) -> bool:
        return self.device.buffers.host.shared

    def collect(self) -> None:
        """Let go of what was written meanwhile."""
        if not self._writing:
            return
        assert self.writer is not None
        for finished in self.writer.collect():
            checkpoint = self._writing.pop(finished.key, None)
            if checkpoint is not None:
                checkpoint.busy -= 1
            if finished.error is not None and not finished.repeated:
                log.warning("%s", finished.error)

    def settle(self) -> bool:
        """Wait until what the writer has is written; False if it has nothing."""
        if not self._writing:
            return False
        assert self.writer is not None
        self.writer.flush()
        self.collect()
        return True

    def flush(self, timeout: float | None = None) -> bool:
        """Write every published checkpoint on the device that the directory lacks, and wait for it."""
        if self.writer is None or self.directory is None:
            return True
        deadline = None if timeout is None else time.monotonic() + timeout
        self.collect()
        there = set(self.directory.keys())
        for checkpoint in [c for c in self.cache if c.index is not None and c.key not in there]:
            self.offer(checkpoint)
            if checkpoint.key not in self._writing:  # the writer is full
                self.writer.flush(_left(deadline))
                self.collect()
                self.offer(checkpoint)
        done = self.writer.flush(_left(deadline))
        self.collect()
        return done

    def close(self) -> None:
        """Write what is not written yet, and end the writer."""
        if self.writer is not None:
            try:
                self.flush()
            finally:
                self.writer.close()

    def reset(self) -> None:
        """After an interruption: what is published or held stays, in each tier, and nothing else."""
        for checkpoint in self._writing.values():
            checkpoint.busy = 1
        self.cache.reset()
        if self.host is not None:
            self.host.reset([c.copy for c in self.cache.all() if isinstance(c.copy, HostCopy)])

    def pools(self) -> Pools:
        """How full each pool is."""
        cache, host = self.cache, self.host
        rows, pages = (0, 0) if host is None else host.size
        free_rows, free_pages = (0, 0) if host is None else host.free
        return Pools(
            rows_used=cache.capacity - cache.rows_free,
            rows=cache.capacity,
            pages_used=cache.pages.in_use,
            pages=cache.pages.num_pages,
            host_rows_used=rows - free_rows,
            host_rows=rows,
            host_pages_used=pages - free_pages,
            host_pages=pages,
            writing=len(self._writing),
        )

    def images(self) -> list[CheckpointImage]:
        """Every published checkpoint, the deepest first."""
        found = sorted(self.cache, key=lambda checkpoint: -checkpoint.position)
        return [self._image(checkpoint) for checkpoint in found]

    def _image(self, checkpoint: Checkpoint) -> CheckpointImage:
        if checkpoint.index is not None:
            return self.device.image(checkpoint, to_host=not self._shared)
        assert self.host is not None and isinstance(checkpoint.copy, HostCopy)
        return self.host.image(checkpoint.copy, checkpoint.tokens, checkpoint.position, checkpoint.digest)


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())

"""What was published before an operation, and whether what is published after it is what has to be."""

from __future__ import annotations

from runtime.engine import Engine
from tests.state.differences import holds
from tests.state.model import Model
from tests.state.texts import Text, prefix_of

LOST = ("evicted", "skipped", "given_up")


class Before:
    """Taken before an operation. partial: it was interrupted, so that not all that was due was written."""

    def __init__(self, engine: Engine, model: Model) -> None:
        self.cache, self.model = engine.scheduler.cache, model
        self.host = engine.scheduler.tiers.host is not None
        self.published = model.published()
        self.copies = {prefix_of(c) for c in self.cache.all() if c.index is None}
        self.counts = self._counts()
        self.partial, self.forgiven = False, set()

    def _counts(self) -> dict[str, int]:
        return vars(self.cache.counts).copy()

    def _since(self, name: str) -> int:
        return self._counts()[name] - self.counts[name]

    def lost(self) -> int:
        """Checkpoints that the counters say were given up, or not written, since then."""
        return sum(self._since(name) for name in LOST)

    def forgive(self) -> None:
        """Anything may be given up by this operation, without a counter that tells."""
        self.forgiven, self.published = self.published, set()

    def allow(self, texts: set[Text]) -> None:
        """These may be published by this operation."""
        self.forgiven = self.forgiven | texts

    def check_published(self) -> None:
        """What is published is what was, and what had to be, but for what the counters say was lost."""
        found, expected = self.model.published(), self.published | self.model.due
        unexpected = found - expected - self.forgiven
        holds(not unexpected, f"published, and should not be: {shown(unexpected)}")
        # a copy may have been dropped for one that an interruption kept from being made
        missing = (self.published - self.copies if self.partial else expected) - found
        # what is put into the host pool may drop any number of older copies there
        fine = len(missing) <= self.lost() or (self.host and self._since("demoted"))
        holds(fine, f"not published, and should be: {shown(missing)}")

    def count_events(self) -> None:
        """Into the tally."""
        for name in self.counts:
            self.model.tally.hit(f"checkpoints {name}", self._since(name))


def shown(texts: set[Text]) -> str:
    """Prefixes, in short."""
    return ", ".join(f"{len(text)} tokens ending in {list(text[-4:])}" for text in sorted(texts, key=len)) or "none"

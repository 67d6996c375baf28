"""`engine.cache`: what is kept and why, pins, and what was recomputed for want of a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from runtime.checkpoints.cache import PrefixCache
from runtime.checkpoints.checkpoint import Checkpoint
from runtime.checkpoints.tiers import Tiers
from runtime.errors import NotCached

TAIL = 8
Encode = Callable[[Any], list[int]]
Check = Callable[[], None]
Changing = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True)
class Kept:
    """One checkpoint.

    tail: its last tokens; reasons: why it is kept; tiers: where in memory its bytes are, "device" or "host"; bytes:
    that its eviction would free, of pages and row; saved_tokens: to recompute without it; age: uses of others
    since its own last; leaves: its turn among those that can be evicted, 0 the first, None if it cannot.
    """

    position: int
    digest: str
    tail: tuple[int, ...]
    reasons: tuple[str, ...]
    tiers: tuple[str, ...]
    holders: int
    pins: int
    bytes: int
    saved_tokens: int
    age: int
    leaves: int | None


@dataclass(frozen=True)
class Account:
    """Everything that a cache keeps, the deepest first, and how full its pools are. Prints as a table."""

    kept: tuple[Kept, ...]
    rows: int
    rows_free: int
    pages: int
    pages_free: int
    host_rows_free: int
    host_pages_free: int
    text_tokens: int

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps(asdict(self))

    def __str__(self) -> str:
        free = f"{self.rows_free} of {self.rows} rows and {self.pages_free} of {self.pages} pages free"
        title = f"{len(self.kept)} checkpoints; {free}"
        table = Table(title=title, title_justify="left")
        for name in ("position", "kept for", "where", "held", "pins", "KiB", "saves", "age", "leaves"):
            table.add_column(name, justify="left" if name in ("kept for", "where") else "right")
        for row in self.kept:
            turn = "stays" if row.leaves is None else str(row.leaves)
            cells: Sequence[Any] = (
                row.position, ", ".join(row.reasons) or "its holders", ", ".join(row.tiers), row.holders, row.pins,
                row.bytes // 1024, row.saved_tokens, row.age, turn,
            )  # fmt: skip
            table.add_row(*map(str, cells))
        return _render(table)


def _render(table: Table) -> str:
    console = Console(width=120, highlight=False, color_system=None, emoji=False)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


class CacheView:
    """What an application may do with the cache. Prompts are text, bytes or ids, as in `submit`."""

    def __init__(self, cache: PrefixCache, tiers: Tiers, encode: Encode, check: Check, changing: Changing) -> None:
        """encode: what `submit` makes of a prompt; check: raises unless the caller may use the engine; changing: the
        scope of a change, which an interruption undoes.
        """
        self._cache, self._tiers, self._encode = cache, tiers, encode
        self._check, self._changing = check, changing

    def explain(self) -> Account:
        """What is kept, and why."""
        self._check()
        cache = self._cache
        order = {c.key: turn for turn, c in enumerate(sorted(cache.evictable(), key=cache.worth))}
        kept = tuple(self._row(c, order.get(c.key)) for c in sorted(cache.all(), key=lambda c: -c.position))
        host = (0, 0) if self._tiers.host is None else self._tiers.host.free
        return Account(
            kept=kept,
            rows=cache.capacity,
            rows_free=cache.rows_free,
            pages=cache.pages.num_pages,
            pages_free=cache.pages.free,
            host_rows_free=host[0],
            host_pages_free=host[1],
            text_tokens=cache.tree.size,
        )

    def _row(self, checkpoint: Checkpoint, leaves: int | None) -> Kept:
        measured = self._cache.measure(checkpoint)
        where = {"device": checkpoint.index is not None, "host": checkpoint.copy is not None}
        return Kept(
            position=checkpoint.position,
            digest=checkpoint.digest.hex(),
            tail=tuple(checkpoint.tokens[max(0, checkpoint.position - TAIL) : checkpoint.position]),
            reasons=tuple(str(reason.name).lower().replace("_", " ") for reason in checkpoint.reasons),
            tiers=tuple(name for name, there in where.items() if there),
            holders=checkpoint.holders,
            pins=checkpoint.pins,
            bytes=measured.bytes,
            saved_tokens=measured.saved_tokens,
            age=measured.age,
            leaves=leaves,
        )

    def find(self, prompt: Any) -> int:
        """Position of a prompt's longest checkpoint in memory, 0 if there is none. More may be restored from files."""
        self._check()
        checkpoint = self._cache.find(self._encode(prompt))
        return 0 if checkpoint is None else checkpoint.position

    def pin(self, prompt: Any) -> int:
        """Keep the longest checkpoint of a prompt on the device until `unpin`. Returns its position.

        Raises NotCached if there is none, PinRefused if slots could come to lack rows or pages.
        """
        self._check()
        checkpoint = self._cache.find(self._encode(prompt))
        with self._changing():
            there = checkpoint is not None and self._tiers.bring(checkpoint)
        if checkpoint is None or not there:
            raise NotCached(what="pin")
        self._cache.pin(checkpoint)
        return checkpoint.position

    def unpin(self, prompt: Any) -> None:
        """The opposite of `pin`, of the longest checkpoint of the prompt that is pinned. Raises NotCached."""
        self._check()
        pinned = next((c for c in self._cache.candidates(self._encode(prompt)) if c.pins), None)
        if pinned is None:
            raise NotCached(what="unpin")
        self._cache.unpin(pinned)

    def evict(self, prompt: Any) -> int:
        """Give up a prompt's checkpoints, on its way and beyond, unless in use, held or pinned. Returns how many.

        Files in checkpoint_dir stay.
        """
        self._check()
        tokens = self._encode(prompt)
        with self._changing():
            return self._cache.clear(lambda c: list(c.tokens[: min(len(tokens), c.position)]) == tokens[: c.position])

    def clear(self) -> int:
        """Give up what is not in use, held or pinned. Returns how many. Files in checkpoint_dir stay."""
        self._check()
        with self._changing():
            return self._cache.clear()

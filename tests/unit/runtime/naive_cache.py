"""What a prefix cache must do, as plainly as possible: lists of texts, rows and page counts, and no tree."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

ROW_BYTES, PAGE_BYTES = 5, 3


@dataclass(eq=False)
class Entry:
    """A checkpoint of a text. row: None when only the tier below has it; pages: of its entries, in order."""

    text: str
    row: int | None = None
    pages: tuple[int, ...] = ()
    published: bool = False
    holders: int = 0
    pins: int = 0
    busy: int = 0
    copied: bool = False
    used: int = 0

    @property
    def free_to_go(self) -> bool:
        """Whether nobody needs it where it is."""
        return not (self.holders or self.pins or self.busy)


@dataclass
class NaiveCache:
    """rows, pages: of the pools; room: copies that the tier below takes. known: every text that was processed."""

    rows: int
    num_pages: int
    room: int
    reserved_pages: int
    entries: list[Entry] = field(default_factory=list)
    reserved: list[int] = field(default_factory=list)
    seats: list[list[int]] = field(default_factory=list)
    known: list[str] = field(default_factory=list)
    clock: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    # Looking

    def get(self, text: str) -> Entry | None:
        """The entry of exactly this text."""
        return next((entry for entry in self.entries if entry.text == text), None)

    def path(self, text: str) -> list[Entry]:
        """Published entries whose text this one begins with, the longest first."""
        found = [entry for entry in self.entries if entry.published and text.startswith(entry.text)]
        return sorted(found, key=lambda entry: -len(entry.text))

    def agree(self, text: str) -> int:
        """How many tokens are known."""
        return max((_common(text, known) for known in self.known), default=0)

    def junction(self, text: str) -> tuple[int, int] | None:
        """Where a text leaves what is known, if known text goes on there and it does too, and what is kept before."""
        at = self.agree(text)
        parts = any(_common(text, known) == at < len(known) for known in self.known)
        above = max((len(entry.text) for entry in self.path(text[:at])), default=0)
        return (at, above) if 0 < at < len(text) and parts else None

    def references(self) -> Counter[int]:
        """Holders of each page."""
        return Counter(page for pages in (*self.seats, *(entry.pages for entry in self.entries)) for page in pages)

    def free_rows(self) -> set[int]:
        """Rows of nobody."""
        return set(range(self.rows)) - set(self.reserved) - {entry.row for entry in self.entries}

    def free_pages(self) -> set[int]:
        """Pages of nobody."""
        return set(range(self.num_pages)) - set(self.references())

    # Worth

    def measure(self, entry: Entry) -> tuple[int, int, int]:
        """(tokens saved, bytes freed, age)."""
        above = max((len(other.text) for other in self.path(entry.text) if other is not entry), default=0)
        references = self.references()
        own = sum(references[page] == 1 for page in entry.pages)
        return len(entry.text) - above, ROW_BYTES + own * PAGE_BYTES, self.clock - entry.used + 1

    def worth(self, entry: Entry) -> float:
        """Tokens saved per byte and age."""
        saved, size, age = self.measure(entry)
        return saved / (size * age)

    def least(self, protected: str | None = None) -> list[Entry]:
        """Those that may be evicted next: what is worth least of what is free to go; several if equal."""
        may_go = [e for e in self.entries if e.row is not None and e.free_to_go and e.text != protected]
        worths = {id(entry): self.worth(entry) for entry in may_go}
        return [entry for entry in may_go if worths[id(entry)] == min(worths.values())]

    def last_resort(self) -> list[Entry]:
        """The held one that goes when pages run out: the last used."""
        held = [e for e in self.entries if e.row is not None and e.holders and not (e.pins or e.busy)]
        return [max(held, key=lambda entry: entry.used)] if held else []

    # Changing

    def touch(self, entry: Entry) -> None:
        """A use."""
        self.clock += 1
        entry.used = self.clock

    def vacate(self, entry: Entry) -> None:
        """Its row goes; into the tier below if that has room, else it is gone."""
        if not entry.copied and sum(other.copied for other in self.entries) < self.room:
            entry.copied = True
            self.counts["demoted"] += 1
        entry.row, entry.pages = None, ()
        if not entry.copied:
            self.entries.remove(entry)

    def evict(self, entry: Entry) -> None:
        """One of `least`."""
        self.vacate(entry)
        self.counts["evicted"] += 1

    def give_up(self, entry: Entry) -> None:
        """That of `last_resort`."""
        self.vacate(entry)
        self.counts["given_up"] += not entry.copied

    def lose_copy(self, entry: Entry) -> None:
        """The tier below has it no longer."""
        entry.copied = False
        if entry.row is None:
            self.entries.remove(entry)

    def may_pin(self, entry: Entry) -> bool:
        """Whether a row is left beside the pinned ones, and the pages that slots may come to need."""
        pinned = [other for other in self.entries if other.pins or other is entry]
        pages = {page for other in pinned for page in other.pages}
        return len(pinned) < self.rows and self.num_pages - len(pages) >= self.reserved_pages

    def reset(self) -> None:
        """After an interruption."""
        self.reserved, self.seats = [], []
        self.entries = [entry for entry in self.entries if entry.published or entry.holders]
        self.known = [entry.text for entry in self.entries]


def _common(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))

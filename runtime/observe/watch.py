"""Draft acceptance against its own history: when it collapses, one warning with what else changed.

A draft counts as examined if all before it were accepted, so its chance does not depend on how many follow. Examined
drafts come in blocks; the latest 1 and the latest 8 blocks are each compared with the history before them:

    z = drop / sqrt(sampling variance + variance between blocks of the history / blocks compared)

where drop is what the history accepts at the same draft positions, minus what was accepted now. Acceptance has
collapsed if z > 5.5 (by chance: 2e-8 per comparison) and the drop is at least 0.08. The variance between blocks is what
the history's own texts vary by: easy and hard ones taking turns are no collapse.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Callable

from runtime.observe.collapse import AcceptanceCollapse
from runtime.observe.tally import Step, Tally, merged
from runtime.request import Request

BLOCK = 256  # examined drafts
WINDOWS = (1, 8)  # blocks
RECENT = max(WINDOWS)
MIN_HISTORY = 16  # blocks before anything is compared
LONG = 4096  # blocks, of which the history is halved: it forgets
SETTLED = 1024  # blocks after which a collapse has become the history
Z, MIN_DROP = 5.5, 0.08


class AcceptanceWarning(RuntimeWarning):
    """Drafts are accepted much less often than before."""


class AcceptanceWatch:
    """Fed with every step of every request; warns AcceptanceWarning once per collapse, from `check` alone.

    canary: says whether graphs do what their launches do, or None; asked when there is a collapse. A collapse is over
    when the latest 8 blocks have made up for half of it. collapses: all so far.
    """

    def __init__(self, canary: Callable[[], bool | None] = lambda: None) -> None:
        self.collapses: list[AcceptanceCollapse] = []
        self._canary = canary
        self._counts: dict[tuple[int, int, int, float, bool], int] = {}
        self._left = BLOCK
        self._begin(_History())

    def add(self, request: Request, verified: int, accepted: int, batch: int) -> None:
        """A step of one request that verified so many drafts and accepted 1 .. verified + 1 tokens.

        batch: requests in the step. Leave out steps that a stop token or a limit has cut short.
        """
        key = (verified, accepted, batch, request.temperature, request.restored_position > 0)
        self._counts[key] = self._counts.get(key, 0) + 1
        self._left -= accepted if accepted < verified else verified

    @property
    def due(self) -> bool:
        """Whether a block is full."""
        return self._left <= 0

    def check(self) -> AcceptanceCollapse | None:
        """Compare the block that is full with the history. Call it when `due`, between steps. Warns, last of all."""
        block = Tally()
        for (verified, accepted, batch, temperature, resumed), count in self._counts.items():
            block.add({Step(verified, accepted, batch, _rounded(temperature), resumed): count})
        self._counts, self._left = {}, BLOCK
        if self._collapse is not None:
            self._follow(block, self._collapse)
            return None
        self._push(block)
        collapse = self._find()
        if collapse is not None:
            self._collapse, self._since = collapse, _History()
            self._recent.clear()
            self.collapses.append(collapse)
            warnings.warn(AcceptanceWarning(str(collapse)), stacklevel=2)
        return collapse

    def _begin(self, history: _History) -> None:
        """Compare with this history from now on."""
        self._history, self._since = history, _History()
        self._recent: deque[Tally] = deque()
        self._collapse: AcceptanceCollapse | None = None

    def _push(self, block: Tally) -> None:
        """Add a block to the recent ones; the oldest of them becomes history."""
        self._recent.append(block)
        if len(self._recent) > RECENT:
            self._history.add(self._recent.popleft())

    def _find(self) -> AcceptanceCollapse | None:
        if self._history.blocks < MIN_HISTORY:
            return None
        for size in (size for size in WINDOWS if size <= len(self._recent)):
            window = merged(list(self._recent)[-size:])
            expected, found, deviation = self._history.against(window, size)
            if expected - found >= max(MIN_DROP, Z * deviation):
                z = (expected - found) / deviation
                past = merged([self._history.tally])
                return AcceptanceCollapse(window, past, expected, found, z, self._canary())
        return None

    def _follow(self, block: Tally, collapse: AcceptanceCollapse) -> None:
        """While it lasts, the history stays as it was; in the end, what came since is the history."""
        self._recent.append(block)
        if len(self._recent) > RECENT:
            self._since.add(self._recent.popleft())
        expected, found, _ = self._history.against(merged(list(self._recent)), RECENT)
        if self._since.blocks >= SETTLED:
            self._begin(self._since)
        elif len(self._recent) == RECENT and expected - found < (collapse.expected - collapse.found) / 2:
            self._begin(self._history)


def _rounded(temperature: float) -> float:
    """To a tenth, so that kinds of steps stay few; above zero stays above zero."""
    return max(0.1, round(temperature, 1)) if temperature else 0.0


class _History:
    """Blocks of the past, together, and how much single ones vary."""

    def __init__(self) -> None:
        self.tally, self.blocks = Tally(), 0
        self._excess = self._compared = 0.0

    def add(self, block: Tally) -> None:
        """Append; compared with what was there, first."""
        if self.blocks:
            expected, found, deviation = self.against(block, 0)
            self._excess += (expected - found) ** 2 - deviation**2
            self._compared += 1
        self.tally.add(block.counts)
        self.blocks += 1
        if self.blocks > LONG:
            self.tally.halve()
            self.blocks //= 2
            self._excess, self._compared = self._excess / 2, self._compared / 2

    def against(self, window: Tally, size: int) -> tuple[float, float, float]:
        """At the draft positions of a window: acceptance of the history and of the window, and the deviation of their
        difference. size: blocks in the window; 0: by sampling alone."""
        examined = accepted = expected = variance = 0.0
        for now, past in zip(window.positions, self.tally.positions, strict=False):
            if now[1] and past[1]:
                rate = (past[0] + 1) / (past[1] + 2)
                examined, accepted, expected = examined + now[1], accepted + now[0], expected + now[1] * rate
                variance += now[1] * rate * (1 - rate) * (1 + now[1] / past[1])
        if not examined:
            return math.nan, math.nan, math.inf
        between = max(0.0, self._excess / self._compared) / size if size and self._compared else 0.0
        return expected / examined, accepted / examined, math.sqrt(variance / examined**2 + between)

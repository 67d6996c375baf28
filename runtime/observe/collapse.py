"""What had changed when the acceptance of drafts collapsed: measured, and as one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter

from runtime.observe.tally import Share, Step, Tally

OTHER = 0.1  # of shares and temperatures that count as changed
ENOUGH = 64  # examined drafts whose acceptance is worth saying

Chosen = Callable[[Step], bool]

_verified, _batch, _temperature, _resumed = map(attrgetter, ("verified", "batch", "temperature", "resumed"))


@dataclass(frozen=True)
class AcceptanceCollapse:
    """Steps in which acceptance had collapsed, and those before.

    expected: what the history accepts at the draft positions of `recent`; found: what was accepted; z: the difference
    in deviations; canary: whether graphs were seen to do what their launches do, None if nobody looked.
    """

    recent: Tally
    history: Tally
    expected: float
    found: float
    z: float
    canary: bool | None

    def __str__(self) -> str:
        causes = list(self.causes())
        changed = (
            "; ".join(text for differs, text in causes if differs) or "nothing that is counted: the texts, perhaps"
        )
        same = "; ".join(text for differs, text in causes if not differs)
        positions = zip(self.history.positions, self.recent.positions, strict=False)
        return (
            f"{self.found:.0%} of the last {self.recent.share().examined:.0f} drafts were accepted, "
            f"{self.expected:.0%} before (z = {self.z:.1f}; by position "
            f"{', '.join(_to(Share(*then), Share(*now)) for then, now in positions)}). "
            f"Changed: {changed}." + (f" Not changed: {same}." if same else "")
        )

    def causes(self) -> Iterator[tuple[bool, str]]:
        """(whether it is another one than before, what it was and is) of all that may be behind it."""
        then, now = self.history, self.recent
        yield self._kind("sampled", "greedy", lambda step: step.temperature > 0)
        was, is_ = then.per_token(_temperature), now.per_token(_temperature)
        yield abs(was - is_) > OTHER, f"mean temperature {was:.2f} -> {is_:.2f}"
        yield self._kind("resumed", "cold", _resumed)
        for name, value in (("drafts per step", _verified), ("batch", _batch)):
            was, is_ = then.per_step(value), now.per_step(value)
            yield abs(was - is_) > max(0.5, OTHER * was), f"{name} {was:.1f} -> {is_:.1f}"
        if self.canary is None:
            yield False, "graphs were not checked against their launches"
        else:
            yield not self.canary, f"graphs {'do' if self.canary else 'do not do'} what their launches do"

    def _kind(self, name: str, other: str, chosen: Chosen) -> tuple[bool, str]:
        """How many tokens come from requests of a kind, and how their drafts fare beside the others."""
        was, is_ = self.history.per_token(chosen), self.recent.per_token(chosen)
        mine, before = self.recent.share(chosen), self.history.share(chosen)
        others, others_before = (tally.share(lambda step: not chosen(step)) for tally in (self.recent, self.history))
        worse = min(mine.examined, others.examined) >= ENOUGH and mine.rate < others.rate - OTHER
        fates = f"{name} {_to(before, mine)}, {other} {_to(others_before, others)}"
        return abs(was - is_) > OTHER or worse, f"tokens of {name} requests {was:.0%} -> {is_:.0%} (accepted: {fates})"


def _to(then: Share, now: Share) -> str:
    return f"{then} -> {now}"

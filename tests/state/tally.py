"""What runs did: operations, events, tokens compared."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Tally:
    """Counts over all runs."""

    runs: int = 0
    tokens: int = 0
    requests: int = 0
    operations: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)

    def hit(self, event: str, times: int = 1) -> None:
        """Something interesting happened."""
        self.events[event] += times

    def as_dict(self) -> dict[str, object]:
        """As plain data."""
        return {
            "runs": self.runs,
            "operations": sum(self.operations.values()),
            "requests": self.requests,
            "tokens_compared": self.tokens,
            "by_operation": dict(sorted(self.operations.items())),
            "events": dict(sorted(self.events.items())),
        }

    def add(self, other: dict[str, object]) -> None:
        """Add what another process counted, as `as_dict` gives it."""
        self.runs += other["runs"]
        self.tokens += other["tokens_compared"]
        self.requests += other["requests"]
        self.operations.update(other["by_operation"])
        self.events.update(other["events"])

"""What verify found: plain data, for tables, JSON and other programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """One difference. modes: the two that were compared; position: token position, -1 where none applies.

    layer and buffer are names of the plan, empty where only tokens were compared; with `--bisect` they are those of the
    first difference in execution order.
    """

    property: str
    modes: tuple[str, str]
    position: int
    layer: str
    buffer: str
    detail: str

    def __str__(self) -> str:
        where = [f"position {self.position}"] if self.position >= 0 else []
        where += [name for name in (self.layer, self.buffer) if name]
        return f"{self.modes[0]} / {self.modes[1]}: {', '.join([*where, self.detail])}"


@dataclass(frozen=True)
class Check:
    """One property. compared: how many `unit` were; findings: what differs, the best located first."""

    name: str
    title: str
    passed: bool
    compared: int
    unit: str
    seconds: float
    detail: str
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Report:
    """All checks of one package on one machine. weights: path, or how they were made."""

    package: str
    target: str
    weights: str
    checks: tuple[Check, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)

    def check(self, name: str) -> Check:
        """The check called `name`. Raises KeyError if it was not run."""
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(name)

    def plain(self) -> dict[str, Any]:
        """The report as JSON data."""
        return {"passed": self.passed, **asdict(self)}

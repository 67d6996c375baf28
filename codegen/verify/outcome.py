"""What a check returns."""

from __future__ import annotations

from dataclasses import dataclass, field

from codegen.verify.modes import Mode
from codegen.verify.report import Finding


@dataclass(frozen=True)
class Suspect:
    """A run to look into: a mode, and the case whose answer was wrong in it."""

    mode: Mode
    case: int


@dataclass(frozen=True)
class Outcome:
    """compared: how many `unit` were; findings: differences, none: passed; suspect: where to look closer."""

    compared: int
    findings: list[Finding]
    detail: str = ""
    unit: str = "tokens"
    suspect: Suspect | None = field(default=None)

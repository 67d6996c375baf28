"""What proposes the drafts of a step. See docs/drafting.md."""

from __future__ import annotations

from enum import StrEnum


class Drafter(StrEnum):
    """The model's MTP module, places of the slot's text that read like its end, or nothing; as the step module says."""

    NONE = "none"
    MTP = "mtp"
    LOOKUP = "lookup"

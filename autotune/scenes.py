"""How a step meets a kernel: the launches that a tuned kernel has to be fast in, and how much each counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from codegen.plan import Kernel, Launch, Limits, Plan, Section

DECODE, VERIFY, BATCH, PREFILL, RAGGED = "decode", "verify", "batch", "prefill", "ragged"
# A token is decoded step by step: the plain step counts most, the others keep a choice from being made against them.
WEIGHTS = {DECODE: 4.0, VERIFY: 1.0, BATCH: 1.0, PREFILL: 1.0}
STEP_SECTIONS = ("verify", "accept", "drafter", "draft_token", "lookup", "draft_rows", "draft_select")
PREFILL_SECTIONS = ("prefill", "prefill_end")
CONTEXT = 256
ODD = 3  # seats and rows that fill no tile


@dataclass(frozen=True)
class Scene:
    """One launch of a kernel. bucket slots, rows_per_slot rows of each, at committed_len = context.

    empty: seats at the end of the bucket that nobody has. weight: what the scene counts; one of 0 is proven, not timed.
    """

    name: str
    section: Section
    launch: Launch
    bucket: int
    rows_per_slot: int
    context: int
    weight: float
    empty: int = 0

    @property
    def rows(self) -> int:
        """Rows of the launch together."""
        return self.bucket * self.rows_per_slot

    @property
    def rows_of_slot(self) -> int:
        """What `slot_blocks` is counted of: as in codegen/render.py."""
        return self.rows_per_slot if "rows_per_slot" in self.section.params else self.rows


def scenes_of(plan: Plan, kernel: Kernel) -> list[Scene]:
    """The scenes of one kernel: decode, verify and batch of a step that launches it, prefill, and ones with gaps."""
    found: dict[tuple[int, int, str, int], Scene] = {}
    for scene in _scenes(plan, kernel):
        found.setdefault((scene.bucket, scene.rows_per_slot, scene.section.name, scene.empty), scene)
    return list(found.values())


def timed_scenes(plan: Plan, kernel: Kernel) -> list[Scene]:
    """The scenes that count."""
    return [scene for scene in scenes_of(plan, kernel) if scene.weight]


def in_order(names: Iterable[str]) -> list[str]:
    """Names of timed scenes, that of a plain step first; files of results have them by the alphabet."""
    known = list(WEIGHTS)
    return sorted(names, key=lambda name: (known.index(name) if name in known else len(known), name))


def _scenes(plan: Plan, kernel: Kernel) -> Iterator[Scene]:
    limits, context = plan.limits, _context(plan.limits)
    if place := _first_launch(plan, kernel, STEP_SECTIONS):
        most = limits.max_drafts + 1 if "rows_per_slot" in place[0].params else 1
        yield Scene(DECODE, *place, 1, 1, context, WEIGHTS[DECODE])
        if most > 1:
            yield Scene(VERIFY, *place, 1, most, context, WEIGHTS[VERIFY])
        yield Scene(BATCH, *place, limits.max_slots, 1, context, WEIGHTS[BATCH])
        seats, rows = min(ODD, limits.max_slots), min(ODD, most)
        yield Scene(RAGGED, *place, seats, rows, context, 0.0, empty=min(1, seats - 1))
    if place := _first_launch(plan, kernel, PREFILL_SECTIONS):
        yield Scene(PREFILL, *place, 1, limits.prefill_chunk, 0, WEIGHTS[PREFILL])
        seats, rows = min(ODD, limits.prefill_slots), min(ODD, limits.prefill_chunk)
        yield Scene(f"{RAGGED} {PREFILL}", *place, seats, rows, 0, 0.0, empty=min(1, seats - 1))
    if not _first_launch(plan, kernel, (*STEP_SECTIONS, *PREFILL_SECTIONS)):
        section, launch = next((s, x) for s, x in plan.launches() if x.kernel == kernel.name)
        yield Scene(DECODE, section, launch, 1, 1, context, WEIGHTS[DECODE])


def _context(limits: Limits) -> int:
    """Tokens before the rows of a step: CONTEXT, or as many as a slot has room for."""
    return max(1, min(CONTEXT, limits.max_context - 2 * limits.max_rows))


def _first_launch(plan: Plan, kernel: Kernel, sections: tuple[str, ...]) -> tuple[Section, Launch] | None:
    present = {section.name: section for section in plan.sections}
    places = ((present[name], launch) for name in sections if name in present for launch in present[name].launches)
    return next(((section, launch) for section, launch in places if launch.kernel == kernel.name), None)

"""Where a package leaves the fp32 reference: the first position, layer and buffer that are out of tolerance."""

from __future__ import annotations

from torch import Tensor

from codegen.verify.content import kv_entries
from codegen.verify.modes import Session
from codegen.verify.plain import Plain
from codegen.verify.probe import Replay
from codegen.verify.report import Finding
from codegen.verify.subject import COLD, Subject
from codegen.verify.tolerance import allowed
from runtime.executor import Phase


def beside_reference(subject: Subject, name: str, case: int, reference: Plain) -> list[Finding]:
    """The first position, and there the first buffer in execution order, that is out of tolerance of the reference."""
    with subject.session(COLD) as session:
        rows = Rows(subject, session)
        session.probe.after.append(rows)
        session.ask(subject.cases[case], case)
    exact, rough = reference.layers(exact=True), reference.layers(exact=False)
    first: dict[int, Finding] = {}
    for part in subject.parts:
        key = ("", "hidden") if part.kind == "hidden" else (_prefix_of(subject, part.buffer), part.kind)
        if key in exact:
            limit = allowed(rough[key], exact[key])
            position, far = _first_beyond(rows.of(part.buffer), exact[key], limit)
            text = f"{subject.cases[case]}: {far:.3g} from the reference, {limit:.3g} is allowed"
            if position >= 0:
                finding = Finding(name, ("reference", COLD.name), position, part.layer, part.buffer, text)
                first.setdefault(position, finding)
    return [first[min(first)]] if first else []


def _first_beyond(rows: list[tuple[int, Tensor]], exact: Tensor, limit: float) -> tuple[int, float]:
    """(position, error) of the first row beyond the limit; -1 if there is none. exact: [positions, ...]."""
    for position, found in rows:
        if position < len(exact):
            wanted = exact[position]
            far = float((found[..., : wanted.shape[-1]].float() - wanted).abs().max())
            if not far <= limit:
                return position, far
    return -1, 0.0


class Rows:
    """A hook that keeps, of a slot that processes one row at a time, what rings and caches hold of each position."""

    def __init__(self, subject: Subject, session: Session) -> None:
        self.subject, self.buffers = subject, session.engine.buffers
        self._rows: dict[str, dict[int, Tensor]] = {part.buffer: {} for part in subject.parts}

    def of(self, buffer: str) -> list[tuple[int, Tensor]]:
        """(position, row), ascending."""
        return sorted(self._rows[buffer].items(), key=lambda item: item[0])

    def __call__(self, replay: Replay) -> None:
        """After a replay."""
        if replay.phase is Phase.SAVE:
            return
        limits, slot = self.buffers.plan.limits, replay.slots[0]
        end = int(self.buffers["committed_len"][slot])
        pages = self.buffers["page_table"][slot, : -(-end // limits.page_size)].tolist()
        for part in self.subject.parts:
            live, rows = self.buffers[part.buffer], self._rows[part.buffer]
            if part.kind in ("window", "hidden") and replay.phase is not Phase.BEGIN:
                rows[end - 1] = live[slot, (end - 1) % limits.ring].clone()
            elif part.kind in ("k", "v"):
                last = end - 1 - (part.drafter and replay.phase is Phase.PREFILL)
                if last >= 0:
                    rows[last] = kv_entries(live, part.kind, pages, end, limits.page_size)[last].clone()


def _prefix_of(subject: Subject, buffer: str) -> str:
    """The weights prefix of the layer that a live buffer belongs to: its buffers are named after it."""
    prefixes = [f"layers.{i}" for i in range(len(subject.spec.pattern))] + ["mtp.layer"]
    return next((p for p in prefixes if buffer.startswith(p.replace(".", "_") + "_")), "")

"""Slots do not touch each other, padding touches nothing, and a step is one replay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from codegen.verify.content import describe, same_bits, writers
from codegen.verify.launches import LaunchTap
from codegen.verify.modes import Mode, Session
from codegen.verify.outcome import Outcome, Suspect
from codegen.verify.report import Finding
from codegen.verify.subject import Subject
from codegen.verify.tokens import typical_drafts, with_drafts
from runtime.buffers import Buffers
from runtime.executor import Phase
from runtime.plan import Plan

BY_BATCH = (
    *("slot_idx", "row_first", "row_count", "row_seat", "row_slot", "row_pos", "row_token", "row_checkpoint"),
    "targets",
)
SEATED = 3


@dataclass(frozen=True)
class Kept:
    """What a step over some slots must leave alone: for each buffer, a mask over its leading index."""

    buffer: str
    mask: Tensor


def check_padding(subject: Subject, name: str) -> Outcome:
    """A step changes nothing of the slots, pages and checkpoints that are not its own; the bucket changes no bit."""
    mode = Mode("padded step", drafts=typical_drafts(subject), drafting=True)
    findings, compared = list[Finding](), 0
    with subject.session(mode) as session:
        _seat(session, subject)
        roomy = _roomy(session)
        for slots in ([roomy[-1]], []) if roomy else ([],):
            found, parts = _padded(session, slots, name)
            findings, compared = findings + found, compared + parts
        active = session.engine.scheduler.seats.active
        return Outcome(compared, _in_order(session, findings), f"{active} slots live", "parts")


def _padded(session: Session, slots: list[int], name: str) -> tuple[list[Finding], int]:
    """One step of `slots` in every bucket. Returns what it changed of others, and how much it could have changed."""
    buffers, findings, compared = session.engine.buffers, list[Finding](), 0
    results: list[tuple[int, dict[str, Tensor]]] = []
    for bucket in buffers.plan.limits.buckets:
        before = snapshot(buffers)
        after = _step(session, slots, bucket)
        kept = list(_kept(session, slots))
        compared += sum(int(item.mask.sum()) for item in kept)
        findings += _changed(session, kept, before, after, slots, bucket, name)
        results.append((bucket, after))
        restore(buffers, before)
    return [*findings, *_across_buckets(session, results, slots, name)], compared


def _seat(session: Session, subject: Subject) -> None:
    """Bring a few requests to where they decode, leaving a slot free if there are several; poison what is free."""
    engine = session.engine
    slots = engine.scheduler.seats.slots
    count = min(SEATED, len(subject.cases), max(1, slots - 1))
    requests = [case.longer(48).submit(engine) for case in sorted(subject.cases, key=lambda c: len(c.prompt))[:count]]
    for _ in range(64):
        engine.step()
        if all(request.output for request in requests) and _roomy(session):
            break
    free = [slot for slot in range(slots) if slot in engine.scheduler.seats.free]
    if free:
        names = [buffer.name for buffer in engine.buffers.plan.role("state", "ring")]
        engine.buffers.poison(names, {"state": free, "ring": free})


def _roomy(session: Session) -> list[int]:
    """Decoding slots that have pages for one more step: the host makes sure of that before every replay."""
    scheduler = session.engine.scheduler
    rows = scheduler.drafted + max(1, scheduler.drafts)
    return [seat.slot for seat in scheduler.seats.decoding if seat.committed_len + rows <= seat.room]


def _step(session: Session, slots: list[int], bucket: int) -> dict[str, Tensor]:
    """Replay one step over `slots`, padded as the host pads. Returns all buffers after it."""
    executor, scheduler = session.engine.scheduler.executor, session.engine.scheduler
    graph = executor.graph(Phase.STEP, bucket, scheduler.drafted, scheduler.drafts)
    executor.seat_slots(slots)
    session.probe.unwatched(graph)
    return snapshot(session.engine.buffers)


def _kept(session: Session, slots: list[int]) -> Iterator[Kept]:
    """The part of each buffer that belongs to others than `slots`."""
    scheduler, plan = session.engine.scheduler, session.engine.package.plan
    own_pages = [page for seat in scheduler.seats.all() if seat.slot in slots for page in seat.pages]
    for buffer in plan.buffers.values():
        mine: list[int] | None = None
        if buffer.role in ("state", "ring") or (buffer.role == "protocol" and buffer.name not in BY_BATCH):
            mine = slots
        elif buffer.role == "kv":
            mine = own_pages
        elif buffer.role == "checkpoint":
            mine = []
        if mine is not None:
            mask = torch.ones(buffer.shape[0], dtype=torch.bool)
            mask[mine] = False
            yield Kept(buffer.name, mask)


def _changed(
    session: Session,
    kept: list[Kept],
    before: dict[str, Tensor],
    after: dict[str, Tensor],
    slots: list[int],
    bucket: int,
    name: str,
) -> Iterator[Finding]:
    for item in kept:
        a, b = before[item.buffer][item.mask], after[item.buffer][item.mask]
        if same_bits(a, b):
            continue
        rows = torch.nonzero(item.mask)[:, 0]
        touched = [int(row) for row, x, y in zip(rows, a, b, strict=True) if not same_bits(x[None], y[None])]
        text = f"a step of slots {slots} in bucket {bucket} changed index {touched[0]}: {describe(a, b)}"
        layer = layer_of(session.engine.package.plan, item.buffer)
        yield Finding(name, ("before", "after"), -1, layer, item.buffer, text)


def _across_buckets(
    session: Session, results: list[tuple[int, dict[str, Tensor]]], slots: list[int], name: str
) -> Iterator[Finding]:
    """The slot's own state after the step is the same in every bucket."""
    first, expected = results[0]
    for bucket, found in results[1:]:
        for buffer in session.engine.package.plan.role("state", "ring", "kv", "protocol"):
            if buffer.name not in BY_BATCH and not same_bits(expected[buffer.name], found[buffer.name]):
                text = f"slots {slots}: {describe(expected[buffer.name], found[buffer.name])}"
                layer = layer_of(session.engine.package.plan, buffer.name)
                yield Finding(name, (f"bucket {first}", f"bucket {bucket}"), -1, layer, buffer.name, text)


def _in_order(session: Session, findings: list[Finding]) -> list[Finding]:
    """In the order in which a step writes the buffers; those of the protocol last."""
    order = list(writers(session.engine.package.plan))
    return sorted(findings, key=lambda finding: order.index(finding.buffer) if finding.buffer in order else len(order))


def check_one_replay(subject: Subject, name: str) -> Outcome:
    """A decode step is exactly one graph replay, and launches no kernel from Python."""
    mode, findings = with_drafts(typical_drafts(subject)), list[Finding]()
    with subject.session(mode) as session:
        session.answer(subject.cases)
        steps, replays = session.engine.stats().steps, len(session.probe.replays)
        with LaunchTap(subject.package) as tap:
            session.answer(subject.cases)
        steps = session.engine.stats().steps - steps
        made = Counter(str(replay.phase.value) for replay in session.probe.replays[replays:])
    if tap.calls:
        text = f"{len(tap.calls)} launches from Python in {steps} steps, the first of {tap.calls[0].kernel}"
        findings.append(Finding(name, ("replay", mode.name), -1, "", "", text))
    if made["step"] != steps or made["begin"] != len(subject.cases) or made["save"]:
        text = f"{made['step']} replays for {steps} steps, {made['begin']} for {len(subject.cases)} first tokens"
        findings.append(Finding(name, ("replay", mode.name), -1, "", "", text))
    detail = f"{made['step']} replays for {steps} steps, none launched from Python"
    return Outcome(steps, findings, "" if findings else detail, "steps", Suspect(mode, 0) if findings else None)


def snapshot(buffers: Buffers) -> dict[str, Tensor]:
    """Copies of all buffers that a launch may change."""
    return {b.name: buffers[b.name].clone() for b in buffers.plan.buffers.values() if b.role not in ("weight", "table")}


def restore(buffers: Buffers, kept: dict[str, Tensor]) -> None:
    """Write copies back in place."""
    for name, value in kept.items():
        buffers[name].copy_(value)
    buffers.host.download()


def layer_of(plan: Plan, buffer: str) -> str:
    """Label of the launch that writes a buffer, or of the first one that has it."""
    if buffer in writers(plan):
        return writers(plan)[buffer][1]
    launches = (launch for section in plan.sections.values() for launch in section)
    return next((launch.layer for launch in launches if buffer in launch.args.values()), "")

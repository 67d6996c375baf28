"""Bytes a decode step moves, launch by launch: weights, states and KV. What a step cannot be faster than."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from runtime.drafter import Drafter
from runtime.plan import DTYPE_BYTES, Buffer, Launch, Plan

GATHERED = "embed"


@dataclass(frozen=True)
class Shape:
    """A step: slots that decode, drafts verified and drafted per slot, tokens in the context."""

    slots: int
    verify_drafts: int
    next_drafts: int
    context: int
    drafter: Drafter


@dataclass(frozen=True)
class Moved:
    """One launch of a step in order. bytes: weights, states and KV that it reads or writes, each once.

    stored_bytes: the same with coded weights counted as the weights file stores them.
    """

    section: str
    layer: str
    kernel: str
    bytes: int
    stored_bytes: int


def step_launches(plan: Plan, shape: Shape) -> Iterator[Moved]:
    """The launches of `step(b, bucket, drafted_by, verify_drafts, next_drafts)`, in the order of the step module."""
    for section, rows in _sections(shape):
        for launch in plan.sections[section]:
            buffers = [plan.buffers[name] for name in _buffers(plan, launch)]
            moved = sum(_bytes(plan, launch, buffer, rows, shape) for buffer in buffers)
            yield Moved(section, launch.layer, launch.kernel, moved, moved + sum(map(_spared, buffers)))


def working_set(plan: Plan, shape: Shape) -> int:
    """Bytes of everything a step touches, each buffer counted once however often it is read."""
    touched: dict[str, int] = {}
    for section, rows in _sections(shape):
        for launch in plan.sections[section]:
            for name in _buffers(plan, launch):
                size = _bytes(plan, launch, plan.buffers[name], rows, shape)
                size = size // 2 if plan.buffers[name].role == "state" else size
                touched[name] = max(touched.get(name, 0), size)
    return sum(touched.values())


def _sections(shape: Shape) -> Iterator[tuple[str, int]]:
    """(section, rows) in order."""
    rows = shape.slots * (shape.verify_drafts + 1)
    yield from (("verify", rows), ("accept", rows))
    if shape.drafter is Drafter.LOOKUP and shape.next_drafts:
        yield ("lookup", shape.slots)
    if shape.drafter is not Drafter.MTP:
        return
    yield from (("draft_rows", rows), ("drafter", rows))
    if shape.next_drafts:
        yield from (("draft_select", rows), ("draft_token", shape.slots))
    for _ in range(1, shape.next_drafts):
        yield from (("draft_next", shape.slots), ("drafter", shape.slots), ("draft_token", shape.slots))


def _buffers(plan: Plan, launch: Launch) -> list[str]:
    return [name for name in launch.args.values() if name in plan.buffers]


def _bytes(plan: Plan, launch: Launch, buffer: Buffer, rows: int, shape: Shape) -> int:
    first = buffer.bytes // buffer.shape[0]
    if buffer.layout == "coded_escapes":  # few rows of them are read
        return 0
    if buffer.role == "weight":
        return min(buffer.bytes, rows * first) if buffer.name == GATHERED else buffer.bytes
    if buffer.role == "state":
        return 2 * shape.slots * first
    if buffer.role == "kv":
        position = first // plan.limits.page_size
        attends = "context" in launch.args
        return position * (shape.slots * shape.context if attends else rows)
    return 0


def _spared(buffer: Buffer) -> int:
    """Bytes that plain panels would have more: escapes have a byte for each pair of their elements, which are four."""
    return {"coded_panel": -buffer.bytes, "coded_escapes": 4 * buffer.bytes}.get(buffer.layout, 0)


def weight_bytes(plan: Plan) -> int:
    """Bytes of all weights as the file stores them."""
    sources = {source.tensor: source for buffer in plan.buffers.values() for source in buffer.sources}
    return sum(DTYPE_BYTES[source.dtype] * _elements(source.shape) for source in sources.values())


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count

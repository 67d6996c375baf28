"""Bytes and FLOPs of a step, launch by launch: the roofline that `explain` prints.

`runtime/traffic.py` counts the same bytes from plan.json for the bench; a test holds them equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from codegen.plan import Buffer, Launch, Plan, Role, Section


@dataclass(frozen=True)
class Shape:
    """A step's size: slots in the bucket, drafts per slot and tokens already in the context."""

    bucket: int = 1
    drafts: int = 0
    context: int = 256


@dataclass(frozen=True)
class Cost:
    """One launch: bytes it must move at least once, floating-point operations, times it runs per step."""

    section: str
    layer: str
    kernel: str
    bytes: int
    flops: int
    count: int


def step_costs(plan: Plan, shape: Shape) -> Iterator[Cost]:
    """Costs of one decode step at K = shape.drafts, the drafter's included when K > 0."""
    for section, rows, count in step_sections(plan, shape):
        for launch in section.launches:
            yield launch_cost(plan, section, launch, rows, count, shape)


def launch_cost(plan: Plan, section: Section, launch: Launch, rows: int, count: int, shape: Shape) -> Cost:
    """Cost of one launch over `rows` rows."""
    named = {buffer.name: buffer for buffer in plan.buffers}
    buffers = [named[value] for _, value in launch.args if value in named]
    template = plan.kernel(launch.kernel).template_name
    rule = FLOPS.get(template)
    flops = rule(plan, launch, rows, shape) if rule is not None else 0
    moved = sum(_moved(plan, buffer, rows, shape, template == "attention") for buffer in buffers)
    return Cost(section.name, launch.layer, launch.kernel, moved, flops, count)


def step_sections(plan: Plan, shape: Shape) -> Iterator[tuple[Section, int, int]]:
    """(section, rows, repetitions) of a step, in order."""
    rows = shape.bucket * (shape.drafts + 1)
    yield plan.section("verify"), rows, 1
    yield plan.section("accept"), rows, 1
    if not (plan.has_drafter and shape.drafts):
        return
    yield plan.section("draft_rows"), rows, 1
    yield plan.section("drafter"), rows, 1
    yield plan.section("draft_select"), shape.bucket, 1
    yield plan.section("draft_token"), shape.bucket, shape.drafts
    if shape.drafts > 1:
        yield plan.section("draft_next"), shape.bucket, shape.drafts - 1
        yield plan.section("drafter"), shape.bucket, shape.drafts - 1


def _moved(plan: Plan, buffer: Buffer, rows: int, shape: Shape, attends: bool) -> int:
    """Bytes of weights, states and KV that a launch reads or writes, each once; scratch stays in the nearest cache."""
    per_entry = buffer.bytes // buffer.shape[0]
    if buffer.role is Role.WEIGHT:
        if buffer.layout == "coded_escapes":  # few rows of them are read
            return 0
        gathered = buffer.name == "embed"
        return min(buffer.bytes, rows * per_entry) if gathered else buffer.bytes
    if buffer.role is Role.STATE:
        return 2 * shape.bucket * per_entry
    if buffer.role is Role.KV:
        return per_entry // plan.limits.page_size * (shape.bucket * shape.context if attends else rows)
    return 0


def _matmul_flops(plan: Plan, launch: Launch, rows: int, _: Shape) -> int:
    kernel = plan.kernel(launch.kernel)
    return 2 * rows * int(kernel.constant("N")) * int(kernel.constant("K"))


def _gated_flops(plan: Plan, launch: Launch, rows: int, shape: Shape) -> int:
    return 2 * _matmul_flops(plan, launch, rows, shape)


def _scan_flops(plan: Plan, launch: Launch, rows: int, shape: Shape) -> int:
    """A fold takes 4 operations per state element, a readout 2; one accepted row per slot is folded at K = 0."""
    kernel = plan.kernel(launch.kernel)
    state = int(kernel.constant("HEADS")) * int(kernel.constant("N")) * int(kernel.constant("P"))
    return state * (6 * rows + 4 * shape.bucket)


def _attention_flops(plan: Plan, launch: Launch, rows: int, shape: Shape) -> int:
    kernel = plan.kernel(launch.kernel)
    return 4 * rows * int(kernel.constant("HEADS")) * int(kernel.constant("D")) * shape.context


FLOPS: dict[str, Callable[[Plan, Launch, int, Shape], int]] = {
    "matmul": _matmul_flops,
    "draft_head": _matmul_flops,
    "draft_head_int4": _matmul_flops,
    "gated_matmul": _gated_flops,
    "mamba2_scan_step": _scan_flops,
    "attention": _attention_flops,
}

"""Rules that every plan keeps, checked after each pass. A failure names the node and is a fault of Stepforge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from codegen.errors import PlanInvalid, TooLarge
from codegen.plan import DTYPE_BYTES, GRID_SYMBOLS, SECTION_SCALARS, Buffer, Plan, Role, Section

MAX_INDEXED = 2**31 - 1
INDEXED_BY_INT64 = (Role.WEIGHT, Role.KV)


def verify_plan(plan: Plan) -> None:
    """Raise PlanInvalid or TooLarge if a rule is broken."""
    for rule in RULES:
        for node, detail in rule(plan):
            raise PlanInvalid(node=node, detail=detail)
    for buffer in plan.buffers:
        _check_index_range(buffer)


def _names(plan: Plan) -> dict[str, list[str]]:
    return {
        "buffer": [buffer.name for buffer in plan.buffers],
        "kernel": [kernel.name for kernel in plan.kernels],
        "section": [section.name for section in plan.sections],
    }


def _unique_names(plan: Plan) -> Iterator[tuple[str, str]]:
    names = _names(plan)
    for kind, group in names.items():
        for name, count in Counter(group).items():
            if count > 1:
                yield name, f"{count} {kind}s share this name"
    for name in sorted(set(names["kernel"]) & set(names["section"])):
        yield name, "a kernel and a section share this name in the step module"


def _identifiers(plan: Plan) -> Iterator[tuple[str, str]]:
    for group in _names(plan).values():
        for name in group:
            if not name.isidentifier():
                yield name, "not an identifier"


def _buffers(plan: Plan) -> Iterator[tuple[str, str]]:
    for buffer in plan.buffers:
        if buffer.dtype not in DTYPE_BYTES:
            yield buffer.name, f"unknown dtype {buffer.dtype}"
        if not buffer.shape or min(buffer.shape) < 0:
            yield buffer.name, f"bad shape {buffer.shape}"
        if (buffer.role is Role.WEIGHT) != bool(buffer.sources):
            yield buffer.name, "weights, and only weights, have sources"


def _launches(plan: Plan) -> Iterator[tuple[str, str]]:
    kernels = {kernel.name for kernel in plan.kernels}
    buffers = {buffer.name for buffer in plan.buffers}
    for section, launch in plan.launches():
        node = f"{section.name}: {launch.kernel}"
        if launch.kernel not in kernels:
            yield node, "kernel is not in the plan"
        for argument, value in launch.args:
            if value not in buffers and value not in _scalars(section):
                yield node, f"argument {argument} = {value} is neither a plan buffer nor part of the key"
        for size in launch.grid:
            if isinstance(size, str) and (size not in GRID_SYMBOLS or size not in _grid_symbols(section)):
                yield node, f"grid symbol {size} is not known in this section"


def _unused_kernels(plan: Plan) -> Iterator[tuple[str, str]]:
    used = {launch.kernel for _, launch in plan.launches()}
    for kernel in plan.kernels:
        if kernel.name not in used:
            yield kernel.name, "no section launches this kernel"


def _in_place(plan: Plan) -> Iterator[tuple[str, str]]:
    """One buffer never enters a launch under two names: no kernel reads what it writes through another pointer."""
    for section, launch in plan.launches():
        for value, count in Counter(value for _, value in launch.args).items():
            if count > 1:
                yield f"{section.name}: {launch.kernel}", f"{value} is passed {count} times"


def _checkpoint_parts(plan: Plan) -> Iterator[tuple[str, str]]:
    recurrent = {b.name for b in plan.buffers if b.role is Role.STATE}
    covered = {part.live for part in plan.checkpoint_parts}
    for part, count in Counter(plan.checkpoint_parts).items():
        if count > 1:
            yield part.live, f"is part of the checkpoint {count} times"
    for name in sorted(recurrent - covered):
        yield name, "a recurrent state is not part of the checkpoint"


def _scalars(section: Section) -> set[str]:
    names = {name for name in section.params if name in SECTION_SCALARS or name == "stream"}
    return names | {"rows"}


def _grid_symbols(section: Section) -> set[str]:
    return {"rows", "row_blocks", "slot_blocks"} | ({"bucket"} if "bucket" in section.params else set())


def _check_index_range(buffer: Buffer) -> None:
    if buffer.role not in INDEXED_BY_INT64 and buffer.elements > MAX_INDEXED:
        raise TooLarge(
            buffer=buffer.name,
            elements=buffer.elements,
            limit=MAX_INDEXED,
            fields_to_lower="engine.max_slots, engine.checkpoint_slots, engine.max_context or engine.prefill_chunk",
        )


RULES: tuple[Callable[[Plan], Iterator[tuple[str, str]]], ...] = (
    _unique_names,
    _identifiers,
    _buffers,
    _launches,
    _unused_kernels,
    _in_place,
    _checkpoint_parts,
)

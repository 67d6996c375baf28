"""Rules between a plan and the text of its kernels, checked once a plan is complete. A failure names the node.

What a kernel reads and writes comes from interpreting its text (codegen/access); which launches follow each other, from
running the rendered step module over names.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations

from codegen.access import (
    Access,
    Arguments,
    KernelSource,
    NotUnderstood,
    Range,
    RecordedLaunch,
    accesses,
    read_source,
    record,
    stored_contents,
)
from codegen.errors import PlanInvalid
from codegen.lower.contents import ANYTHING, BITS, HOST_WRITES, contents, written_anew
from codegen.plan import Buffer, Kernel, Plan, Role
from codegen.render import kernel_text
from codegen.tunables import NUM_WARPS, ROW_TILES

Breach = Iterator[tuple[str, str]]
ROW_TILE = "BLOCK_M"
# Parameters that a launch loads and stores at different places on purpose: (template, parameter) -> why that is sound.
IN_PLACE: Mapping[tuple[str, str], str] = {
    ("accept_drafts", "tokens"): "one program per slot; the row is read whole before its first place is written",
    ("sample", "logits"): "one program per row; a barrier stands between writing the row and reading it",
    ("draft_sample", "logits"): "as in sample",
    ("draft_sample", "tokens"): "one program per slot; the drafts before the one that it writes are read",
    ("mamba2_conv_step", "conv_ring"): "one program per slot and channels; positions are written, then read",
    ("mamba2_conv_prefill", "conv_ring"): "as in mamba2_conv_step",
    ("copy_page", "k_cache"): "a page that a checkpoint keeps is read, one that only the slot has is written",
    ("copy_page", "v_cache"): "as k_cache",
    ("mamba2_scan_step", "dt_ring"): "one program per slot and head; committed positions are read, later ones written",
}
LOGITS, CHOSEN = "logits", {"targets", "tokens"}


@dataclass(frozen=True)
class _Step:
    """A launch of a composition and what it does to memory."""

    launch: RecordedLaunch
    found: tuple[Access, ...]

    def touched(self, store: bool) -> list[tuple[str, Access]]:
        """(buffer, access) of its loads, or of its stores."""
        buffers = dict(self.launch.buffers)
        return [(buffers[access.parameter], access) for access in self.found if access.store is store]


@dataclass(frozen=True)
class Subject:
    """A complete plan and the text of each kernel."""

    plan: Plan
    texts: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def kernels(self) -> dict[str, Kernel]:
        """Kernel instances by name."""
        return {kernel.name: kernel for kernel in self.plan.kernels}

    @cached_property
    def buffers(self) -> dict[str, Buffer]:
        """Buffers by name."""
        return {buffer.name: buffer for buffer in self.plan.buffers}

    def source(self, kernel: str) -> KernelSource:
        """The text of a kernel."""
        return read_source(kernel, self.texts.get(kernel) or kernel_text(self.kernels[kernel]))

    @cached_property
    def compositions(self) -> list[tuple[str, list[_Step]]]:
        """Every composition of sections, with what each of its launches reads and writes."""
        return [(name, list(self._steps(launches))) for name, launches in record(self.plan)]

    @cached_property
    def steps(self) -> list[_Step]:
        """Every different launch of any composition."""
        found = (step for _, steps in self.compositions for step in steps)
        return list(dict.fromkeys(found))

    def _steps(self, launches: list[RecordedLaunch]) -> Iterator[_Step]:
        held = contents(self.plan)
        for launch in launches:
            try:
                found = accesses(self.source(launch.kernel), self._arguments(launch, held))
            except NotUnderstood as error:
                raise PlanInvalid(node=launch.node, detail=str(error)) from error
            yield _Step(launch, found)
            buffers = dict(launch.buffers)
            held |= {buffers[name]: value for name, value in stored_contents(found).items()}

    def _arguments(self, launch: RecordedLaunch, held: Mapping[str, Range]) -> Arguments:
        tiles = tuple((name, value) for name, value in launch.scalars if name == ROW_TILE)
        scalars = tuple((name, Range(min(1, value), value)) for name, value in launch.scalars if name != ROW_TILE)
        pointers = tuple((name, self._held(buffer, held)) for name, buffer in launch.buffers)
        return Arguments(pointers, scalars, tiles, launch.grid)

    def _held(self, buffer: str, held: Mapping[str, Range]) -> tuple[Range, int] | None:
        dtype = self.buffers[buffer].dtype
        return (held.get(buffer, ANYTHING[dtype]), BITS[dtype]) if dtype in BITS else None


def verify_kernels(plan: Plan, texts: Mapping[str, str] | None = None) -> None:
    """Raise PlanInvalid if a rule is broken. texts: instead of what the plan's kernels render to, by kernel name."""
    subject = Subject(plan, texts or {})
    for rule in KERNEL_RULES:
        for node, detail in rule(subject):
            raise PlanInvalid(node=node, detail=detail)


def _signatures(subject: Subject) -> Breach:
    """A launch passes exactly its kernel's parameters, in order; no scalar of the key makes another binary."""
    for section, launch in subject.plan.launches():
        node = f"{section.name}: {launch.kernel}"
        kernel, source = subject.kernels[launch.kernel], subject.source(launch.kernel)
        passed = (*(name for name, _ in launch.args), *((ROW_TILE,) if kernel.row_tiles else ()))
        for name in sorted(set(source.parameters) - set(passed)):
            yield node, f"does not pass {name}, which its kernel takes"
        for name in sorted(set(passed) - set(source.parameters)):
            yield node, f"passes {name}, which its kernel does not take"
        if passed != source.parameters:
            yield node, "passes its arguments in another order than its kernel takes them"
        for name, value in launch.args:
            scalar = value not in subject.buffers and value != "stream"
            if scalar and name not in source.unspecialised:
                yield node, f"{name} = {value} is not in do_not_specialize: some values would be compiled at run time"


def _offsets(subject: Subject) -> Breach:
    """An offset that may leave 32 bits is computed in 64."""
    for step in subject.steps:
        for access in step.found:
            if access.wrapped:
                kind = "stores" if access.store else "loads"
                yield (
                    step.launch.node,
                    f"{kind} {access.parameter} at `{access.text}`, where {access.wrapped}; convert a factor with "
                    f".to(tl.int64), or give the range of what was read in codegen/lower/contents.py",
                )


def _aliases(subject: Subject) -> Breach:
    """No buffer enters a launch twice, with every stream resolved; none is read and written at different places."""
    for step in subject.steps:
        for buffer, count in Counter(buffer for _, buffer in step.launch.buffers).items():
            if count > 1:
                yield step.launch.node, f"{buffer} is passed {count} times"
        yield from _displaced(subject, step)


def _displaced(subject: Subject, step: _Step) -> Breach:
    template = subject.kernels[step.launch.kernel].template_name
    stored = {access.parameter for access in step.found if access.store}
    for name in sorted(stored & {access.parameter for access in step.found if not access.store}):
        places = {access.offset: access.text for access in step.found if access.parameter == name}
        if len(places) > 1 and (template, name) not in IN_PLACE:
            yield (
                step.launch.node,
                f"reads and writes {name} at {len(places)} places ({', '.join(sorted(set(places.values())))}): one "
                "program may read what another has written; if none can, say why in IN_PLACE of "
                "codegen/lower/kernel_rules.py",
            )


def _lifetimes(subject: Subject) -> Breach:
    """Within a composition, scratch and rows are written before they are read."""
    fleeting = written_anew(subject.plan)
    for name, steps in subject.compositions:
        written = set(HOST_WRITES.get(name, ()))
        for step in steps:
            for buffer, access in step.touched(store=False):
                if buffer in fleeting and buffer not in written:
                    yield (
                        step.launch.node,
                        f"reads {buffer} at `{access.text}`, which nothing in {name} has written before",
                    )
            written |= {buffer for buffer, _ in step.touched(store=True)}


def _agreements(subject: Subject) -> Breach:
    """Kernels that compute the same function share constants and the operations whose order decides bits.

    The same function: they read the same weights (the head of target and drafter, the verify step and the prefill of a
    mixer), read or write the same pages (what does both is a copy), or choose a token from logits.
    """
    groups: dict[str, dict[str, str]] = defaultdict(dict)
    for step in subject.steps:
        for group in _functions_of(subject, step):
            groups[group].setdefault(step.launch.kernel, step.launch.node)
    for group, kernels in groups.items():
        for (one, _), (other, node) in combinations(kernels.items(), 2):
            for difference in _differences(subject, one, other):
                yield node, f"{group}: must agree with {one}, but {difference}"


def _functions_of(subject: Subject, step: _Step) -> Iterator[str]:
    """What the launch computes, as far as others may compute it too."""
    read, stored = ({buffer for buffer, _ in step.touched(store)} for store in (False, True))
    weights, pages = ("reads", read, Role.WEIGHT), ("reads", read - stored, Role.KV)
    for verb, buffers, role in (weights, pages, ("writes", stored - read, Role.KV)):
        if shared := sorted(buffer for buffer in buffers if subject.buffers[buffer].role is role):
            yield f"{verb} {', '.join(shared)}"
    if LOGITS in read and stored & CHOSEN:
        yield "chooses a token from logits"


def _differences(subject: Subject, one: str, other: str) -> Iterator[str]:
    kernels, sources = [subject.kernels[name] for name in (one, other)], [subject.source(name) for name in (one, other)]
    free = set.intersection(*(_free(kernel) for kernel in kernels))
    left, right = (dict(kernel.constants) for kernel in kernels)
    for name in sorted((left.keys() & right.keys()) - free):
        if left[name] != right[name]:
            yield f"{name} is {right[name]}, not {left[name]}"
    if kernels[0].num_warps != kernels[1].num_warps and NUM_WARPS not in free:
        yield "its warps differ"
    if kernels[0].row_tiles != kernels[1].row_tiles and ROW_TILES not in free:
        yield "its row tiles differ"
    if unshared := sources[0].ordered_sums ^ sources[1].ordered_sums:
        yield f"only one of them computes {', '.join(sorted(unshared))}"


def _free(kernel: Kernel) -> set[str]:
    """Tunables that change neither bits nor a layout: kernels that compute the same function may differ in them."""
    return {tunable.name for tunable in kernel.tunables if not tunable.changes_bits and not tunable.lays_out}


KERNEL_RULES: tuple[Callable[[Subject], Breach], ...] = (_signatures, _offsets, _aliases, _lifetimes, _agreements)

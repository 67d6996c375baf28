"""The launches that a rendered step module makes, by running it over names instead of tensors."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from codegen.plan import Plan
from codegen.render import render_step
from codegen.tunables import OPTIONS


@dataclass(frozen=True)
class RecordedLaunch:
    """A launch of a composition. buffers: parameter -> buffer; scalars: parameter -> value, tiles included."""

    section: str
    kernel: str
    grid: tuple[int, ...]
    buffers: tuple[tuple[str, str], ...]
    scalars: tuple[tuple[str, int], ...]

    @property
    def node(self) -> str:
        """How errors name it."""
        return f"{self.section}: {self.kernel}"


class _Name(str):
    """A buffer that stands for itself."""


class _Buffers:
    def __getattr__(self, name: str) -> _Name:
        return _Name(name)


class _Tape:
    def __init__(self) -> None:
        self.section = ""
        self.launches: list[RecordedLaunch] = []

    def launch(self, kernel: str, grid: tuple[int, ...], **arguments: Any) -> None:
        given = {name: value for name, value in arguments.items() if name not in (*OPTIONS, "enable_fp_fusion")}
        self.launches.append(
            RecordedLaunch(
                self.section,
                kernel,
                grid,
                tuple((name, str(value)) for name, value in given.items() if isinstance(value, _Name)),
                tuple((name, value) for name, value in given.items() if not isinstance(value, _Name)),
            )
        )

    def in_section(self, name: str, function: Callable[..., None], *arguments: Any) -> None:
        self.section = name
        function(*arguments)


class _Kernel:
    def __init__(self, name: str, tape: _Tape) -> None:
        self.name, self.tape = name, tape

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return partial(self.tape.launch, self.name, grid)


def record(plan: Plan) -> Iterator[tuple[str, list[RecordedLaunch]]]:
    """(composition, launches) of every composition at its largest key, with no, one and all drafts of every drafter."""
    tape = _Tape()
    module = _module(plan, tape)
    for name, arguments in _calls(plan):
        tape.launches = []
        module[name](_Buffers(), *arguments)
        yield name, tape.launches


def _module(plan: Plan, tape: _Tape) -> dict[str, Any]:
    """The step module with kernels that note their launch: generated from the plan, so safe to run."""
    tree = ast.parse(render_step(plan, "record"))
    tree.body = [node for node in tree.body if not isinstance(node, ast.ImportFrom)]
    module: dict[str, Any] = {kernel.name: _Kernel(kernel.name, tape) for kernel in plan.kernels}
    exec(compile(tree, "step.py", "exec"), module)
    for section in plan.sections:
        module[section.name] = partial(tape.in_section, section.name, module[section.name])
    return module


def _calls(plan: Plan) -> Iterator[tuple[str, tuple[int | str, ...]]]:
    limits = plan.limits
    bucket, most = limits.max_slots, limits.max_drafts
    drafts = sorted({0, min(1, most), most})
    rows = max(limits.prefill_rows)
    for drafter in _drafters(plan):
        yield "prefill_chunk", (min(rows, limits.prefill_slots), rows, drafter)
        for following in [0] if drafter == "none" else drafts:
            yield "begin_slots", (bucket, drafter, following)
            for verified in drafts:
                yield "step", (bucket, drafter, verified, following)
    yield "save", (bucket, 0)
    yield "restore", (bucket,)
    yield "score", (limits.max_slots * limits.max_rows,)


def _drafters(plan: Plan) -> list[str]:
    """What may propose drafts, as the step module names it."""
    lookup = any(section.name == "lookup" for section in plan.sections)
    return ["none", *(["mtp"] if plan.has_drafter else []), *(["lookup"] if lookup else [])]

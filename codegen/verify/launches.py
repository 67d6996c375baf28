"""The launches of a step module, one by one: recorded, cut short, and laid beside those of its plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from torch import Tensor

from codegen.verify.probe import Replay
from runtime.buffers import Buffers
from runtime.drafter import Drafter
from runtime.executor import Phase
from runtime.package import Package
from runtime.plan import Launch, Plan

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Call:
    """A launch as the step module made it."""

    kernel: str
    grid: tuple[int, ...]
    args: Mapping[str, Any]


class LaunchTap:
    """Within it, the kernels of a step module are recorded, and run only if `run` and only the first `limit` of them.

    around(index, call, launch), if set, is called instead of the launch and may make it.
    """

    def __init__(self, package: Package, run: bool = True, limit: int | None = None) -> None:
        self.calls: list[Call] = []
        self.around: Callable[[int, Call, Callable[[], None]], None] | None = None
        self._run, self._limit = run, limit
        self._module: dict[str, Any] = vars(package.step)
        self._kernels = {name: self._module[name] for name in package.plan.kernels if name in self._module}

    def __enter__(self) -> LaunchTap:
        self._module.update({name: _Tapped(self, name, kernel) for name, kernel in self._kernels.items()})
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._module.update(self._kernels)

    def launch(self, name: str, kernel: Any, grid: tuple[int, ...], args: Mapping[str, Any]) -> None:
        """A launch that the module makes."""
        call = Call(name, grid, args)
        self.calls.append(call)
        index = len(self.calls) - 1
        if not self._run or (self._limit is not None and index >= self._limit):
            return
        if self.around is None:
            kernel[grid](**args)
        else:
            self.around(index, call, lambda: kernel[grid](**args))


class _Tapped:
    """Stands for a kernel: `kernel[grid](**args)`."""

    def __init__(self, tap: LaunchTap, name: str, kernel: Any) -> None:
        self._tap, self._name, self._kernel = tap, name, kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda **args: self._tap.launch(self._name, self._kernel, grid, args)


def call_section(package: Package, buffers: Buffers, drafter: Drafter, replay: Replay) -> None:
    """Call the function of the step module that a replay stands for."""
    step, b = package.step, buffers.b
    if replay.phase is Phase.PREFILL:
        step.prefill_chunk(b, package.plan.limits.prefill_bucket(replay.size), replay.size, drafter)
    elif replay.phase is Phase.BEGIN:
        step.begin_slots(b, replay.size, drafter, replay.next_drafts)
    elif replay.phase is Phase.STEP:
        step.step(b, replay.size, drafter, replay.verify_drafts, replay.next_drafts)
    elif replay.phase is Phase.SCORE:
        step.score(b, replay.size)
    elif replay.phase is Phase.RESTORE:
        step.restore(b, replay.size)
    else:
        step.save(b, replay.size, 0)


def planned(plan: Plan, drafter: Drafter, replay: Replay) -> list[tuple[Launch, Values]]:
    """The launches that the plan wants for a replay, with the values of their scalars and of `stream`."""
    rows = {Phase.STEP: replay.verify_drafts + 1, Phase.SAVE: 0}.get(replay.phase, 1)
    slots: Values = {"bucket": replay.size, "rows_per_slot": rows, "rows": replay.size * rows}
    bucket = plan.limits.prefill_bucket(replay.size)
    chunk: Values = {"bucket": bucket, "rows_per_slot": replay.size, "rows": replay.size}
    found: list[tuple[Launch, Values]] = []

    def add(section: str, values: Values) -> None:
        found.extend((launch, values) for launch in plan.sections[section])

    if replay.phase is Phase.SCORE:
        add("score", chunk)
        return found
    if replay.phase is Phase.PREFILL:
        add("prefill", chunk)
        if drafter is Drafter.MTP:
            add("prefill_draft_rows", chunk)
            add("drafter", {**chunk, "stream": "draft_hidden"})
        add("prefill_end", chunk)
        return found
    for section in {Phase.BEGIN: ("begin",), Phase.STEP: ("verify", "accept")}.get(replay.phase, (replay.phase.value,)):
        add(section, slots)
    if replay.phase not in (Phase.BEGIN, Phase.STEP):
        return found
    if drafter is Drafter.LOOKUP and replay.next_drafts:
        add("lookup", {**slots, "num_drafts": replay.next_drafts})
    if drafter is Drafter.MTP:
        add("draft_rows", slots)
        add("drafter", {**slots, "stream": "x"})
        for index in range(1, replay.next_drafts + 1):
            one: Values = {"bucket": replay.size, "rows_per_slot": 1, "rows": replay.size, "draft_index": index}
            if index == 1:
                add("draft_select", slots)
            else:
                add("draft_next", {**one, "draft_index": index - 1})
                add("drafter", {**one, "stream": "draft_hidden"})
            add("draft_token", one)
    return found


def mismatches(
    calls: list[Call], wanted: list[tuple[Launch, Values]], buffers: Buffers
) -> Iterator[tuple[Launch, str]]:
    """Launches that are not those of the plan: (launch, argument) and what is wrong with it."""
    for call, (launch, values) in zip(calls, wanted, strict=False):
        if call.kernel != launch.kernel:
            yield launch, f"{call.kernel} is launched instead"
            return
        grid = tuple(_grid_size(size, values, call) for size in launch.grid)
        if call.grid != grid:
            yield launch, f"grid is {call.grid}, not {grid}"
        for name, value in launch.args.items():
            want = values.get(value, value) if value == "stream" else value
            got = call.args.get(name)
            if isinstance(want, str) and want in buffers.plan.buffers:
                if not isinstance(got, Tensor) or got.data_ptr() != buffers[want].data_ptr():
                    yield launch, f"argument {name} is not the buffer {want}"
            elif got != values[want]:
                yield launch, f"argument {name} is {got}, not {want} = {values[want]}"
    if len(calls) != len(wanted):
        yield wanted[min(len(calls), len(wanted) - 1)][0], f"{len(calls)} launches instead of {len(wanted)}"


def _grid_size(size: int | str, values: Values, call: Call) -> int:
    """A grid dimension of the plan as a number."""
    tiled = {"row_blocks": "rows", "slot_blocks": "rows_per_slot"}
    if size in tiled:
        return -(-int(values[tiled[size]]) // int(call.args["BLOCK_M"]))
    return int(values[size]) if isinstance(size, str) else size

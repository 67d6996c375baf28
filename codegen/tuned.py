"""Tuned values as data: what `python -m autotune` found, and which kernels of a plan it is for.

A result belongs to its identity: where that differs, it says nothing. `codegen/tuned_format.py` reads one out of JSON,
`codegen/tuned_store.py` keeps them. `build` takes them; nothing here measures.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import platformdirs

from codegen.aot import toolchain
from codegen.aot_worker import device_functions_sha256
from codegen.errors import ToolchainUnusable
from codegen.machine import device, last_level_cache
from codegen.plan import Kernel, Plan, Role
from codegen.render import kernel_text
from codegen.tunables import NUM_WARPS, ROW_TILES, Value, plain

FORMAT = 1
NOTHING_TO_TUNE = "nothing to tune without --numerics free"
KEEP, FREE = "keep", "free"  # numerics: only what changes no bit, or everything
MEASURED, PREDICTED = "measured", "predicted"  # kinds of results; PREDICTED is their device, too


def data_folder() -> Path:
    """Where results and studies lie unless a command says otherwise."""
    return Path(platformdirs.user_data_dir("stepforge")) / "autotune"


@dataclass(frozen=True)
class Identity:
    """What a result is for.

    source: hash of the untuned kernel's text and of the device functions; shape: its constants. workload: sizes that
    the kernel is launched with. device, toolchain: where and with what it was measured or compiled; what a model says
    of a GPU has the device PREDICTED.
    """

    kernel: str
    source: str
    shape: tuple[tuple[str, Any], ...]
    workload: tuple[tuple[str, Any], ...]
    target: str
    numerics: str
    device: str
    toolchain: str

    @cached_property
    def digest(self) -> str:
        """Name of the result and of its study."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def like(self, other: Identity) -> bool:
        """Whether both are of the same kernel text for the same target, on whatever machine."""
        return (self.source, self.target, self.numerics) == (other.source, other.target, other.numerics)


@dataclass(frozen=True)
class Result:
    """The best that was found. values: what differs from the defaults; ratio: of its time to the untuned kernel's.

    kind: MEASURED, or PREDICTED by the static model of a target that is not here. detail: times, roofline, trials.
    """

    identity: Identity
    values: Mapping[str, Value]
    ratio: float
    kind: str
    detail: Mapping[str, Any] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        values = {name: plain(value) for name, value in self.values.items()}
        return {**asdict(self), "values": values, "identity": asdict(self.identity), "format": FORMAT}


def current(results: Iterable[Result]) -> set[Identity]:
    """Identities of those results whose kernels are compiled here, today, as they were then."""
    identities = [result.identity for result in results]
    today = {target: _toolchain_or_nothing(target) for target in {found.target for found in identities}}
    return {found for found in identities if found.toolchain == today[found.target]}


def _toolchain_or_nothing(target: str) -> str:
    try:
        return _toolchain(target)
    except ToolchainUnusable:
        return ""


def _toolchain(target: str) -> str:
    return hashlib.sha256(toolchain(target).encode()).hexdigest()


def devices(target: str) -> tuple[str, ...]:
    """What results for a target may belong to here: this device, and for a GPU, here or not, the model's word."""
    here = device(target)
    return ((here,) if here else ()) + (() if target == "cpu" else (PREDICTED,))


def identity(plan: Plan, kernel: Kernel, numerics: str = KEEP, where: str | None = None) -> Identity:
    """Of an untuned kernel instance on this machine. where: one of `devices`; the first without one."""
    named = {tunable.name for tunable in kernel.tunables}
    text = kernel_text(kernel) + device_functions_sha256()
    limits, weights = plan.limits, sum(buffer.bytes for buffer in plan.buffers if buffer.role is Role.WEIGHT)
    workload = {
        "max_slots": limits.max_slots,
        "max_rows": limits.max_rows,
        "prefill_chunk": limits.prefill_chunk,
        "weights": "cold" if weights > last_level_cache() else "warm",
    }
    return Identity(
        kernel=kernel.name,
        source=hashlib.sha256(text.encode()).hexdigest(),
        shape=tuple((name, str(value)) for name, value in kernel.constants if name not in named),
        workload=tuple(workload.items()),
        target=plan.target,
        numerics=numerics,
        device=where or devices(plan.target)[0],
        toolchain=_toolchain(plan.target),
    )


class Source(Protocol):
    """Where results are looked up: `codegen.tuned_store` has a folder and a file."""

    def find(self, wanted: Identity) -> Result | None:
        """The result of an identity, or what may stand in for it."""

    def all(self) -> list[Result]:
        """Every result."""


@dataclass(frozen=True)
class Choice:
    """What a build takes for one kernel that could be tuned. result: None where it runs untuned, then `why` says so."""

    kernel: str
    result: Result | None
    why: str

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        found = self.result
        values = {name: plain(value) for name, value in found.values.items()} if found else {}
        kind, ratio = (found.kind, found.ratio) if found else (None, None)
        return {"kernel": self.kernel, "values": values, "kind": kind, "ratio": ratio, "why": self.why}


def choose(plan: Plan, source: Source | None, numerics: str = KEEP) -> Iterator[Choice]:
    """For each kernel of an untuned plan with tunables, what `source` has. Nothing is taken that a kernel refuses."""
    every: list[Result] | None = None
    for kernel in plan.kernels:
        if not kernel.tunables:
            continue
        if source is None:
            yield Choice(kernel.name, None, "tuning is off")
            continue
        modes = (FREE, KEEP) if numerics == FREE else (KEEP,)
        wanted = [identity(plan, kernel, mode, here) for mode in modes for here in devices(plan.target)]
        found = next(filter(None, map(source.find, wanted)), None)
        if found is None and every is None:
            every = source.all()
        if found is None:
            idle = numerics != FREE and not kernel.is_tunable
            yield Choice(kernel.name, None, NOTHING_TO_TUNE if idle else _missing(every or (), wanted[0]))
            continue
        refused = _refused(kernel, found, numerics)
        yield Choice(kernel.name, None if refused else found, refused or _origin(found, wanted))


def _refused(kernel: Kernel, result: Result, numerics: str) -> str:
    """Why values cannot be taken, or nothing."""
    tunables = {tunable.name: tunable for tunable in kernel.tunables}
    for name, value in result.values.items():
        if name not in tunables or tunables[name].read(value) is None:
            return f"its result has {name} = {value}, which the kernel does not allow"
        if tunables[name].changes_bits and numerics != FREE:
            return f"its result has {name} = {value}, which changes bits: --numerics free takes it"
    return ""


def _origin(result: Result, wanted: list[Identity]) -> str:
    """Where values are from; a file's may be of another machine."""
    if result.identity in wanted:
        return result.kind
    where = "" if result.kind == PREDICTED else f" on {result.identity.device}"
    return f"{result.kind}{where}, or for another workload or toolchain"


def _missing(results: Iterable[Result], wanted: Identity) -> str:
    """Why there is no result, as far as others tell."""
    same = [r.identity for r in results if (r.identity.kernel, r.identity.target) == (wanted.kernel, wanted.target)]
    if not same:
        return "not tuned yet"
    like = [found for found in same if found.like(wanted)]
    if not like:
        return "tuned for another text of the kernel"
    if any(found.device == wanted.device for found in like):
        return "tuned with another compiler or backend, or for another workload"
    return "tuned on another machine"


def tuned_in(plan: Any) -> dict[str, dict[str, Any]]:
    """The tuned values of a plan.json: `lower` checks them. Raises KeyError or TypeError if it is no plan."""
    found = {}
    for kernel in plan["kernels"]:
        held = {name: kernel[name] for name in (ROW_TILES, NUM_WARPS)}
        held |= dict(kernel["constants"]) | dict(kernel.get("options", ()))
        moved = {t["name"]: held.get(t["name"], t["default"]) for t in kernel.get("tunables", ())}
        moved = {t["name"]: moved[t["name"]] for t in kernel.get("tunables", ()) if moved[t["name"]] != t["default"]}
        if moved:
            found[kernel["name"]] = moved
    return found


def values_of(choices: Iterable[Choice]) -> dict[str, dict[str, Value]]:
    """What `lower` takes: values by kernel."""
    return {choice.kernel: dict(choice.result.values) for choice in choices if choice.result and choice.result.values}

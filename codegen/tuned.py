"""Tuned values as data: what `python -m autotune` found, and which kernels of a plan it is for.

A result is a JSON file named after the hash of its identity, so that processes and machines may share a folder
without locks, and a killed one leaves whole results only. `build` reads them; nothing here measures.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import platformdirs

from codegen.aot import toolchain
from codegen.aot_worker import device_functions_sha256
from codegen.errors import TunedUnusable
from codegen.machine import device, last_level_cache
from codegen.plan import Kernel, Plan, Role
from codegen.render import kernel_text
from codegen.tunables import NUM_WARPS, ROW_TILES, Value, plain
from dsl.files import read_regular

FORMAT = 1
RESULTS = "results"  # below the data folder
RESULT_BYTES, EXPORT_BYTES = 8 << 20, 256 << 20
KEEP, FREE = "keep", "free"  # numerics: only what changes no bit, or everything
MEASURED, PREDICTED = "measured", "predicted"


def data_folder() -> Path:
    """Where results and studies lie unless a command says otherwise."""
    return Path(platformdirs.user_data_dir("stepforge")) / "autotune"


@dataclass(frozen=True)
class Identity:
    """What a result is for.

    source: hash of the untuned kernel's text and of the device functions; shape: its constants. workload: sizes that
    the kernel is launched with. device, toolchain: where and with what it was measured or compiled.
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


def read_result(data: Any) -> Result:
    """A result out of JSON. Raises KeyError, TypeError or ValueError if it is none."""
    if data["format"] != FORMAT:
        raise ValueError(f"format {data['format']} is not {FORMAT}")
    named = data["identity"]
    words = ("kernel", "source", "target", "numerics", "device", "toolchain")
    about: dict[str, Any] = {name: _text(named[name]) for name in words}
    about |= {name: tuple((_text(k), v) for k, v in named[name]) for name in ("shape", "workload")}
    values = {_text(name): _value(value) for name, value in data["values"].items()}
    kind = data["kind"]
    if kind not in (MEASURED, PREDICTED):
        raise ValueError(f"kind {kind!r}")
    return Result(Identity(**about), values, float(data["ratio"]), kind, dict(data["detail"]))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _value(value: Any) -> Value:
    if type(value) is int:
        return value
    if isinstance(value, list) and all(type(item) is int for item in value):
        return tuple(value)
    raise TypeError(f"{value!r} is no value of a tunable")


def identity(plan: Plan, kernel: Kernel, numerics: str = KEEP) -> Identity:
    """Of an untuned kernel instance on this machine."""
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
        device=device(plan.target),
        toolchain=hashlib.sha256(toolchain(plan.target).encode()).hexdigest(),
    )


class Results:
    """Results in a folder, one file each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, wanted: Identity) -> Result | None:
        """The result of exactly this identity."""
        return _read(self.folder / f"{wanted.digest}.json")

    def all(self) -> list[Result]:
        """Every whole result, by kernel and target."""
        found = filter(None, map(_read, self.folder.glob("*.json")))
        return sorted(
            found, key=lambda result: (result.identity.target, result.identity.kernel, result.identity.digest)
        )

    def write(self, result: Result) -> None:
        """Store a result in place of an earlier one, whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = self.folder / f".{result.identity.digest}.{os.getpid()}.partial"
        partial.write_text(json.dumps(result.plain(), indent=1, sort_keys=True) + "\n")
        partial.replace(self.folder / f"{result.identity.digest}.json")


class ResultFile:
    """Results that somebody exported, perhaps on another machine: one JSON file."""

    def __init__(self, path: Path) -> None:
        """Read the file. Raises TunedUnusable."""
        try:
            data = json.loads(read_regular(path, EXPORT_BYTES))
            self._results = [read_result(item) for item in data["results"]]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise TunedUnusable(path=path, detail=f"it is no file of `autotune export` ({error})") from error

    def all(self) -> list[Result]:
        """Every result, in the file's order."""
        return self._results

    def find(self, wanted: Identity) -> Result | None:
        """The result of this identity, else one of the same kernel on another machine or workload."""
        like = [result for result in self._results if result.identity.like(wanted)]
        return next((result for result in like if result.identity == wanted), like[0] if like else None)


def _read(path: Path) -> Result | None:
    """A result, or None if there is none or it is damaged: the kernel then runs untuned."""
    try:
        return read_result(json.loads(read_regular(path, RESULT_BYTES)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


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


def choose(plan: Plan, source: Results | ResultFile | None, numerics: str = KEEP) -> Iterator[Choice]:
    """For each kernel of an untuned plan with tunables, what `source` has. Nothing is taken that a kernel refuses."""
    every: list[Result] | None = None
    for kernel in plan.kernels:
        if not kernel.tunables:
            continue
        if source is None:
            yield Choice(kernel.name, None, "tuning is off")
            continue
        wanted = [identity(plan, kernel, mode) for mode in ((FREE, KEEP) if numerics == FREE else (KEEP,))]
        found = next(filter(None, map(source.find, wanted)), None)
        if found is None and every is None:
            every = source.all()
        refused = _refused(kernel, found, numerics) if found else _missing(every or (), wanted[-1])
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


def _origin(result: Result | None, wanted: list[Identity]) -> str:
    assert result is not None
    here = result.identity in wanted
    return result.kind if here else f"{result.kind} on {result.identity.device}, or for another workload or toolchain"


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

"""The time of a decode step on a GPU, launch by launch: what bounds each, and so the step.

A step is one chain of launches, each waiting for the one before. A launch takes `launch_seconds`, and the longest of
three times: of its bytes at the memory's rate, of its operations, and of its bytes at the rate that as few
multiprocessors as it has programs for can draw. Bytes are those of `codegen.cost`: weights, states and KV, each once;
scratch stays in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from codegen.cost import Cost, Shape, launch_cost, step_sections
from codegen.launching import row_tile
from codegen.plan import Kernel, Launch, Plan
from codegen.predict.accelerators import Accelerator

TENSOR_CORES = ("matmul", "gated_matmul", "attention")  # templates whose operations are bf16 dots
INT8_TENSOR_CORES = ("draft_head", "draft_head_int4")  # those of int8 dots
TILED = ("matmul", "gated_matmul", *INT8_TENSOR_CORES)  # whose dots take whole row tiles


class Bound(StrEnum):
    """What decides a time."""

    MEMORY = "memory"
    COMPUTE = "compute"
    FEW_PROGRAMS = "few programs"
    LAUNCH = "launch latency"


@dataclass(frozen=True)
class Assumptions:
    """What no data sheet says. None of it was measured with Stepforge.

    bandwidth_share, compute_share: of the data sheet's rates that kernels reach. launch_seconds: from the end of a
    launch to the first useful byte of the next one in a CUDA graph. draw: most that one multiprocessor moves, in even
    shares of the bandwidth.
    """

    bandwidth_share: float = 0.85
    compute_share: float = 0.6
    launch_seconds: float = 1.5e-6
    draw: float = 2.0

    @staticmethod
    def data_sheet() -> Assumptions:
        """The data sheet's rates and nothing else: no step of these bytes is faster."""
        return Assumptions(1.0, 1.0, 0.0, float("inf"))


@dataclass(frozen=True)
class Part:
    """One launch of a step, run `count` times in a row. seconds: of all of them, by what decides them."""

    cost: Cost
    seconds: Mapping[Bound, float]


@dataclass(frozen=True)
class Prediction:
    """A step on one GPU, as far as `assumptions` hold."""

    accelerator: Accelerator
    assumptions: Assumptions
    parts: tuple[Part, ...]

    @property
    def seconds(self) -> float:
        """Of the whole step."""
        return sum(sum(part.seconds.values()) for part in self.parts)

    @property
    def bound(self) -> Bound:
        """What most of the step's time goes to."""
        return bound_of(self.by_bound())

    def by_bound(self) -> dict[Bound, float]:
        """Seconds of the step by what decides them."""
        return _added(self.parts)

    def by_section(self) -> dict[str, dict[Bound, float]]:
        """The same of every section, in order."""
        return self._by([part.cost.section for part in self.parts])

    def by_layer(self) -> dict[str, dict[Bound, float]]:
        """The same of every kind of layer, under its name in the spec, and of what is no layer."""
        return self._by([layer_kind(part.cost.layer) for part in self.parts])

    def _by(self, keys: list[str]) -> dict[str, dict[Bound, float]]:
        groups: dict[str, list[Part]] = {}
        for key, part in zip(keys, self.parts, strict=True):
            groups.setdefault(key, []).append(part)
        return {key: _added(group) for key, group in groups.items()}


def predict(plan: Plan, shape: Shape, accelerator: Accelerator, assumptions: Assumptions | None = None) -> Prediction:
    """The step of `plan`, which must be one of the accelerator's target, at `shape`."""
    assumed = assumptions or Assumptions()
    return Prediction(accelerator, assumed, tuple(_parts(plan, shape, accelerator, assumed)))


def layer_kind(layer: str) -> str:
    """`mamba` of `layers.3 mamba`; anything else as it is."""
    return layer.partition(" ")[2] if layer.startswith("layers.") else layer


def bound_of(seconds: Mapping[Bound, float]) -> Bound:
    """The one with the most seconds."""
    return max(seconds, key=lambda bound: seconds[bound])


def _parts(plan: Plan, shape: Shape, accelerator: Accelerator, assumed: Assumptions) -> Iterator[Part]:
    for section, rows, count in step_sections(plan, shape):
        for launch in section.launches:
            cost = launch_cost(plan, section, launch, rows, count, shape)
            programs = count_programs(plan, launch, rows, shape)
            once = _seconds(plan.kernel(launch.kernel), cost, programs, rows, accelerator, assumed)
            yield Part(cost, {bound: count * seconds for bound, seconds in once.items()})


def _seconds(
    kernel: Kernel, cost: Cost, programs: int, rows: int, accelerator: Accelerator, assumed: Assumptions
) -> dict[Bound, float]:
    """One run of a launch: its latency, and the longest of what else may bound it."""
    bandwidth = accelerator.bandwidth * assumed.bandwidth_share
    drawn = min(1.0, assumed.draw * programs / accelerator.multiprocessors)
    rate = _rate(kernel, accelerator)
    busy = min(1.0, programs / accelerator.multiprocessors)
    memory = cost.bytes / bandwidth
    times = {
        Bound.MEMORY: memory,
        Bound.FEW_PROGRAMS: memory / drawn,
        Bound.COMPUTE: _executed(kernel, cost.flops, rows) / (rate * assumed.compute_share * busy),
    }
    if times[Bound.FEW_PROGRAMS] <= memory:
        del times[Bound.FEW_PROGRAMS]
    longest = bound_of(times)
    return {longest: times[longest], Bound.LAUNCH: assumed.launch_seconds}


def _rate(kernel: Kernel, accelerator: Accelerator) -> float:
    """Operations per second of what the kernel computes with."""
    if kernel.template_name in INT8_TENSOR_CORES:
        return accelerator.int8
    return accelerator.bf16 if kernel.template_name in TENSOR_CORES else accelerator.fp32


def _executed(kernel: Kernel, flops: int, rows: int) -> float:
    """Operations that run: a dot takes whole row tiles, however few rows there are."""
    if kernel.template_name not in TILED:
        return flops
    tile = row_tile(kernel.row_tiles, rows)
    return flops / rows * (-(-rows // tile) * tile)


def count_programs(plan: Plan, launch: Launch, rows: int, shape: Shape) -> int:
    """Programs of a launch: its grid with `rows`, of which each of the bucket's slots has as many, filled in."""
    tiles = plan.kernel(launch.kernel).row_tiles
    symbols = {"rows": rows, "bucket": shape.bucket}
    for symbol, of in (("row_blocks", rows), ("slot_blocks", max(1, rows // shape.bucket))):
        if symbol in launch.grid:
            symbols[symbol] = -(-of // row_tile(tiles, of))
    programs = 1
    for size in launch.grid:
        programs *= symbols[size] if isinstance(size, str) else size
    return programs


def _added(parts: tuple[Part, ...] | list[Part]) -> dict[Bound, float]:
    total = dict.fromkeys(Bound, 0.0)
    for part in parts:
        for bound, seconds in part.seconds.items():
            total[bound] += seconds
    return total

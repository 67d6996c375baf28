"""Judging a candidate for a GPU that is not here: compiled and read, then ranked by a model. Never called measured.

The model is a roofline with what a compiled kernel tells: how many programs are resident (registers, shared memory,
warps), how many bytes they keep in flight, instructions that have to be issued, and the chain of a loop's loads. Its
seconds are good for an order of candidates, not for a promise. Rates and the time of a launch are those of
`codegen/predict`, and so are its assumptions; LATENCY is one more. Sources of the rest: NVIDIA's data sheets for
clocks, CUDA C++ Programming Guide for limits of a multiprocessor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.arena import Arena
from autotune.faults import brief, is_the_machines
from autotune.forge import Candidate, Forge
from autotune.measure import Report, Verdict
from autotune.proof import Rejected, untuned
from autotune.scenes import Scene, timed_scenes
from codegen.aot import kernel_params
from codegen.aot_worker import Job, compile_cuda, resources_of
from codegen.cost import Shape, launch_cost
from codegen.inspect.compiled import Compiled, read_compiled
from codegen.inspect.device import REGISTER_FILE
from codegen.inspect.listing import counted
from codegen.inspect.rules import PTX_DOT, judge
from codegen.plan import Kernel
from codegen.predict import Assumptions, of_target
from codegen.tunables import NUM_STAGES, Value
from codegen.tuned import FREE, PREDICTED

LATENCY = 700e-9  # of a load from memory
WARPS, BLOCKS, WARP = 64, 32, 32
RESERVED_SHARED = 1024
BYTES_PER_THREAD = 32  # that a thread without a pipeline keeps in flight
SPILL_BANDWIDTH = 5e12
SCHEDULERS = 4
TRITON_STAGES = 3


@dataclass(frozen=True)
class Chip:
    """What a multiprocessor has. clock: Hz; shared: bytes."""

    clock: float
    shared: int


CHIPS = {
    "cuda:80": Chip(1.41e9, 164 << 10),
    "cuda:90": Chip(1.83e9, 228 << 10),
    "cuda:100": Chip(1.85e9, 228 << 10),
}


@dataclass(frozen=True)
class Predicted:
    """Seconds of a launch and what bounds it."""

    seconds: float
    bound: str
    occupancy: float


class Model:
    """Evaluates candidates of one kernel for a CUDA target."""

    kind = PREDICTED

    def __init__(self, forge: Forge, kernel: str, cache: Path, numerics: str) -> None:
        self.forge, self.kernel, self.cache, self.numerics = forge, kernel, cache, numerics
        self.gpu, self.chip, self.assumed = of_target(forge.target)[0], CHIPS[forge.target], Assumptions()
        with untuned(kernel):
            plain = forge.candidate(kernel, {})
            self.scenes = timed_scenes(plain.plan, plain.kernel)
            compiled = self._compile(plain)
            self._dots = set().union(*map(_dots, compiled.values()))
            self._check(compiled)
        self.untuned = {scene.name: self._predict(plain, compiled, scene) for scene in self.scenes}

    def evaluate(self, values: Mapping[str, Value], report: Report) -> Verdict:
        """Compile and rank. Raises Rejected if a rule of `inspect` is broken, or the dots are not the untuned ones."""
        return self.decide(values)

    def decide(self, values: Mapping[str, Value]) -> Verdict:
        """The same: a model does not change its mind."""
        try:
            candidate = self.forge.candidate(self.kernel, values)
            compiled = self._compile(candidate)
        except Exception as error:
            if is_the_machines(error):
                raise
            raise Rejected(f"it does not compile: {brief(error)}") from error
        self._check(compiled)
        found = {scene.name: self._predict(candidate, compiled, scene) for scene in self.scenes}
        total = sum(scene.weight for scene in self.scenes)
        ratios = {name: found[name].seconds / self.untuned[name].seconds for name in found}
        ratio = math.exp(sum(s.weight * math.log(ratios[s.name]) for s in self.scenes) / total)
        scenes = {
            name: {"tuned": p.seconds, "untuned": self.untuned[name].seconds, "ratio": ratios[name]}
            | {"bound": p.bound, "occupancy": p.occupancy}
            for name, p in found.items()
        }
        resources = [_resources(entry) for entry in compiled.values()]
        return Verdict(ratio, 0.0, {"scenes": scenes, "resources": resources, "device": self.gpu.name}, PREDICTED)

    def _compile(self, candidate: Candidate) -> dict[int, Compiled]:
        """The candidate for every row tile that a scene takes; 0 without tiles."""
        tiles = {self._arena(scene).tile(candidate.kernel) for scene in self.scenes}
        return {tile: self._compile_one(candidate, tile) for tile in sorted(tiles)}

    def _compile_one(self, candidate: Candidate, tile: int) -> Compiled:
        from triton import knobs

        kernel = candidate.kernel
        params = kernel_params(candidate.plan, kernel.name)
        path, target = str(self.forge.write(kernel)), self.forge.target
        job = Job(kernel.name, path, target, str(self.cache), params, tile or None, kernel.num_warps, kernel.options)
        with knobs.cache.scope():
            knobs.cache.dir = str(self.cache)
            resources = resources_of(job, compile_cuda(job, candidate.function))
        return read_compiled(resources, target, self.cache / resources.folder)

    def _check(self, compiled: Mapping[int, Compiled]) -> None:
        for tile, found in compiled.items():
            broken = judge(found)
            if broken:
                raise Rejected(f"BLOCK_M {tile}: {broken[0]}")
            if self.numerics != FREE and (other := _dots(found) - self._dots):
                raise Rejected(f"BLOCK_M {tile}: the untuned kernel has no dots of {', '.join(sorted(other))}")

    def _arena(self, scene: Scene) -> Arena:
        import torch

        return Arena(self.forge.untuned, scene, torch.device("cpu"))

    def _predict(self, candidate: Candidate, compiled: Mapping[int, Compiled], scene: Scene) -> Predicted:
        gpu, chip, assumed, kernel = self.gpu, self.chip, self.assumed, candidate.kernel
        arena = self._arena(scene)
        entry = compiled[arena.tile(kernel)]
        programs, warps = math.prod(arena.grid(candidate.plan, kernel)), kernel.num_warps
        shape = Shape(scene.bucket, scene.rows_per_slot - 1, max(1, scene.context))
        cost = launch_cost(candidate.plan, scene.section, scene.launch, scene.rows, 1, shape)
        resident, bandwidth = _resident(entry, warps, chip), gpu.bandwidth * assumed.bandwidth_share
        passes, stages = _loop(kernel), dict(kernel.options).get(NUM_STAGES, TRITON_STAGES)
        depth = max(1, stages - 1) if entry.shared_bytes else 1
        units = gpu.multiprocessors
        flying = min(programs, resident * units) * _in_flight(kernel, entry, warps, depth)
        reached = bandwidth * min(1.0, flying / (bandwidth * LATENCY))
        rounds = -(-programs // (resident * units))
        share = -(-programs // units) * units / programs
        instructions = programs * warps * len(entry.sass) * passes * share
        bounds = {
            "memory": max(cost.bytes, 1) / reached,
            "issue": instructions / (units * SCHEDULERS * chip.clock),
            "tensor cores": cost.flops / (gpu.bf16 * assumed.compute_share),
            "latency": rounds * LATENCY * (1 + passes / depth),
            "spills": entry.spill_bytes * WARP * warps * programs * 2 / SPILL_BANDWIDTH,
        }
        bound = max(bounds, key=lambda name: bounds[name])
        seconds = assumed.launch_seconds + bounds[bound] + bounds["spills"]
        return Predicted(seconds, bound, resident * warps / WARPS)


def _resident(entry: Compiled, warps: int, chip: Chip) -> int:
    """Programs that a multiprocessor holds at once."""
    registers = max(8, -(-entry.registers // 8) * 8) * WARP * warps
    shared = entry.shared_bytes + RESERVED_SHARED
    return max(1, min(REGISTER_FILE // registers, chip.shared // shared, WARPS // warps, BLOCKS))


def _loop(kernel: Kernel) -> int:
    """Passes of a program's innermost loop over loads."""
    constants = dict(kernel.constants)
    return int(constants["K_PADDED"]) // int(constants["BLOCK_K"]) if "K_PADDED" in constants else 1


def _in_flight(kernel: Kernel, entry: Compiled, warps: int, depth: int) -> int:
    """Bytes that a program has asked for and not got yet."""
    constants = dict(kernel.constants)
    if "BLOCK_K" in constants and entry.shared_bytes:
        return int(depth * constants["BLOCK_K"] * constants["BLOCK_N"] * 2)
    return BYTES_PER_THREAD * WARP * warps


def _dots(compiled: Compiled) -> set[str]:
    """Mnemonics of the dots: another instruction sums in another order."""
    return set(counted(compiled.ptx, PTX_DOT))


def _resources(compiled: Compiled) -> dict[str, Any]:
    return {
        "row_tile": compiled.row_tile,
        "registers": compiled.registers,
        "spill_bytes": compiled.spill_bytes,
        "shared_bytes": compiled.shared_bytes,
        "instructions": len(compiled.sass),
    }

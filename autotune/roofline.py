"""The least time that a launch may take on this machine: its bytes at the read bandwidth, its products at the peak."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import torch

from autotune.scenes import timed_scenes
from autotune.space import Machine
from codegen.cost import Shape, launch_cost
from codegen.machine import last_level_cache, threads
from codegen.plan import Kernel, Plan, Role
from runtime.bandwidth import read_bandwidth

CACHES = 4  # of the last-level cache: what passes by in a working set of that size is gone when it is due again
PEAK_SIZE, PEAK_TRIES = 1024, 6


def working_set(plan: Plan) -> int:
    """Bytes that a step moves between two launches on the same weights, or as many as leave no cache any use."""
    weights = sum(buffer.bytes for buffer in plan.buffers if buffer.role is Role.WEIGHT)
    return min(weights, CACHES * last_level_cache())


@cache
def machine_here(size: int) -> Machine:
    """This CPU: how fast it reads a working set of `size` bytes, and the bf16 products of PyTorch's matmul."""
    return Machine(read_bandwidth(size, threads()), _peak(), threads())


def _peak() -> float:
    a = torch.randn(PEAK_SIZE, PEAK_SIZE).to(torch.bfloat16)
    best = min(_timed(a) for _ in range(PEAK_TRIES))
    return 2 * PEAK_SIZE**3 / best


def _timed(a: torch.Tensor) -> float:
    start = time.perf_counter()
    a @ a
    return time.perf_counter() - start


def roofline(plan: Plan, kernel: Kernel, machine: Machine) -> dict[str, Any]:
    """Bytes, operations and least seconds of a launch by scene, and what of the machine they come from."""
    found = {}
    for scene in timed_scenes(plan, kernel):
        shape = Shape(scene.bucket, scene.rows_per_slot - 1, max(1, scene.context))
        cost = launch_cost(plan, scene.section, scene.launch, scene.rows, 1, shape)
        bounds = {"memory": cost.bytes / machine.bandwidth, "arithmetic": cost.flops / machine.peak}
        bound = max(bounds, key=lambda name: bounds[name])
        found[scene.name] = {"bytes": cost.bytes, "flops": cost.flops, "seconds": bounds[bound], "bound": bound}
    return {"roofline": found, "bandwidth": machine.bandwidth, "peak": machine.peak}

"""All laid-out weights in one block of memory, in the order in which a step reads them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

import torch
from torch import Tensor

from runtime.errors import WeightsChanged
from runtime.host_memory import zeroed
from runtime.layout_cache import LayoutCache
from runtime.layouts import LAYOUT_VERSION, TORCH_DTYPES, lay_out
from runtime.memory import WEIGHT_ALIGNMENT, aligned
from runtime.plan import Buffer, Plan
from runtime.weights import Weights, read_sources

ESCAPES = "coded_escapes"
FIRST_SECTION = "verify"  # every decode step runs it


def launch_order(plan: Plan) -> list[Buffer]:
    """The weight buffers of a plan, those that the target pass launches with first, in that order.

    What steps hardly read comes last, so that each matrix is followed by the next.
    """
    sections = sorted(plan.sections.items(), key=lambda section: section[0] != FIRST_SECTION)
    launched = (name for _, launches in sections for launch in launches for name in launch.args.values())
    named = {buffer.name: buffer for buffer in plan.role("weight")}
    found = [named[name] for name in dict.fromkeys([*launched, *named]) if name in named]
    return sorted(found, key=lambda buffer: buffer.layout == ESCAPES)


def _places(plan: Plan) -> Iterator[tuple[Buffer, int]]:
    """Where each buffer starts, in bytes from the start of the block."""
    start = 0
    for buffer in launch_order(plan):
        yield buffer, start
        start += aligned(buffer.bytes, WEIGHT_ALIGNMENT)


def layout_key(plan: Plan, sha256: str) -> str:
    """Hash of everything that the bytes of the block depend on: the weights, and how and where each is laid out."""
    described = [
        (buffer.name, buffer.shape, buffer.dtype, buffer.layout, start, [(s.tensor, s.shape) for s in buffer.sources])
        for buffer, start in _places(plan)
    ]
    return hashlib.sha256(json.dumps([LAYOUT_VERSION, sha256, described]).encode()).hexdigest()


def weight_arena(plan: Plan, weights: Weights, device: torch.device, cache: LayoutCache | None) -> dict[str, Tensor]:
    """The weight buffers by name: views of one block on `device`, of as many bytes as the memory table says.

    cache: where the block of a CPU is kept between processes. Of the weights no more than the tensors of one buffer are
    resident at a time. Raises WeightsChanged, WeightsChanging.
    """
    size = sum(aligned(buffer.bytes, WEIGHT_ALIGNMENT) for buffer in plan.role("weight"))
    on_cpu = device.type == "cpu"
    block = zeroed(size, huge=True) if on_cpu else torch.zeros(size, dtype=torch.uint8, device=device)
    parts = {
        buffer.name: block[start : start + buffer.bytes].view(TORCH_DTYPES[buffer.dtype]).view(buffer.shape)
        for buffer, start in _places(plan)
    }
    if cache is None or not on_cpu:
        _fill(plan, weights, parts)
        return parts
    key = layout_key(plan, weights.sha256)
    if not cache.load(key, block):
        if weights.confirmed_sha256() != weights.sha256:
            raise WeightsChanged(path=weights.label)
        _fill(plan, weights, parts)
        cache.store(key, block)
    return parts


def _fill(plan: Plan, weights: Weights, parts: dict[str, Tensor]) -> None:
    waiting = launch_order(plan)
    while waiting:
        together = [waiting.pop(0)]
        if together[0].layout == "coded_panel":  # its escapes are made at the same time
            together += [other for other in waiting if _are_escapes(other, together[0])][:1]
        waiting = [buffer for buffer in waiting if buffer not in together]
        targets = [parts[buffer.name] for buffer in together]
        here = [t if t.device.type == "cpu" else torch.zeros(t.shape, dtype=t.dtype) for t in targets]
        lay_out(together[0], here[0], read_sources(weights, together[0]), *here[1:])
        for target, filled in zip(targets, here, strict=True):
            if filled is not target:
                target.copy_(filled)
        weights.release()
    weights.check_unchanged()


def _are_escapes(buffer: Buffer, coded: Buffer) -> bool:
    """Whether the escapes of a coded matrix of these tensors, in panels of this width, lie in `buffer`."""
    alike = (buffer.shape[0], buffer.shape[-1]) == (coded.shape[0], coded.shape[-1])
    return buffer.layout == ESCAPES and buffer.sources == coded.sources and alike

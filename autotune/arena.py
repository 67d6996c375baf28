"""The tensors of one launch, outside of any engine: the same contents for every candidate, weights laid out for each.

Contents are seeded by buffer name. Protocol buffers hold what the host and the kernels before would have written for
the scene, so that the launch is one that a step makes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from autotune.scenes import Scene
from codegen.launching import BLOCKS, ROW_TILE, SLOT_TILE, row_tile
from codegen.plan import PAD_SLOT_ID, Buffer, Kernel, Launch, Plan, Role
from runtime.layouts import TORCH_DTYPES, laid_out
from runtime.plan import Source
from runtime.random_weights import random_tensor

CHECKPOINTS = 2  # rows of a checkpoint buffer: a plain step writes none of them
STREAM = "x"  # the residual stream, wherever a section takes it as a parameter
PER_LAYER = (Role.WEIGHT, Role.STATE, Role.RING, Role.KV)  # what the next layer has another of


@dataclass(frozen=True)
class Operands:
    """What a launch gets: tensors and scalars by parameter, and its grid. buffers: of the tensors, by parameter."""

    tensors: Mapping[str, Tensor]
    scalars: Mapping[str, int]
    grid: tuple[int, ...]
    buffers: Mapping[str, Buffer]

    def copy(self, roles: tuple[Role, ...] = tuple(Role)) -> Operands:
        """The same with tensors of its own for buffers of these roles."""
        tensors = {n: t.clone() if self.buffers[n].role in roles else t for n, t in self.tensors.items()}
        return Operands(tensors, self.scalars, self.grid, self.buffers)

    def to_cpu(self) -> Operands:
        """The same with tensors on the CPU."""
        return Operands({n: t.cpu() for n, t in self.tensors.items()}, self.scalars, self.grid, self.buffers)

    def bytes(self, roles: tuple[Role, ...]) -> int:
        """Bytes of the tensors of these roles."""
        return sum(t.numel() * t.element_size() for n, t in self.tensors.items() if self.buffers[n].role in roles)


class Arena:
    """Contents for one scene of one kernel, on one device."""

    def __init__(self, plan: Plan, scene: Scene, device: torch.device) -> None:
        self.plan, self.scene, self.device = plan, scene, device

    def operands(self, plan: Plan, kernel: Kernel, made: Callable[[str, Buffer], Tensor] | None = None) -> Operands:
        """What a candidate is launched with: `plan` is lowered with its values, `kernel` the instance in it.

        made: gives the tensor of a parameter; without it, fresh ones with contents.
        """
        make = made or (lambda name, buffer: self._tensor(buffer).to(self.device))
        named = {buffer.name: buffer for buffer in plan.buffers}
        values = {name: STREAM if value == "stream" else value for name, value in self._launch(plan).args}
        buffers = {name: named[value] for name, value in values.items() if value in named}
        tensors = {name: make(name, buffer) for name, buffer in buffers.items()}
        scalars = {name: self._scalar(value) for name, value in values.items() if value not in named}
        if tile := self.tile(kernel):
            scalars["BLOCK_M"] = tile
        return Operands(tensors, scalars, self.grid(plan, kernel), buffers)

    def grid(self, plan: Plan, kernel: Kernel) -> tuple[int, ...]:
        """Programs of a candidate's launch."""
        return tuple(self._size(size, self.tile(kernel)) for size in self._launch(plan).grid)

    def _launch(self, plan: Plan) -> Launch:
        """The scene's launch as `plan` has it: coded weights come with another argument."""
        at = self._alike(self.plan).index(self.scene.launch)
        return self._alike(plan)[at]

    def _alike(self, plan: Plan) -> list[Launch]:
        """Launches of the scene's kernel in its section, in order."""
        section, kernel = self.scene.section.name, self.scene.launch.kernel
        return [launch for s, launch in plan.launches() if s.name == section and launch.kernel == kernel]

    def _scalar(self, name: str) -> int:
        scene = self.scene
        sizes = {"rows": scene.rows, "bucket": scene.bucket, "rows_per_slot": scene.rows_per_slot}
        return {**sizes, "draft_index": 1, "num_drafts": self.plan.limits.max_drafts}[name]

    def tile(self, kernel: Kernel) -> int:
        """BLOCK_M of a tiled kernel: the smallest tile that covers the rows, else the largest. 0 without tiles."""
        of_slot = BLOCKS[SLOT_TILE] in self.scene.launch.grid
        rows = self.scene.rows_of_slot if of_slot else self.scene.rows
        return row_tile(kernel.row_tiles, rows)

    def _size(self, size: int | str, tile: int) -> int:
        if size == BLOCKS[ROW_TILE]:
            return -(-self.scene.rows // tile)
        if size == BLOCKS[SLOT_TILE]:
            return -(-self.scene.rows_of_slot // tile)
        return self._scalar(size) if isinstance(size, str) else size

    def _tensor(self, buffer: Buffer) -> Tensor:
        if buffer.role is Role.WEIGHT:
            return self.weights(buffer)
        if buffer.name in self._protocol:
            return self._protocol[buffer.name](torch.full(buffer.shape, PAD_SLOT_ID, dtype=TORCH_DTYPES[buffer.dtype]))
        shape = (CHECKPOINTS, *buffer.shape[1:]) if buffer.role is Role.CHECKPOINT else buffer.shape
        dtype, seeded = TORCH_DTYPES[buffer.dtype], generator(buffer.name)
        if dtype is torch.int8:
            return torch.randint(-127, 128, shape, generator=seeded, dtype=dtype)
        if not dtype.is_floating_point:
            return torch.zeros(shape, dtype=dtype)
        if buffer.name.endswith("dt_ring"):
            return torch.rand(shape, generator=seeded).mul_(0.1).to(dtype)
        return torch.randn(shape, generator=seeded).to(dtype)

    def weights(self, buffer: Buffer) -> Tensor:
        """A weight buffer in its layout: the same matrix whatever the panels are."""
        sources = [self.source(buffer, index) for index in range(len(buffer.sources))]
        return laid_out(buffer, sources)

    def source(self, buffer: Buffer, index: int) -> Tensor:
        """One tensor of the weights file, as stored."""
        found = buffer.sources[index]
        tensor = random_tensor(Source(found.tensor, found.shape, found.dtype), generator(found.tensor))
        return tensor.to(TORCH_DTYPES[found.dtype])

    @cached_property
    def _protocol(self) -> dict[str, Callable[[Tensor], Tensor]]:
        """What fills each protocol buffer of a launch; each gets a tensor of -1. Others hold zeros."""
        scene, limits = self.scene, self.plan.limits
        bucket, count, start = scene.bucket, scene.rows_per_slot, scene.context
        rows = torch.arange(scene.rows, dtype=torch.int32)

        def first(values: Tensor | int, length: int) -> Callable[[Tensor], Tensor]:
            def fill(tensor: Tensor) -> Tensor:
                tensor[:length] = values
                return tensor

            return fill

        def everywhere(value: int) -> Callable[[Tensor], Tensor]:
            return lambda tensor: tensor.fill_(value)

        def tokens(tensor: Tensor) -> Tensor:
            drawn = torch.randint(limits.vocab_size, tensor.shape, generator=generator("tokens"))
            return tensor.copy_(drawn)

        def pages(tensor: Tensor) -> Tensor:
            return tensor.copy_(torch.arange(tensor.numel()).view(tensor.shape))

        seats = torch.arange(bucket, dtype=torch.int32)
        taken = bucket - scene.empty
        seated = torch.where(rows // count < taken, rows // count, PAD_SLOT_ID)
        accepted = min(count, start)
        return {
            "slot_idx": first(seats[:taken], taken),
            "committed_len": everywhere(start),
            "state_len": everywhere(start - accepted),
            "limit_len": everywhere(limits.max_context),
            "num_accepted": everywhere(max(1, accepted)),
            "row_first": first(seats * count, bucket),
            "row_count": first(torch.where(seats < taken, count, 0), bucket),
            "row_slot": first(seated, scene.rows),
            "row_seat": first(seated, scene.rows),
            "row_pos": first(start + rows % count, scene.rows),
            "row_checkpoint": everywhere(PAD_SLOT_ID),
            "emit_position": everywhere(PAD_SLOT_ID),
            "emit_checkpoint": everywhere(PAD_SLOT_ID),
            "stop_tokens": everywhere(PAD_SLOT_ID),
            "bias_tokens": everywhere(PAD_SLOT_ID),
            "page_table": pages,
            **dict.fromkeys(("row_token", "tokens", "targets", "out_tokens", "slot_text"), tokens),
        }


def generator(name: str) -> torch.Generator:
    """Random numbers that depend on a name alone."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1
    return torch.Generator().manual_seed(seed)

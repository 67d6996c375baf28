"""The static buffers of a plan: allocated once, at fixed addresses, after checking that they fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import SimpleNamespace

import torch
from torch import Tensor

from runtime.host_memory import zeroed
from runtime.layout_cache import LayoutCache
from runtime.layouts import TORCH_DTYPES, rope_table
from runtime.memory import ALIGNMENT, aligned, check_both_fit, memory_table
from runtime.plan import PAD_SLOT_ID, Buffer, Plan
from runtime.weight_arena import weight_arena
from runtime.weights import Weights

DEVICE_ONLY = ("tokens", "targets", "slot_text", "token_counts", "grammar_mask")
DEVICE_OWNED = ("committed_len", "state_len", "num_accepted", "out_tokens")
EVERY_STEP = ("slot_idx", "emit_position", "emit_checkpoint")
POISON_INT = 0x5A5A5A5A
POISONED = ("state", "ring", "kv", "checkpoint", "scratch")


class HostBlock:
    """The protocol buffers in one block of memory, which the host reads and writes through flat memoryviews.

    On a CPU the kernels use the same memory, and `upload` and `download` do nothing. Elsewhere the host has a mirror.
    In order: what never leaves the device (DEVICE_ONLY), what the kernels own and the host mirrors (DEVICE_OWNED), what
    the host writes every step, what it writes now and then.
    """

    def __init__(self, buffers: Iterable[Buffer], device: torch.device) -> None:
        """Allocate, and fill what is padded."""
        named = {buffer.name: buffer for buffer in buffers}
        order = [*DEVICE_ONLY, *DEVICE_OWNED, *EVERY_STEP]
        order += [name for name in named if name not in order]
        offsets, end = {}, 0
        for name in order:
            offsets[name] = end
            end += aligned(named[name].bytes)
        self.shared = not mirrored(device)
        self._device = torch.zeros(end, dtype=torch.uint8, device=device)
        pinned = device.type == "cuda"
        self._host = self._device if self.shared else torch.zeros(end, dtype=torch.uint8, pin_memory=pinned)
        self._owned = slice(offsets[DEVICE_OWNED[0]], offsets[EVERY_STEP[0]])
        self._hot = slice(self._owned.start, offsets[order[order.index(EVERY_STEP[-1]) + 1]])
        self._all = slice(self._owned.start, end)
        self.tensors = {name: _part(self._device, named[name], offsets[name]) for name in order}
        self.views = {name: _view(_part(self._host, named[name], offsets[name])) for name in order}
        for name in order:
            if named[name].fill == "pad":
                _part(self._host, named[name], offsets[name]).fill_(PAD_SLOT_ID)
        self.upload(everything=True)

    def upload(self, everything: bool) -> None:
        """Send what the host wrote to the device, in stream order; `everything`: also what changes now and then."""
        if not self.shared:
            part = self._all if everything else self._hot
            self._device[part].copy_(self._host[part], non_blocking=True)

    def download(self) -> None:
        """Wait for the device and fetch what the kernels own."""
        if not self.shared:
            self._host[self._owned].copy_(self._device[self._owned], non_blocking=True)
            if self._device.is_cuda:
                torch.cuda.current_stream().synchronize()


def mirrored(device: torch.device) -> bool:
    """Whether the host needs a mirror of the protocol buffers: not where kernels and host share their memory."""
    return device.type != "cpu"


def _part(block: Tensor, buffer: Buffer, offset: int) -> Tensor:
    return block[offset : offset + buffer.bytes].view(TORCH_DTYPES[buffer.dtype]).view(buffer.shape)


def _view(tensor: Tensor) -> memoryview:
    """Flat memoryview, writable, one item per element."""
    return tensor.view(-1).numpy().data


class Buffers:
    """All buffers of a plan. `b`: tensors by buffer name, as the step module takes them; `host`: the protocol block."""

    def __init__(
        self,
        plan: Plan,
        weights: Weights,
        device: torch.device,
        on_host: Mapping[str, int] | None = None,
        cache: LayoutCache | None = None,
    ) -> None:
        """Allocate and fill. On a CPU what is zero takes no room before it is written to.

        on_host: bytes by name that the caller allocates then. cache: where laid-out weights are kept between processes.
        Raises DoesNotFit before anything is allocated, and WeightsChanged.
        """
        self.plan = plan
        self.memory = memory_table(plan) | (on_host or {})
        check_both_fit(plan, memory_table(plan), on_host or {}, device)
        self.host = HostBlock(plan.role("protocol"), device)
        self.b = SimpleNamespace(**self.host.tensors)
        for buffer in plan.buffers.values():
            if buffer.role not in ("protocol", "weight"):
                setattr(self.b, buffer.name, _allocate(buffer, device))
        vars(self.b).update(weight_arena(plan, weights, device, cache))

    def __getitem__(self, name: str) -> Tensor:
        tensor: Tensor = getattr(self.b, name)
        return tensor

    def poison(self, names: Iterable[str], index: Mapping[str, list[int]] | None = None) -> None:
        """Overwrite buffers with NaN or POISON_INT, for tests: no live bit may depend on it.

        index: per role, the leading indices to overwrite (free slots, pages, checkpoints); a role that is absent is
        overwritten whole.
        """
        for name in names:
            role, tensor = self.plan.buffers[name].role, self[name]
            value = float("nan") if tensor.is_floating_point() else POISON_INT % (1 << 8 * tensor.element_size() - 1)
            rows = (index or {}).get(role)
            if rows is None:
                tensor.fill_(value)
            else:
                tensor[rows] = value

    def poisonable(self) -> list[str]:
        """Names of the buffers whose contents outside live slots, pages and checkpoints mean nothing."""
        return [buffer.name for buffer in self.plan.role(*POISONED)]


def _allocate(buffer: Buffer, device: torch.device) -> Tensor:
    on_cpu = device.type == "cpu"
    block = zeroed(buffer.bytes) if on_cpu else torch.zeros(buffer.bytes, dtype=torch.uint8, device=device)
    tensor = _part(block, buffer, 0)
    assert tensor.data_ptr() % ALIGNMENT == 0 or tensor.numel() == 0
    if buffer.fill in ("rope_cos", "rope_sin"):
        return tensor.copy_(rope_table(buffer))
    return tensor.fill_(PAD_SLOT_ID) if buffer.fill == "pad" else tensor

"""What a launch means, in PyTorch: fp32 or better, from the tensors that it is given. Only where that is cheap.

The bits of a candidate are compared with the untuned kernel's; this says that the untuned kernel is right itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from autotune.arena import Arena, Operands
from codegen.plan import Kernel
from runtime.quantise import grouped, quantised

Meaning = Callable[[Arena, Kernel, Operands], dict[str, Tensor]]
# Largest error, of the largest result: a sum of thousands of fp32 products, and a rounding to bf16.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2.0**-7}


def _weight(arena: Arena, operands: Operands, parameter: str) -> Tensor:
    """[N, K] as the weights file has it, in fp32."""
    buffer = operands.buffers[parameter]
    return torch.cat([arena.source(buffer, index) for index in range(len(buffer.sources))]).float()


def _rows(operands: Operands, parameter: str, arena: Arena) -> Tensor:
    return operands.tensors[parameter][: arena.scene.rows].float()


def matmul(arena: Arena, kernel: Kernel, operands: Operands) -> dict[str, Tensor]:
    """y (+)= x w^T."""
    y = _rows(operands, "x", arena) @ _weight(arena, operands, "w").T
    return {"y": y + _rows(operands, "y", arena) if kernel.constant("residual") else y}


def gated_matmul(arena: Arena, kernel: Kernel, operands: Operands) -> dict[str, Tensor]:
    """silu(x w_gate^T) * (x w_up^T)."""
    x = _rows(operands, "x", arena)
    gate, up = (x @ _weight(arena, operands, name).T for name in ("w_gate", "w_up"))
    return {"y": torch.nn.functional.silu(gate) * up}


def rms_norm(arena: Arena, kernel: Kernel, operands: Operands) -> dict[str, Tensor]:
    """x / sqrt(mean(x^2) + eps) * weight."""
    x = _rows(operands, "x", arena)
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + kernel.constant("EPS"))
    return {"y": x * scale * operands.tensors["weight"]}


def draft_head(arena: Arena, kernel: Kernel, operands: Operands) -> dict[str, Tensor]:
    """(x w^T) * x_scale * w_scale, of int8 values."""
    source = arena.source(operands.buffers["w"], 0)
    values, scales = (torch.cat(parts).float() for parts in zip(*quantised(source), strict=True))
    x, x_scale = _rows(operands, "x", arena), _rows(operands, "x_scale", arena)
    return {"y": (x.double() @ values.double().T).float() * x_scale[:, None] * scales}


def draft_head_int4(arena: Arena, kernel: Kernel, operands: Operands) -> dict[str, Tensor]:
    """(x w^T) * x_scale * w_scale, of int8 values and of int4 values times their group's multiplier."""
    source = arena.source(operands.buffers["w"], 0)
    values, multipliers, scales = (torch.cat(parts).double() for parts in zip(*grouped(source), strict=True))
    weight = (values * multipliers[..., None]).flatten(1)[:, : source.shape[1]]
    x, x_scale = _rows(operands, "x", arena), _rows(operands, "x_scale", arena)
    return {"y": (x.double() @ weight.T).float() * x_scale[:, None] * scales.float()}


def gated_norm(arena: Arena, kernel: Kernel, operands: Operands) -> dict[str, Tensor]:
    """norm(y * silu(z)) * weight by groups."""
    d, group = kernel.constant("D"), kernel.constant("GROUP_SIZE")
    z = _rows(operands, "projected", arena)[:, :d]
    gated = (_rows(operands, "y", arena) * torch.nn.functional.silu(z)).view(len(z), -1, group)
    normed = gated * torch.rsqrt(gated.square().mean(-1, keepdim=True) + kernel.constant("EPS"))
    return {"h": normed.flatten(-2) * operands.tensors["weight"]}


def conv_prefill(arena: Arena, kernel: Kernel, operands: Operands) -> dict[str, Tensor]:
    """silu of the causal conv over the chunk of a fresh slot."""
    first, channels, width = (kernel.constant(name) for name in ("CHANNEL0", "CHANNELS", "WIDTH"))
    raw = _rows(operands, "projected", arena)[:, first : first + channels]
    past = torch.cat([torch.zeros(width - 1, channels), raw])
    taps = operands.tensors["weight"]
    total = operands.tensors["bias"] + sum(taps[j] * past[j : j + len(raw)] for j in range(width))
    return {"activated": torch.nn.functional.silu(total)}


MEANINGS: Mapping[str, Meaning] = {
    "matmul": matmul,
    "draft_head": draft_head,
    "draft_head_int4": draft_head_int4,
    "gated_matmul": gated_matmul,
    "rms_norm": rms_norm,
    "gated_norm": gated_norm,
    "mamba2_conv_prefill": conv_prefill,
}


def distance(meant: Tensor, found: Tensor) -> float:
    """Largest error of the rows that have a meaning, of the largest of them, in units of what is tolerated."""
    found = found[: len(meant)]
    error = (found.float() - meant).abs().max() / meant.abs().max().clamp_min(1e-30)
    return float(error) / TOLERANCE[found.dtype]

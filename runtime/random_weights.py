"""Seeded random weights for a package: to try a spec, or measure its speed, before there are trained ones."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from runtime.layouts import TORCH_DTYPES
from runtime.plan import Plan, Source


def random_weights(plan: Plan, seed: int = 0) -> dict[str, Tensor]:
    """Every tensor of the weights file, in its dtype; activations stay near 1 and logits have a deviation near 2.

    Norms near 1; Mamba-2's A in [1, 16] and softplus(dt_bias) log-uniform in [1e-3, 1e-1], as arXiv 2405.21060 starts.
    """
    generator = torch.Generator().manual_seed(seed)
    sources = {source.tensor: source for buffer in plan.buffers.values() for source in buffer.sources}
    return {
        name: random_tensor(source, generator).to(TORCH_DTYPES[source.dtype])
        for name, source in sorted(sources.items())
    }


def random_tensor(source: Source, generator: torch.Generator) -> Tensor:
    """One tensor of the weights file, in fp32: what its name and shape say of its distribution."""
    uniform = torch.rand(source.shape, generator=generator)
    normal = torch.randn(source.shape, generator=generator)
    name = source.tensor
    if name.endswith("norm.weight"):
        return 0.5 + uniform
    if name.endswith(".A_log"):
        return torch.log(1 + 15 * uniform)
    if name.endswith(".dt_bias"):
        dt = torch.exp(math.log(1e-3) + uniform * math.log(100.0))
        return dt + torch.log(-torch.expm1(-dt))  # inverse of softplus
    if len(source.shape) == 1:
        return 0.5 * normal
    scale = 2.0 if name in ("embed.weight", "lm_head.weight") else 1.0
    return normal * (scale / math.sqrt(source.shape[1]))

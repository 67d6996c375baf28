"""The weights of a spec as tensors: what a file must hold, and random ones for tests."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dsl.spec import ModelSpec
from dsl.tensors import weight_shapes

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def expected_tensors(spec: ModelSpec) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Every weight of a spec in order: name -> (shape, dtype)."""
    return {name: (shape, DTYPES[dtype]) for name, (shape, dtype) in weight_shapes(spec).items()}


def random_weights(spec: ModelSpec, seed: int) -> dict[str, Tensor]:
    """Seeded weights in their stored dtypes, scaled so that activations stay near 1 and logits have a deviation near 2.

    A is uniform in [1, 16] and softplus(dt_bias) log-uniform in [1e-3, 1e-1], as Mamba-2 is initialised.
    """
    generator = torch.Generator().manual_seed(seed)
    return {name: _random(name, shape, generator).to(dtype) for name, (shape, dtype) in expected_tensors(spec).items()}


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    normal = torch.randn(shape, generator=generator)
    uniform = torch.rand(shape, generator=generator)
    if name.endswith("norm.weight"):
        return 0.5 + uniform
    if name.endswith(".A_log"):
        return torch.log(1 + 15 * uniform)
    if name.endswith(".dt_bias"):
        dt = torch.exp(math.log(1e-3) + uniform * math.log(100.0))
        return dt + torch.log(-torch.expm1(-dt))  # inverse of softplus
    if name.endswith((".D", ".bias")):
        return 0.5 * normal
    scale = 2.0 if name in ("embed.weight", "lm_head.weight") else 1.0
    return normal * (scale / math.sqrt(shape[1]))

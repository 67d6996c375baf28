"""The gated MLP."""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor


def gated_mlp(weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """down_proj(silu(gate_proj(x)) * up_proj(x)). x: [..., d] -> [..., d]. Source: arXiv 2002.05202 (SwiGLU)."""
    gate = F.linear(x, weights["gate_proj.weight"])
    up = F.linear(x, weights["up_proj.weight"])
    return F.linear(F.silu(gate) * up, weights["down_proj.weight"])

"""RMSNorm and the gated RMSNorm of Mamba-2."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm: x / sqrt(mean(x ** 2) + eps) * weight over the last dim. x: [..., d]; weight: [d].

    Source: arXiv 1910.07467.
    """
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def gated_rms_norm(y: Tensor, z: Tensor, weight: Tensor, eps: float, num_groups: int) -> Tensor:
    """RMSNorm(y * silu(z)) per group of channels, then weight. y, z: [..., di]; weight: [di]; groups are contiguous.

    Source: `MambaRMSNormGated` of transformers models/mamba2/modeling_mamba2.py (5.24), group size di / num_groups.
    """
    gated = y * F.silu(z)
    groups = torch.unflatten(gated, -1, (num_groups, -1))
    scale = torch.rsqrt(groups.square().mean(-1, keepdim=True) + eps)
    return (groups * scale).flatten(-2) * weight

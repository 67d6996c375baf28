"""Rotary position embedding over halves of the head."""

from __future__ import annotations

import torch
from torch import Tensor


def rope(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotate the pairs (x[i], x[i + D/2]) by position * theta ** (-2 i / D).

    x: [..., T, H, D], D even. positions: [T] integers. Angles are computed in fp64 and their cosine and sine rounded to
    the dtype of x. Source: arXiv 2104.09864, in the halves layout of transformers models/llama/modeling_llama.py.
    """
    half = x.shape[-1] // 2
    frequency = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = positions.to(torch.float64)[:, None, None] * frequency  # [T, 1, D/2]
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    x1, x2 = x[..., :half], x[..., half:]
    return torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], dim=-1)

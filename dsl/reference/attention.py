"""Causal grouped-query attention with rotary positions."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor

from dsl.reference.rope import rope
from dsl.spec import AttentionSpec


def project_qkv(
    mixer: AttentionSpec, weights: Mapping[str, Tensor], x: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of rows at `positions`, rotated.

    x: [B, T, d]. positions: [T]. Returns q [B, HQ, T, D], k and v [B, HKV, T, D].
    """
    q, k, v = (
        F.linear(x, weights[f"{name}_proj.weight"]).unflatten(-1, (-1, mixer.head_dim))  # [B, T, H, D]
        for name in ("q", "k", "v")
    )
    q, k = rope(q, positions, mixer.rope.theta), rope(k, positions, mixer.rope.theta)
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def attention(mixer: AttentionSpec, weights: Mapping[str, Tensor], x: Tensor, positions: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(D)) v over rows at or before each row. x: [B, T, d] -> [B, T, d].

    Query head h reads key/value head h // (HQ / HKV). Source: arXiv 1706.03762, arXiv 2305.13245.
    """
    q, k, v = project_qkv(mixer, weights, x, positions)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return F.linear(y.transpose(1, 2).flatten(-2), weights["o_proj.weight"])

"""The head of drafts in int8: what `mtp.draft_head: int8` means. Rows of both sides are rounded, sums are exact."""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = 127.0
SMALLEST = 1e-30  # of a row's largest value: a row of zeros has a scale, too


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of x [..., K] as whole numbers -127 .. 127 [..., K] and scales [..., 1], both fp32: x is about q * scale.

    scale = max |x| / 127; to the nearest step, halves up.
    """
    x = x.float()
    top = x.abs().amax(-1, keepdim=True).clamp_min(SMALLEST)
    inverse = torch.full_like(top, LARGEST) / top  # `LARGEST / top` would multiply by a rounded reciprocal
    return torch.floor(x * inverse + 0.5), top / LARGEST


def int8_head(normed: Tensor, head: Tensor) -> Tensor:
    """Logits [..., V] fp32 of rows [..., d] with a head [V, d], of any dtypes: (sum_k q_x q_w) * scale_x * scale_w."""
    values, scale = quantise_rows(normed)
    return int8_logits(values, scale, *quantise_rows(head))


def int8_logits(values: Tensor, scale: Tensor, head_values: Tensor, head_scale: Tensor) -> Tensor:
    """The same of quantised rows ([..., d], [..., 1]) and head ([V, d], [V, 1]). The sums, in fp64, are exact."""
    sums = values.double() @ head_values.double().mT
    return sums.float() * scale * head_scale.squeeze(-1)

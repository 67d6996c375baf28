"""Heads of drafts in whole numbers: what `mtp.draft_head: int8` and `int4` mean. Sums of products are exact."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from dsl.cost import INT4_GROUP

LARGEST = 127.0
SMALLEST = 1e-30  # of a row's largest value: a row of zeros has a scale, too
LARGEST_INT4, LARGEST_MULTIPLIER = 7.0, 63.0
WIDEST = 490.0  # scales that a row's largest value is wide: 63 steps of 7.8, which are cut to 7


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of x [..., K] as whole numbers -127 .. 127 [..., K] and scales [..., 1], both fp32: x is about q * scale.

    scale = max |x| / 127; to the nearest step, halves up.
    """
    x = x.float()
    top = x.abs().amax(-1, keepdim=True).clamp_min(SMALLEST)
    inverse = torch.full_like(top, LARGEST) / top  # `LARGEST / top` would multiply by a rounded reciprocal
    return torch.floor(x * inverse + 0.5), top / LARGEST


def quantise_groups(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of x [N, K] by groups of 64: values -7 .. 7 [N, K], multipliers 1 .. 63 [N, groups], scales [N, 1], fp32.

    x[n, k] is about q * m[n, k / 64] * scale. scale = max |x| / 490; m = 63 max |group| / max |x|, so that a group's
    largest value is 7.8 steps wide, or less; both m and q to the nearest, halves up, then cut to their range.
    """
    padded = F.pad(x.float(), (0, -x.shape[1] % INT4_GROUP)).view(x.shape[0], -1, INT4_GROUP)
    tops = padded.abs().amax(-1)
    top = tops.amax(-1, keepdim=True).clamp_min(SMALLEST)
    inverse = torch.full_like(top, LARGEST_MULTIPLIER) / top
    multipliers = torch.floor(tops * inverse + 0.5).clamp(1.0, LARGEST_MULTIPLIER)
    scale = top / WIDEST
    steps = padded / (multipliers * scale)[..., None]
    values = torch.floor(steps + 0.5).clamp(-LARGEST_INT4, LARGEST_INT4)
    return values.flatten(1)[:, : x.shape[1]], multipliers, scale


def int8_head(normed: Tensor, head: Tensor) -> Tensor:
    """Logits [..., V] fp32 of rows [..., d] with a head [V, d], of any dtypes: (sum_k q_x q_w) * scale_x * scale_w."""
    values, scale = quantise_rows(normed)
    return int8_logits(values, scale, *quantise_rows(head))


def int4_head(normed: Tensor, head: Tensor) -> Tensor:
    """The same with a head in groups: (sum_g m_g sum_{k in g} q_x q_w) * scale_x * scale_w. Rows are int8 as well."""
    values, scale = quantise_rows(normed)
    return int4_logits(values, scale, *quantise_groups(head))


def int8_logits(values: Tensor, scale: Tensor, head_values: Tensor, head_scale: Tensor) -> Tensor:
    """Logits of quantised rows ([..., d], [..., 1]) and head ([V, d], [V, 1]). The sums, in fp64, are exact."""
    sums = values.double() @ head_values.double().mT
    return sums.float() * scale * head_scale.squeeze(-1)


def int4_logits(values: Tensor, scale: Tensor, head_values: Tensor, multipliers: Tensor, head_scale: Tensor) -> Tensor:
    """The same of a head in groups: multipliers [V, groups]. Products of the two are whole numbers, too."""
    spread = multipliers.repeat_interleave(INT4_GROUP, dim=1)[:, : head_values.shape[1]]
    return int8_logits(values, scale, head_values * spread, head_scale)

"""Matrices in int8 with one scale per row: what the head of drafts is made of. See docs/drafting.md."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

LARGEST = 127.0
SMALLEST = 1e-30  # of a row's largest value: a row of zeros has a scale, too
ROWS_AT_ONCE = 4096  # of the copies in fp32 in between; a multiple of every panel's width


def quantised(matrix: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Blocks of rows of `matrix` [N, K], bf16 or fp32, in order: values [n, K] int8 and scales [n] fp32.

    W[n, k] is about values[n, k] * scales[n], scales[n] = max |W[n, :]| / 127, in steps rounded to the nearest, halves
    up. A row's values depend on that row alone.
    """
    for rows in matrix.split(ROWS_AT_ONCE):
        top = rows.abs().amax(-1, keepdim=True).float().clamp_min_(SMALLEST)  # [n, 1]
        inverse = torch.full_like(top, LARGEST) / top  # `LARGEST / top` would multiply by a rounded reciprocal
        steps = rows.float().mul_(inverse)
        yield steps.add_(0.5).floor_().to(torch.int8), (top / LARGEST).squeeze(-1)

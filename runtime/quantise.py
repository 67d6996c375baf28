"""Matrices in int8 and in int4: what the head of drafts is made of. See docs/drafting.md."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

LARGEST = 127.0
SMALLEST = 1e-30  # of a row's largest value: a row of zeros has a scale, too
INT4_GROUP = 64  # neighbours along a row that share a multiplier
LARGEST_INT4, LARGEST_MULTIPLIER = 7.0, 63.0
WIDEST = 490.0  # scales that a row's largest value is wide: 63 steps of 7.8, which are cut to 7
INT4_ZERO = 8  # what is added to a value, so that four bits hold it
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


def grouped(matrix: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The same in four bits: values -7 .. 7 [n, groups, 64] int8, multipliers 1 .. 63 [n, groups] uint8, scales [n].

    W[n, k] is about values * multipliers[n, k / 64] * scales[n]: scales[n] = max |W[n, :]| / 490, a multiplier is 63
    times its group's largest value by that of the row. Both are rounded to the nearest, halves up, and cut to their
    range. The last group is filled up with zeros.
    """
    for rows in matrix.split(ROWS_AT_ONCE):
        padded = F.pad(rows.float(), (0, -rows.shape[1] % INT4_GROUP)).unflatten(1, (-1, INT4_GROUP))
        tops = padded.abs().amax(-1)  # [n, groups]
        top = tops.amax(-1, keepdim=True).clamp_min_(SMALLEST)
        inverse = torch.full_like(top, LARGEST_MULTIPLIER) / top
        multipliers = tops.mul_(inverse).add_(0.5).floor_().clamp_(1.0, LARGEST_MULTIPLIER)
        scale = top / WIDEST
        steps = padded / (multipliers * scale)[..., None]
        values = steps.add_(0.5).floor_().clamp_(-LARGEST_INT4, LARGEST_INT4)
        yield values.to(torch.int8), multipliers.to(torch.uint8), scale.squeeze(-1)


def fill_int4_panels(out: Tensor, matrix: Tensor) -> None:
    """Write a matrix [N, K] into panels [panels, blocks, 2 + 64, BN] uint8, which hold zeros.

    A block of a panel holds two groups, 128 values along k, of BN rows: the rows' multipliers for either, then quads
    of bytes [16][BN][4], a byte being a value of the first group in its lower and of the second in its upper four
    bits, each 8 more than it is.
    """
    _, blocks, height, block_n = out.shape
    first = 0
    for values, multipliers, _ in grouped(matrix):
        count, groups = multipliers.shape
        padding = 2 * blocks - groups, -count % block_n
        codes = F.pad((values + INT4_ZERO).view(torch.uint8), (0, 0, 0, padding[0], 0, padding[1]))
        codes = codes.view(-1, block_n, blocks, 2, INT4_GROUP)
        into = out[first : first + len(codes)]
        into[:, :, :2] = (
            F.pad(multipliers, (0, padding[0], 0, padding[1])).view(-1, block_n, blocks, 2).permute(0, 2, 3, 1)
        )
        quads = (codes[..., 0, :] | codes[..., 1, :] << 4).unflatten(-1, (-1, 4))  # [panels, BN, blocks, 16, 4]
        into[:, :, 2:] = quads.permute(0, 2, 3, 1, 4).reshape(len(codes), blocks, height - 2, block_n)
        first += len(codes)

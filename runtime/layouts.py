"""Layouts of weights, tables and KV pages: from what is stored or meant to what the kernels read."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from runtime.plan import Buffer


def panel(sources: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
    """Stack `sources` [n_i, K] by rows, pad with zeros, and lay them out as `shape` = [panels, K_padded / 2, BN, 2].

    out[p, i, n, j] = W[p * BN + n, 2 * i + j], same dtype, contiguous. Source: docs/architecture.md.
    """
    panels, pairs, block_n, _ = shape
    rows, k = sum(source.shape[0] for source in sources), sources[0].shape[1]
    stacked = torch.zeros(panels * block_n, 2 * pairs, dtype=sources[0].dtype)
    stacked[:rows, :k] = torch.cat(list(sources))
    return stacked.view(panels, block_n, pairs, 2).permute(0, 2, 1, 3).contiguous()


def laid_out(buffer: Buffer, sources: Sequence[Tensor]) -> Tensor:
    """The contents of a weight buffer. Raises ValueError for a layout this runtime does not know."""
    if buffer.layout == "panel":
        return panel(sources, buffer.shape)
    if buffer.layout == "transposed":
        return sources[0].t().contiguous()
    if buffer.layout == "plain":
        return torch.cat(list(sources)) if len(sources) > 1 else sources[0]
    raise ValueError(f"buffer {buffer.name} has the unknown layout {buffer.layout}")


def rope_table(buffer: Buffer) -> Tensor:
    """cos or sin [positions, D / 2] fp32 of position * theta ** (-2 i / D), computed in fp64 and rounded once."""
    positions, half = buffer.shape
    exponents = torch.arange(half, dtype=torch.float64) * (-1.0 / half)
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * torch.pow(buffer.theta, exponents)[None, :]
    return (angles.cos() if buffer.fill == "rope_cos" else angles.sin()).to(torch.float32)


def _tiles(buffer: Buffer, pages: Tensor, page_size: int) -> Tensor:
    """A view of pages [..., BLOCK_D * page_size]: [..., BLOCK_D/2, page_size, 2] or [..., page_size/2, BLOCK_D, 2]."""
    if buffer.layout == "k_pages":
        return pages.unflatten(-1, (-1, page_size, 2))
    if buffer.layout == "v_pages":
        return pages.unflatten(-1, (page_size // 2, -1, 2))
    raise ValueError(f"buffer {buffer.name} has the layout {buffer.layout}, which is not one of KV pages")


def read_entries(buffer: Buffer, pages: Tensor, page_size: int) -> Tensor:
    """The KV entries of `pages` [n, kv_heads, BLOCK_D * page_size]: [n * page_size, kv_heads, BLOCK_D].

    Raises ValueError if the buffer holds no KV pages.
    """
    order = (0, 3, 1, 2, 4) if buffer.layout == "k_pages" else (0, 2, 4, 1, 3)
    entries = _tiles(buffer, pages, page_size).permute(order)
    return entries.reshape(-1, pages.shape[1], pages.shape[2] // page_size)


def clear_entries(buffer: Buffer, page: Tensor, first: int, page_size: int) -> None:
    """Zero the KV entries first .. page_size - 1 of one page [kv_heads, BLOCK_D * page_size], in place.

    0 <= first <= page_size. Raises ValueError if the buffer holds no KV pages.
    """
    tiles = _tiles(buffer, page, page_size)
    cleared = torch.arange(page_size, device=page.device) >= first
    shape = (page_size, 1) if buffer.layout == "k_pages" else (page_size // 2, 1, 2)
    tiles.masked_fill_(cleared.view(shape), 0)

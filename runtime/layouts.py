"""Layouts of weights, tables and KV pages: from what is stored or meant to what the kernels read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from runtime.coding import code_panels, rows_of
from runtime.plan import Buffer
from runtime.quantise import fill_int4_panels, grouped, quantised

LAYOUT_VERSION = 1  # of what `lay_out` writes: a change of its bytes for the same buffer counts it up
TORCH_DTYPES = {
    "uint8": torch.uint8,
    "int8": torch.int8,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "int32": torch.int32,
    "int64": torch.int64,
}
PAIR = 2
GROUP_DTYPES = {4: torch.int32, 8: torch.int64}  # neighbouring elements as one, by their bytes


def panel(sources: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
    """Stack `sources` [n_i, K] by rows, pad with zeros, and lay them out as `shape` = [panels, K_padded / G, BN, G].

    out[p, i, n, j] = W[p * BN + n, G * i + j], same dtype, contiguous; G is 2 of bf16, 4 of int8.
    """
    out = torch.zeros(tuple(shape), dtype=sources[0].dtype)
    _fill_panels(out, sources)
    return out


def _fill_panels(out: Tensor, sources: Iterable[Tensor]) -> None:
    """Write `panel` into zeros, without a copy in between; elements that lie in a group move as one."""
    _, _, block_n, group = out.shape
    whole = GROUP_DTYPES[group * out.element_size()]
    first = 0
    for given in sources:
        by_groups = given.shape[1] % group == 0 and given.dtype is out.dtype
        source, into = (_as_groups(given, whole, group), out.view(whole)) if by_groups else (given, out)
        rows = into.permute(0, 2, 1, 3)  # [panels, BN, K_padded / G, G or 1]
        for begin, end, panels, lanes in _runs(first, source.shape[0], block_n):
            part, of = rows[panels, lanes], source[begin:end]
            for lane in range(part.shape[3]):  # flattened, the last two dims would be a copy
                column = of[:, lane :: part.shape[3]]
                part[:, :, : column.shape[1], lane] = column.reshape(*part.shape[:2], column.shape[1])
        first += source.shape[0]


def _as_groups(source: Tensor, whole: torch.dtype, group: int) -> Tensor:
    """[n, K] as [n, K / group] of an integer type that is as wide as a group."""
    source = source.contiguous()
    return (source.clone() if source.storage_offset() % group else source).view(whole)


def _runs(first: int, count: int, block_n: int) -> Iterator[tuple[int, int, slice, slice]]:
    """(begin, end, panels, lanes) of `count` rows that go to rows `first ..`: whole panels at once, parts alone."""
    done = 0
    while done < count:
        panel, lane = divmod(first + done, block_n)
        whole = (count - done) // block_n if lane == 0 else 0
        size = whole * block_n or min(block_n - lane, count - done)
        lanes = slice(0, block_n) if whole else slice(lane, lane + size)
        yield done, done + size, slice(panel, panel + max(whole, 1)), lanes
        done += size


class LaidOut(Protocol):
    """What a layout depends on: of a buffer of this plan, or of one that is only lowered."""

    @property
    def name(self) -> str:
        """Of the buffer."""

    @property
    def shape(self) -> tuple[int, ...]:
        """As the kernels read it."""

    @property
    def dtype(self) -> str:
        """A key of TORCH_DTYPES."""

    @property
    def layout(self) -> str:
        """How the tensors it is made of lie in it."""


def lay_out(buffer: LaidOut, out: Tensor, sources: Sequence[Tensor], escapes: Tensor | None = None) -> None:
    """Write a weight buffer, which holds zeros. Raises ValueError for a layout this runtime does not know.

    escapes: the tensor of the buffer that belongs to coded weights, to be written with them; it holds zeros as well.
    """
    if buffer.layout == "panel":
        _fill_panels(out, sources)
    elif buffer.layout == "coded_panel":
        panels, height, _, block_n = out.shape
        code_panels(panel(sources, (panels, rows_of(height, block_n), block_n, PAIR)), out, escapes)
    elif buffer.layout == "coded_escapes":
        code_panels(panel(sources, (*out.shape, PAIR)), None, out)
    elif buffer.layout == "int8_panel":
        _fill_panels(out, (values for values, _ in quantised(sources[0])))
    elif buffer.layout == "int8_scale":
        torch.cat([scales for _, scales in quantised(sources[0])], out=out)
    elif buffer.layout == "int4_panel":
        fill_int4_panels(out, sources[0])
    elif buffer.layout == "int4_scale":
        torch.cat([scales for _, _, scales in grouped(sources[0])], out=out)
    elif buffer.layout == "transposed":
        out.copy_(sources[0].t())
    elif buffer.layout == "plain":
        first = 0
        for source in sources:
            out[first : first + source.shape[0]].copy_(source)
            first += source.shape[0]
    else:
        raise ValueError(f"buffer {buffer.name} has the unknown layout {buffer.layout}")


def laid_out(buffer: LaidOut, sources: Sequence[Tensor]) -> Tensor:
    """The contents of a weight buffer, in memory of their own. Raises ValueError as `lay_out` does."""
    out = torch.zeros(buffer.shape, dtype=TORCH_DTYPES[buffer.dtype])
    lay_out(buffer, out, sources)
    return out


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

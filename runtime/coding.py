"""bf16 matrices in 12 bits an element, without loss: what `coded_bf16` of runtime/cpu/functions.py decodes.

Of the 256 high bytes (sign, upper seven bits of the exponent) that a bf16 can have, few occur in a trained matrix:
sixteen cover all but one element in some thousand. Each panel has a codebook of its own sixteen, and a row of a panel
(a pair of k) that holds another one keeps its high bytes as they are. Any weights can be coded; only how many bytes a
step reads depends on them.

Panels of R rows, N columns and two elements each become [panels, H + R, 3, N] uint8, which a step reads from front to
back. Of each panel the first H rows hold the codebook and a byte per row that says whether it escapes; then a row has
its low bytes (2 N) and its codes (N). Beside that lie the escapes [panels, R, N]: the rest of rows that escape, else
zeros.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

CODES = 16
BYTES = 3  # of a pair of elements
HIGH_BYTES = 256
ELEMENTS_AT_A_TIME, MOST_THREADS = 1 << 20, 8  # temporary memory: about 20 bytes for each element, of each thread


def head_rows(rows: int, n: int) -> int:
    """H: rows that a codebook and the marks of `rows` rows take."""
    return -(-(CODES + rows) // (BYTES * n))


def rows_of(height: int, n: int) -> int:
    """R of a height H + R."""
    return (height * BYTES * n - CODES) // (BYTES * n + 1)


def code_panels(panels: Tensor, out: Tensor | None, escapes: Tensor | None) -> None:
    """Write panels [P, R, N, 2] bf16 into out [P, H + R, 3, N] and escapes [P, R, N], uint8, which hold zeros.

    Either may be None: nobody wants it.
    """
    _, rows, n, _ = panels.shape
    head = head_rows(rows, n)

    def write(part: slice) -> None:
        low, high = _bytes(panels[part])
        books = _codebooks(high)
        codes, escaped = _coded(high, books)
        if out is not None:
            heads, body = out[part, :head].view(-1, head * BYTES * n), out[part, head:].flatten(2)
            heads[:, :CODES], heads[:, CODES : CODES + rows] = books, escaped
            body[..., : 2 * n] = low
            body[..., 2 * n :] = torch.where(escaped[..., None], high[..., :n], codes[..., :n] | codes[..., n:] << 4)
        if escapes is not None:
            escapes[part][escaped] = high[..., n:][escaped]

    size = max(1, ELEMENTS_AT_A_TIME // panels[0].numel())
    parts = [slice(first, first + size) for first in range(0, panels.shape[0], size)]
    with ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), MOST_THREADS)) as pool:
        list(pool.map(write, parts))


def _bytes(panels: Tensor) -> tuple[Tensor, Tensor]:
    """Low and high bytes [P, R, 2 N]."""
    both = panels.contiguous().view(torch.uint8).unflatten(3, (2, 2)).flatten(2, 3)
    return both[..., 0], both[..., 1].contiguous()


def _codebooks(high: Tensor) -> Tensor:
    """[P, 16]: the most frequent high bytes of each panel, of equally frequent ones the smaller ones."""
    counts = torch.stack([torch.bincount(panel, minlength=HIGH_BYTES) for panel in high.flatten(1)])
    return counts.sort(dim=1, descending=True, stable=True).indices[:, :CODES].to(torch.uint8)


def _coded(high: Tensor, books: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers in the codebook [P, R, 2 N], and whether a row holds a high byte that is not in it [P, R]."""
    numbers = torch.arange(CODES, dtype=torch.uint8).expand(books.shape)
    codes = torch.full((books.shape[0], HIGH_BYTES), CODES, dtype=torch.uint8).scatter_(1, books.long(), numbers)
    coded = codes.gather(1, high.flatten(1).long()).view(high.shape)
    return coded, (coded == CODES).any(dim=2)

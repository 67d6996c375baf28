"""Zeroed host memory that takes room only where it is touched."""

from __future__ import annotations

import mmap
from contextlib import suppress

import torch
from torch import Tensor

HUGE_PAGE = 2 << 20
LEAST_MAPPED = 64 << 10  # smaller blocks come from the allocator: a mapping of their own would waste most of its page


def zeroed(size: int, huge: bool = False) -> Tensor:
    """uint8 [size] of zeros on the CPU, at the start of a page; freed with its last tensor.

    A page is resident once something is written to it. huge: in pages of 2 MiB where the system offers them, for what
    is written and read as a whole: a hundredth of the page faults, and few page borders. Raises MemoryError.
    """
    if size < LEAST_MAPPED:
        return torch.zeros(size, dtype=torch.uint8)
    huge = huge and size >= HUGE_PAGE
    try:
        block = mmap.mmap(-1, size + HUGE_PAGE * huge, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{size} bytes of memory cannot be mapped ({error.strerror})") from error
    if huge:
        with suppress(OSError):  # a kernel without huge pages: small ones do
            block.madvise(mmap.MADV_HUGEPAGE)
    start = -torch.frombuffer(block, dtype=torch.uint8).data_ptr() % HUGE_PAGE if huge else 0
    return torch.frombuffer(block, dtype=torch.uint8, count=size, offset=start)

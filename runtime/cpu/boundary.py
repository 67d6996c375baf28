"""What Triton does not look at before it launches, and C could not survive: grids, and where tensors live."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from .errors import BadGrid, TensorElsewhere

#: `tl.program_id` and `tl.num_programs` are i32.
LARGEST = (1 << 31) - 1
#: Check mode numbers the programs of a launch from 1 in 32 bits.
MOST_PROGRAMS = (1 << 32) - 1


def whole_grid(kernel: str, grid: tuple[Any, Any, Any]) -> tuple[int, int, int]:
    """The grid as Python integers; numpy's and torch's are taken as well. Raises BadGrid."""
    gx, gy, gz = grid
    if not type(gx) is type(gy) is type(gz) is int:  # every launch comes here
        try:
            gx, gy, gz = (operator.index(size) for size in grid)
        except TypeError as error:
            raise _bad_grid(kernel, grid) from error
    if 0 <= gx <= LARGEST and 0 <= gy <= LARGEST and 0 <= gz <= LARGEST and gx * gy * gz <= MOST_PROGRAMS:
        return gx, gy, gz
    raise _bad_grid(kernel, grid)


def _bad_grid(kernel: str, grid: tuple) -> BadGrid:
    return BadGrid(kernel=kernel, grid=grid, largest=LARGEST, most_programs=MOST_PROGRAMS)


def require_cpu(kernel: str, described: Iterable[tuple[str, Any]]) -> None:
    """Raise TensorElsewhere for the first (parameter, argument) that is a tensor of another device."""
    for parameter, argument in described:
        device = getattr(argument, "device", None)
        if getattr(device, "type", "cpu") != "cpu":
            raise TensorElsewhere(kernel=kernel, argument=parameter, device=device)

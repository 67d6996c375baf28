"""One element of a tensor on its way to memory."""

from __future__ import annotations

from ..ttir.ir import Op
from .checks import guarded
from .nest import NEVER, Index, Nest


def store_element(nest: Nest, op: Op, index: Index) -> list[str]:
    """Lines that store the element at `index`, which the nest evaluates: none where the mask is known to fail."""
    pointer, value, *rest = op.operands
    allowed = nest.mask(rest[0], index) if rest else None
    if allowed is NEVER:
        return []
    element, address = nest.at(value, index).code, nest.at(pointer, index).code
    condition = f"if ({allowed.code}) " if allowed is not None else ""
    return [condition + guarded(nest, op, index, f"*({address}) = {element};", element)]

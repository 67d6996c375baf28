"""How close to the fp32 reference a kernel has to be: at most twice as far as plain PyTorch in bf16, plus a floor.

The rule of FlashAttention's tests. Errors are the largest absolute ones; nothing else is loosened anywhere.
"""

from __future__ import annotations

from torch import Tensor

FACTOR = 2.0
FLOOR = 1e-3


def error(found: Tensor, reference: Tensor) -> float:
    """The largest absolute difference; nan and inf come out as they are."""
    return float((found.double() - reference.double()).abs().max()) if reference.numel() else 0.0


def allowed(plain: Tensor, reference: Tensor) -> float:
    """The largest error that passes. plain: the same values from PyTorch in bf16."""
    return FACTOR * error(plain, reference) + FLOOR

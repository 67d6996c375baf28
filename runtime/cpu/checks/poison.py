"""Memory marked as never written: a pattern in the memory itself, so that whatever writes it, torch too, unmarks it."""

from __future__ import annotations

import ctypes
from typing import Any

#: Every byte of poisoned memory; native/check.h looks for it.
BYTE = 0xA5
_poisoned: set[tuple[int, int]] = set()


def poison(tensor: Any) -> Any:
    """Fill a contiguous tensor with a pattern that checked loads report as UninitialisedRead; returns the tensor.

    One-byte types are filled, but not reported. Only tensors that were poisoned once are searched for the pattern."""
    if not tensor.is_contiguous():
        raise ValueError("only contiguous tensors can be poisoned")
    ctypes.memset(tensor.data_ptr(), BYTE, tensor.numel() * tensor.element_size())
    _poisoned.add((tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size()))
    return tensor


def holds_poison(low: int, high: int) -> bool:
    """Was any memory of [low, high) ever poisoned?"""
    return any(low < end and start < high for start, end in _poisoned)

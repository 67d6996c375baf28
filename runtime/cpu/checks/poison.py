"""Memory marked as never written: a pattern in the memory itself, so that whatever writes it, torch too, unmarks it."""

from __future__ import annotations

from typing import Any

from ..errors import BadArgument

#: Every two bytes of poisoned memory: a quiet NaN as f16, bf16, f32 and f64, a large number as an integer.
#: native/check.h looks for it.
PATTERN = 0x7FFD
_poisoned: set[tuple[int, int]] = set()


def poison(tensor: Any) -> Any:
    """Fill a CPU tensor (a view: its elements alone) with a pattern that checked loads report as UninitialisedRead.

    Returns the tensor. Only memory that was poisoned once is searched for the pattern. Raises BadArgument for types of
    one byte, of whose values none could not be data, and for what is no strided tensor on the CPU."""
    import torch

    if not isinstance(tensor, torch.Tensor) or not tensor.is_cpu or tensor.layout is not torch.strided:
        raise _refused(type(tensor).__name__ if not hasattr(tensor, "device") else f"a tensor on {tensor.device}")
    words = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    item = tensor.element_size()
    if item not in words:
        raise _refused(f"a tensor of {tensor.dtype}")
    sizes = [min(size, 1) if stride == 0 else size for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    elements = tensor.detach().as_strided(sizes, tensor.stride()).view(words[item])  # each of them once
    elements.fill_(int.from_bytes(PATTERN.to_bytes(2, "little") * (item // 2), "little"))
    if tensor.numel():
        reach = sum((size - 1) * stride for size, stride in zip(sizes, tensor.stride(), strict=True))
        _poisoned.add((tensor.data_ptr(), tensor.data_ptr() + (reach + 1) * item))
    return tensor


def _refused(value: str) -> BadArgument:
    allowed = "a CPU tensor whose elements have 2, 4 or 8 bytes; any value of a single byte may be data"
    return BadArgument(function="poison", argument="tensor", value=value, allowed=allowed)


def holds_poison(low: int, high: int) -> bool:
    """Was any memory of [low, high) ever poisoned?"""
    return any(low < end and start < high for start, end in _poisoned)

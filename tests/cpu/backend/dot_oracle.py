"""The accumulation order of bf16 dots, written down independently: scalar FMAs on numpy, one k pair after the other."""

from __future__ import annotations

import numpy as np
import torch


def flush(x: np.ndarray) -> np.ndarray:
    """Denormals to zero, sign kept."""
    bits = x.astype(np.float32).view(np.uint32)
    return np.where(bits & 0x7F800000, bits, bits & 0x80000000).astype(np.uint32).view(np.float32)


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Correctly rounded f32 a*b + c. The product of bf16 numbers is exact in f64; the sum is rounded to odd in f64
    first, so rounding it to f32 rounds once."""
    with np.errstate(all="ignore"):
        product = a.astype(np.float64) * b.astype(np.float64)
        wide_c = c.astype(np.float64)
        total = product + wide_c
        # two-sum: the exact error of the addition
        virtual = total - product
        error = (product - (total - virtual)) + (wide_c - virtual)
        bits = total.view(np.int64)
        away = (error != 0) & np.isfinite(total) & np.isfinite(error)
        grows = (error > 0) == (total > 0)
        truncated = np.where(away & ~grows, bits - 1, bits)
        odd = np.where(away, truncated | 1, bits).view(np.float64)
        return odd.astype(np.float32)


def dot(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """c[M, N] + a[M, K] @ b[K, N]; a, b bf16, c f32. An odd K is padded with zero."""
    x, y = flush(a.float().numpy()), flush(b.float().numpy())
    if x.shape[1] % 2:
        x, y = np.pad(x, ((0, 0), (0, 1))), np.pad(y, ((0, 1), (0, 0)))
    total = flush(c.numpy())
    for k in range(0, x.shape[1], 2):
        for half in (k + 1, k):
            total = flush(fma(x[:, half, None], y[None, half, :], total))
    return torch.from_numpy(total)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bit for bit; NaNs of any payload are equal."""
    return bool(((a.view(torch.int32) == b.view(torch.int32)) | (a.isnan() & b.isnan())).all())

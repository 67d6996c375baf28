"""Running error analysis: every number the oracle computes carries a bound on how far the backend may be from it.

`Value.error` is absolute, one f64 per element:

* 0: the result is determined: the bits must be equal, the sign of a zero too (any NaN equals any other);
* a positive number: |result - data| <= error;
* infinity: nothing is claimed (the comparison of two numbers that differ by less than their errors, an overflow that an
  error decides, what a masked-off lane without `other` loads).

An operation that IEEE 754 defines, on operands without error, has none. Otherwise its error is what the operands'
errors become (`carried`, from the derivative) and two roundings, the backend's and the oracle's own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.cpu.fuzz.dtypes import BF16, F16, F64, DType

#: Error of an elementary function, in units in the last place: docs/cpu-backend.md says below 2.5 for the backend's own
#: and glibc's manual at most 2 for libm's; half a unit more for rounding the oracle's value.
FUNCTION_ULPS = 3.0
#: What tells +0 from -0 apart is less than this. IEEE leaves the sign open where +0 and -0 meet in a minimum.
EITHER_ZERO = 5e-324
#: Slack for the roundings of the bounds themselves, which are computed in f64.
SLACK = 1 + 2.0**-40


@dataclass
class Value:
    """A tensor (or a scalar, shape ()) as the oracle knows it."""

    data: np.ndarray
    error: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape


def exact(data: np.ndarray) -> Value:
    return Value(np.asarray(data), np.zeros(np.shape(data)))


def known(value: Value) -> np.ndarray:
    """Where something is claimed about the value."""
    return np.isfinite(value.error)


def round_to(dtype: DType, data: np.ndarray) -> np.ndarray:
    """f32, f64 or long double to the storage of `dtype`, to nearest even, once."""
    with np.errstate(all="ignore"):
        if dtype is BF16:
            return _round_bf16(np.asarray(data))
        if dtype is F16 and np.asarray(data).dtype != np.float32:
            return np.asarray(data, np.float64).astype(np.float16)
        return np.asarray(data).astype(dtype.storage)


def _round_bf16(data: np.ndarray) -> np.ndarray:
    wide = data.astype(np.float64)
    narrow = to_odd_f32(wide)
    bits = narrow.view(np.uint32)
    rounded = ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)) << np.uint32(16)
    return np.where(np.isnan(wide), np.float32(np.nan), rounded.astype(np.uint32).view(np.float32)).astype(np.float32)


def to_odd_f32(wide: np.ndarray) -> np.ndarray:
    """f64 to f32 with the last bit set if inexact: rounding that to a narrower type rounds the f64 once."""
    near = np.asarray(wide.astype(np.float32))
    back = near.astype(np.float64)
    bits = near.view(np.uint32)
    cut = np.where(np.abs(back) > np.abs(wide), bits - np.uint32(1), bits)
    inexact = (back != wide) & np.isfinite(wide)
    return np.where(inexact, cut | np.uint32(1), bits).astype(np.uint32).view(np.float32)


def to_odd_f64(wide: np.ndarray, error: np.ndarray) -> np.ndarray:
    """f64 `wide` plus a tiny `error` of which only the sign matters, rounded to odd (see `to_odd_f32`)."""
    bits = np.asarray(wide).view(np.int64)
    inexact = (error != 0) & np.isfinite(wide) & np.isfinite(error)
    cut = np.where((error > 0) == (wide > 0), bits, bits - 1)
    return np.where(inexact, cut | 1, bits).view(np.float64)


def spacing(dtype: DType, data: np.ndarray) -> np.ndarray:
    """Distance of neighbouring numbers of `dtype` at |data|, as f64."""
    with np.errstate(all="ignore"):
        _, exponent = np.frexp(np.abs(data.astype(np.longdouble)))
        return np.maximum(np.ldexp(np.float64(1), exponent - dtype.precision), dtype.step)


def two_roundings(dtype: DType, data: np.ndarray, carried: np.ndarray) -> np.ndarray:
    """Error of a result whose operands carry errors: `carried` and the rounding of the result on both sides.

    Nothing is claimed of results that are not finite, or that the error may take beyond the largest number."""
    with np.errstate(all="ignore"):
        size = np.abs(data.astype(np.float64))
        total = (carried + 2 * dtype.unit * (size + carried) + 2 * dtype.step) * SLACK
        return np.where((size + total < dtype.largest) & (carried < np.inf), total, np.inf)


def arithmetic(dtype: DType, raw: np.ndarray, carried: np.ndarray) -> Value:
    """Result of an operation that IEEE 754 rounds correctly, computed as `raw` in the type the backend computes in."""
    data = round_to(dtype, raw)
    carried = np.where(np.isnan(carried), np.inf, carried)
    return Value(data, np.where(carried == 0, 0.0, two_roundings(dtype, data, carried)))


def elementary(dtype: DType, wide: np.ndarray, carried: np.ndarray, ulps: float = FUNCTION_ULPS) -> Value:
    """Result of an elementary function, `wide` in `dtype.exact`. Special values of determined operands are exact."""
    with np.errstate(all="ignore"):
        data = round_to(dtype, wide)
        size = np.abs(wide.astype(np.longdouble))
        own = ulps * spacing(dtype, np.minimum(size, dtype.largest))
        total = (np.where(np.isnan(carried), np.inf, carried) * (1 + 2 * dtype.unit) + own) * SLACK
        special = (size == np.inf) | np.isnan(wide)
        beyond = (size + total > dtype.largest) & ~special
        far_beyond = beyond & (size > dtype.largest * (1 + 4 * ulps * dtype.unit)) & (carried == 0)
        total = np.where(beyond, np.inf, total)
        total = np.where(far_beyond, 0.0, total)
        return Value(data, np.where(special, np.where(carried == 0, 0.0, np.inf), total))


def growth(dtype: DType, roundings: np.ndarray | float) -> np.ndarray:
    """m u / (1 - m u): how m roundings in a row grow; nothing is claimed where it is not small."""
    many = np.asarray(roundings, np.float64) * dtype.unit
    return np.where(many < 0.25, many / (1 - np.minimum(many, 0.25)), np.inf)


def shares(dtype: DType, got: np.ndarray, want: Value) -> np.ndarray:
    """Per element: the error as a share of its bound; 0 where equal, infinity where different without a bound,
    NaN where nothing is claimed. `got` has the storage of `dtype`."""
    with np.errstate(all="ignore"):
        if not dtype.is_float:
            share = np.where(got == want.data, 0.0, np.inf)
        else:
            same = (got == want.data) & (np.signbit(got) == np.signbit(want.data))
            same |= np.isnan(got) & np.isnan(want.data)
            wide = np.longdouble if dtype is F64 else np.float64
            distance = np.abs(got.astype(wide) - want.data.astype(wide)).astype(np.float64)
            share = np.where(want.error > 0, distance / want.error, np.inf)
            share = np.where(same, 0.0, np.where(np.isnan(share), np.inf, share))
            share = np.where((want.error > 0) & (got == want.data), 0.0, share)
    return np.where(np.isfinite(want.error), share, np.nan)

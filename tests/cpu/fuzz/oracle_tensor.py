"""What operations on whole tensors mean: shapes, reductions, scans, dot, gather, sort, histogram.

Bounds of sums. Any order of adding numbers with m roundings on the longest path errs by at most m u sum|x| / (1 - m u)
(Higham, Accuracy and Stability of Numerical Algorithms, 4.2); m = n - 1 covers every order. A dot of length K errs by
(K + 1) u (|acc| + |a| |b|) in the same way. Where partial sums could overflow, nothing is claimed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.cpu.fuzz.bounds import EITHER_ZERO, SLACK, Value, growth, round_to, two_roundings
from tests.cpu.fuzz.dtypes import BF16, F16, F32, I32, DType
from tests.cpu.fuzz.oracle_elementwise import ELEMENTWISE

# ---- shapes


def _both(value: Value, change: Any) -> Value:
    return Value(change(value.data), change(value.error))


def reshape(value: Value, shape: tuple[int, ...]) -> Value:
    return _both(value, lambda a: a.reshape(shape))


def transpose(value: Value, order: tuple[int, ...]) -> Value:
    return _both(value, lambda a: a.transpose(order))


def expand_dims(value: Value, axis: int) -> Value:
    return _both(value, lambda a: np.expand_dims(a, axis))


def broadcast(value: Value, shape: tuple[int, ...]) -> Value:
    return _both(value, lambda a: np.broadcast_to(a, shape))


def flip(value: Value, axis: int) -> Value:
    return _both(value, lambda a: np.flip(a, axis))


def join(a: Value, b: Value) -> Value:
    return Value(np.stack([a.data, b.data], -1), np.stack([a.error, b.error], -1))


def split(value: Value) -> tuple[Value, Value]:
    return _both(value, lambda a: a[..., 0]), _both(value, lambda a: a[..., 1])


def cat(a: Value, b: Value) -> Value:
    return Value(np.concatenate([a.data, b.data]), np.concatenate([a.error, b.error]))


def gather(value: Value, index: Value, axis: int) -> Value:
    at = index.data.astype(np.int64)
    return _both(value, lambda a: np.take_along_axis(a, at, axis))


def sort(value: Value, descending: bool) -> Value:
    """Ascending along the last dimension. Only for determined values without NaN; +0 and -0 may come in any order."""
    data = np.sort(value.data, -1)
    if descending:
        data = np.flip(data, -1)
    floats = data.dtype.kind == "f"
    zero = (data == 0) if floats else np.zeros(data.shape, bool)
    unknown = (value.error > 0).any(-1, keepdims=True)
    if floats:
        unknown = unknown | np.isnan(data).any(-1, keepdims=True)
    return Value(data, np.where(unknown, np.inf, np.where(zero, EITHER_ZERO, 0.0)))


def histogram(value: Value, bins: int, mask: Value | None) -> Value:
    picked = value.data if mask is None else value.data[mask.data]
    counts = np.bincount(picked.astype(np.int64), minlength=bins).astype(I32.storage)
    return Value(counts, np.full(bins, _any_unknown(value, *([mask] if mask else []))))


def _any_unknown(*values: Value) -> float:
    return 0.0 if all((value.error == 0).all() for value in values) else np.inf


# ---- sums


def _sum_error(dtype: DType, total: np.ndarray, sizes: np.ndarray, errors: np.ndarray, roundings: Any) -> np.ndarray:
    """`roundings` on the longest path; `sizes` is the sum of |x| and `errors` that of the errors."""
    grown = np.where(sizes + errors > 0, growth(dtype, roundings) * (sizes + errors), 0)
    bound = (errors + grown + roundings * dtype.step) * SLACK
    size = np.nan_to_num(np.abs(total.astype(np.float64)), nan=0.0, posinf=0.0)
    bound = bound + np.where(bound > 0, 2 * dtype.unit * (size + bound) + dtype.step, 0)
    return np.where(sizes + bound < dtype.largest, bound, np.inf)


def _parts(dtype: DType, value: Value) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Wide values, their sizes (0 where not finite) and whether they are finite."""
    wide = value.data.astype(dtype.exact)
    finite = np.isfinite(wide)
    return wide, np.where(finite, np.abs(wide), 0).astype(np.float64), finite


def _special_sums(total: np.ndarray, finite: np.ndarray, errors: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """Sums over infinities and NaNs are determined unless finite partial sums may overflow or an error is involved."""
    return np.where(finite, bound, np.where((bound < np.inf) & (errors == 0), 0.0, np.inf))


def float_sum(dtype: DType, value: Value, axis: int) -> Value:
    if value.shape[axis] == 1:  # a copy: numpy's sum turns -0 into 0
        return _both(value, lambda a: a.take(0, axis))
    wide, sizes, finite = _parts(dtype, value)
    total, errors = wide.sum(axis), value.error.sum(axis)
    bound = _sum_error(dtype, total, sizes.sum(axis), errors, value.shape[axis] - 1)
    bound = _special_sums(total, finite.all(axis), errors, bound)
    return Value(round_to(dtype, total), bound)


def float_cumsum(dtype: DType, value: Value, axis: int) -> Value:
    wide, sizes, finite = _parts(dtype, value)
    total, errors = wide.cumsum(axis), value.error.cumsum(axis)
    steps = np.arange(value.shape[axis]).reshape([-1 if d == axis else 1 for d in range(wide.ndim)])
    bound = _sum_error(dtype, total, sizes.cumsum(axis), errors, steps)
    bound = _special_sums(total, np.logical_and.accumulate(finite, axis), errors, bound)
    return Value(round_to(dtype, total), bound)


# ---- reductions and scans

_INTEGER_REDUCTIONS = {"sum": np.add, "prod": np.multiply, "xor": np.bitwise_xor, "or": np.bitwise_or}


def reduce(kind: str, dtype: DType, value: Value, axis: int) -> Value:
    """`value` has the type `dtype` in which the reduction runs. kind: sum, prod (integers), max, min, xor, or."""
    if kind == "sum" and dtype.is_float:
        return float_sum(dtype, value, axis)
    if kind in ("max", "min"):
        return _extreme(kind, dtype, value, axis)
    data = _INTEGER_REDUCTIONS[kind].reduce(value.data, axis, dtype=dtype.storage)
    return Value(data, value.error.max(axis))


def _extreme(kind: str, dtype: DType, value: Value, axis: int) -> Value:
    """NaNs are ignored unless there is nothing else."""
    rule = ELEMENTWISE["maximum" if kind == "max" else "minimum"]
    parts = [
        Value(d, e) for d, e in zip(np.moveaxis(value.data, axis, 0), np.moveaxis(value.error, axis, 0), strict=True)
    ]
    result = parts[0]
    for part in parts[1:]:
        result = rule(dtype, result, part)
    return result


def extreme_index(kind: str, value: Value, axis: int) -> Value:
    """Index of the first maximum or minimum; only for determined values without NaN."""
    picked = (np.argmax if kind == "argmax" else np.argmin)(value.data, axis)
    unknown = (value.error > 0).any(axis)
    if value.data.dtype.kind == "f":
        unknown |= np.isnan(value.data).any(axis)
    return Value(picked.astype(np.int32), np.where(unknown, np.inf, 0.0))


def scan(kind: str, dtype: DType, value: Value, axis: int, reverse: bool) -> Value:
    """kind: sum, prod (integers), max."""
    if reverse:
        return flip(scan(kind, dtype, flip(value, axis), axis, False), axis)
    if kind == "sum" and dtype.is_float:
        return float_cumsum(dtype, value, axis)
    error = np.maximum.accumulate(value.error, axis)
    if kind == "max":
        return _running_maximum(dtype, value, axis)
    operation = np.add if kind == "sum" else np.multiply
    return Value(operation.accumulate(value.data, axis, dtype=dtype.storage), error)


def _running_maximum(dtype: DType, value: Value, axis: int) -> Value:
    data, error = np.moveaxis(value.data, axis, 0).copy(), np.moveaxis(value.error, axis, 0).copy()
    for k in range(1, len(data)):
        result = ELEMENTWISE["maximum"](dtype, Value(data[k - 1], error[k - 1]), Value(data[k], error[k]))
        data[k], error[k] = result.data, result.error
    return Value(np.moveaxis(data, 0, axis), np.moveaxis(error, 0, axis))


def affine_scan(dtype: DType, decay: Value, value: Value, axis: int, reverse: bool) -> Value:
    """h[t] = decay[t] h[t - 1] + value[t] of integers, which wrap."""
    if reverse:
        return flip(affine_scan(dtype, flip(decay, axis), flip(value, axis), axis, False), axis)
    a, x = np.moveaxis(decay.data, axis, 0), np.moveaxis(value.data, axis, 0).copy()
    for t in range(1, len(x)):
        x[t] = x[t - 1] * a[t] + x[t]
    error = np.maximum.accumulate(np.maximum(decay.error, value.error), axis)
    return Value(np.moveaxis(x, 0, axis), error)


# ---- dot


def dot(source: DType, target: DType, a: Value, b: Value, acc: Value | None) -> Value:
    """acc + a @ b; operands `source`, result `target`."""
    if source.is_int:
        wide = np.matmul(a.data.astype(np.int64), b.data.astype(np.int64))
        total = wide + (acc.data if acc else 0)
        return Value(total.astype(target.storage), np.where(_dot_unknown(a, b, acc), np.inf, 0.0))
    x, y = a.data.astype(target.exact), b.data.astype(target.exact)
    total = np.matmul(x, y) + (acc.data.astype(target.exact) if acc else 0)
    size_a, size_b = np.abs(x).astype(np.float64), np.abs(y).astype(np.float64)
    sizes = np.matmul(size_a, size_b) + (np.abs(acc.data.astype(np.float64)) if acc else 0)
    errors = np.matmul(size_a, b.error) + np.matmul(a.error, size_b) + np.matmul(a.error, b.error)
    errors = errors + (acc.error if acc else 0)
    unknown = _dot_unknown(a, b, acc)
    errors = np.where(unknown, np.inf, np.nan_to_num(errors, nan=0.0))
    depth = x.shape[-1]
    inner = F32 if target is F16 else target
    bound = _sum_error(inner, total, np.nan_to_num(sizes, nan=0.0, posinf=0.0), errors, depth + 1)
    if source is BF16:  # denormal operands and results are flushed to zero
        bound = bound + 2.0**-126 * (size_a.sum(-1, keepdims=True) + size_b.sum(-2, keepdims=True) + 2 * depth + 2)
    data = round_to(target, total)
    if target is F16:  # rounded once more at the end
        bound = np.where(bound < np.inf, two_roundings(F16, data, bound), np.inf)
        bound = np.where(np.isinf(data) & (np.abs(total) > 65600) & (errors == 0) & np.isfinite(total), 0.0, bound)
    finite = np.isfinite(sizes)
    if source is BF16:  # an infinity times a denormal is an infinity, or NaN once that is flushed
        unknown = unknown | (_denormal(x).any(-1)[..., :, None] | _denormal(y).any(-2)[..., None, :])
    return Value(data, np.where(finite, bound, np.where(unknown | (errors > 0), np.inf, _special_dot(x, y, acc))))


def _denormal(x: np.ndarray) -> np.ndarray:
    return (x != 0) & (np.abs(x) < 2.0**-126)


def _special_dot(x: np.ndarray, y: np.ndarray, acc: Value | None) -> np.ndarray:
    """0 where a result over infinities or NaNs is determined: no finite partial sum may overflow."""
    finite_x, finite_y = np.where(np.isfinite(x), np.abs(x), 0), np.where(np.isfinite(y), np.abs(y), 0)
    sizes = np.matmul(finite_x, finite_y).astype(np.float64)
    return np.where(sizes < 1e30, 0.0, np.inf)


def _dot_unknown(a: Value, b: Value, acc: Value | None) -> np.ndarray:
    rows, columns = np.isinf(a.error).any(-1), np.isinf(b.error).any(-2)
    unknown = rows[..., :, None] | columns[..., None, :]
    return unknown | np.isinf(acc.error) if acc else unknown

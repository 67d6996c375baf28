"""What elementwise operations mean, in numpy: exactly where IEEE 754 or integers define it, else with an error bound.

`ELEMENTWISE[op](dtype, *values)` computes on values that already have the type `dtype` in which Triton computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tests.cpu.fuzz.bounds import (
    EITHER_ZERO,
    Value,
    arithmetic,
    elementary,
    exact,
    known,
    round_to,
    to_odd_f64,
    two_roundings,
)
from tests.cpu.fuzz.dtypes import BF16, BOOL, F16, F64, DType
from tests.cpu.fuzz.versions import MINUS_SUBTRACTS, holds

Rule = Callable[..., Value]
ELEMENTWISE: dict[str, Rule] = {}


def _worst(*values: Value) -> np.ndarray:
    return np.maximum.reduce(np.broadcast_arrays(*(value.error for value in values)))


def _certain(data: np.ndarray, certain: np.ndarray) -> Value:
    """A value that is exactly `data` where `certain`, and unknown elsewhere."""
    return Value(np.asarray(data), np.where(certain, 0.0, np.inf))


# ---- float arithmetic


def _compute(dtype: DType, *values: Value) -> list[np.ndarray]:
    return [value.data.astype(dtype.compute) for value in values]


def _wide(dtype: DType, *values: Value) -> list[np.ndarray]:
    return [value.data.astype(dtype.exact) for value in values]


def _sizes(*values: Value) -> list[np.ndarray]:
    return [np.abs(value.data.astype(np.float64)) for value in values]


def _product_error(a: Value, b: Value) -> np.ndarray:
    """|a'b' - ab|. An operand without error takes part even where the other is infinite."""
    size_a, size_b = _sizes(a, b)
    both = np.where(b.error > 0, size_a * b.error, 0) + np.where(a.error > 0, size_b * a.error, 0)
    return both + np.where((a.error > 0) & (b.error > 0), a.error * b.error, 0)


def _add(dtype: DType, a: Value, b: Value) -> Value:
    x, y = _compute(dtype, a, b)
    return arithmetic(dtype, x + y, a.error + b.error)


def _sub(dtype: DType, a: Value, b: Value) -> Value:
    x, y = _compute(dtype, a, b)
    return arithmetic(dtype, x - y, a.error + b.error)


def _mul(dtype: DType, a: Value, b: Value) -> Value:
    x, y = _compute(dtype, a, b)
    return arithmetic(dtype, x * y, _product_error(a, b))


def _div(dtype: DType, a: Value, b: Value) -> Value:
    x, y = _compute(dtype, a, b)
    quotient, divisor = np.abs((x / y).astype(np.float64)), np.abs(y.astype(np.float64))
    safe = divisor > b.error
    carried = (a.error + np.where(b.error > 0, quotient * b.error, 0)) / np.where(safe, divisor - b.error, 1)
    return arithmetic(dtype, x / y, np.where(_worst(a, b) == 0, 0.0, np.where(safe, carried, np.inf)))


def _fmod(dtype: DType, a: Value, b: Value) -> Value:
    x, y = _compute(dtype, a, b)
    return _certain(round_to(dtype, np.fmod(x, y)), _worst(a, b) == 0)


def _neg(dtype: DType, a: Value) -> Value:
    """Where Triton's minus is 0 - x, minus zero is plus zero."""
    if not dtype.is_float:
        return _wrapped(np.subtract, dtype, None, a)
    return _sub(dtype, exact(np.zeros((), dtype.storage)), a) if holds(MINUS_SUBTRACTS) else Value(-a.data, a.error)


def _abs(dtype: DType, a: Value) -> Value:
    return Value(np.abs(a.data), a.error)


def _fma(dtype: DType, a: Value, b: Value, c: Value) -> Value:
    carried = _product_error(a, b) + c.error
    x, y, z = _wide(dtype, a, b, c)
    product, total = x * y, x * y + z
    if dtype is F64:  # long double holds neither the product nor the sum exactly
        own = (np.abs(product) + np.abs(total)).astype(np.float64) * 2.0**-62
        finite = np.isfinite(total)
        data = round_to(dtype, total)
        return Value(data, np.where(finite, two_roundings(dtype, data, carried + own), carried))
    virtual = total - product
    error = (product - (total - virtual)) + (z - virtual)
    return arithmetic(dtype, to_odd_f64(total, error), carried)


def _sqrt(dtype: DType, a: Value) -> Value:
    (x,) = _compute(dtype, a)
    carried = np.where(x.astype(np.float64) > a.error, a.error / np.sqrt(x.astype(np.float64)), np.inf)
    return arithmetic(dtype, np.sqrt(x), np.where(a.error == 0, 0.0, carried))


# ---- rounding to integers


def _half_away(x: np.ndarray) -> np.ndarray:
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


def _to_integer(function: Callable[[np.ndarray], np.ndarray]) -> Rule:
    def rule(dtype: DType, a: Value) -> Value:
        (x,) = _wide(dtype, a)
        low, high = function(x - a.error), function(x + a.error)
        # an error may also take -0.3 to 0.3: the sign of the zero is open then
        settled = (a.error == 0) | ((low == high) & (np.signbit(low) == np.signbit(high)))
        return _certain(round_to(dtype, function(x)), settled)

    return rule


# ---- minimum and maximum


def _pick(larger: bool, propagate: bool) -> Rule:
    def rule(dtype: DType, a: Value, b: Value) -> Value:
        choose = np.maximum if larger else np.minimum
        if not dtype.is_float:
            return Value(choose(a.data, b.data), _worst(a, b))
        data = choose(a.data, b.data)
        if not propagate:  # not numpy's fmax: with a signalling NaN that gives NaN
            data = np.where(np.isnan(a.data), b.data, np.where(np.isnan(b.data), a.data, data))
        zeros = (a.data == 0) & (b.data == 0) & (np.signbit(a.data) != np.signbit(b.data))
        return Value(data, np.maximum(_worst(a, b), np.where(zeros, EITHER_ZERO, 0.0)))

    return rule


def _clamp(dtype: DType, x: Value, low: Value, high: Value) -> Value:
    """A NaN gives the lower bound."""
    return _pick(False, False)(dtype, _pick(True, False)(dtype, x, low), high)


# ---- elementary functions: (function, bound on |f(x') - f(x)| given x, f(x), error)

_erf = np.vectorize(math.erf, otypes=[np.float64])
Slope = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def _function(function: Callable[[np.ndarray], np.ndarray], carried: Slope, ulps: float | None = None) -> Rule:
    def rule(dtype: DType, a: Value) -> Value:
        (x,) = _wide(dtype, a)
        y = np.asarray(function(x))
        moved = np.where(a.error == 0, 0.0, carried(x, y, a.error).astype(np.float64))
        return elementary(dtype, y, moved) if ulps is None else elementary(dtype, y, moved, ulps)

    return rule


def _inverse_root(x: np.ndarray) -> np.ndarray:
    return 1 / np.sqrt(x)


def _logarithm(unit: float) -> Slope:
    return lambda x, y, e: np.where(x > e, -np.log1p(-np.where(x > e, e / x, 0)) * unit, np.inf)


FUNCTIONS: dict[str, Rule] = {
    "exp": _function(np.exp, lambda x, y, e: y * np.expm1(e)),
    "exp2": _function(np.exp2, lambda x, y, e: y * np.expm1(e * math.log(2))),
    "log": _function(np.log, _logarithm(1.0)),
    "log2": _function(np.log2, _logarithm(1 / math.log(2))),
    "log1p": _function(np.log1p, lambda x, y, e: _logarithm(1.0)(1 + x, y, e)),
    "expm1": _function(np.expm1, lambda x, y, e: np.exp(x) * np.expm1(e)),
    "sin": _function(np.sin, lambda x, y, e: e),
    "cos": _function(np.cos, lambda x, y, e: e),
    "tanh": _function(np.tanh, lambda x, y, e: e),
    "erf": _function(_erf, lambda x, y, e: 1.13 * e),
    "rsqrt": _function(_inverse_root, lambda x, y, e: np.where(x > e, y * e / np.where(x > e, x - e, 1), np.inf)),
}

# ---- integers


def _wrapped(operation: np.ufunc, dtype: DType, a: Value | None, b: Value) -> Value:
    left = exact(np.zeros((), dtype.storage)) if a is None else a
    return Value(operation(left.data, b.data, dtype=dtype.storage), _worst(left, b))


def _arithmetic(name: str, operation: np.ufunc, floats: Rule) -> None:
    ELEMENTWISE[name] = lambda t, a, b: floats(t, a, b) if t.is_float else _wrapped(operation, t, a, b)


class Undefined(Exception):
    """The program does something that C, LLVM or Triton leave undefined: a fault of the generator."""


def _quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Truncated towards zero."""
    if (b == 0).any() or (b.dtype.kind == "i" and (b == -1).any()):
        raise Undefined("division by 0 or -1")
    floor = a // b
    return floor + ((a % b != 0) & ((a < 0) != (b < 0))).astype(a.dtype)


def _idiv(dtype: DType, a: Value, b: Value) -> Value:
    return Value(_quotient(a.data, b.data), _worst(a, b))


def _irem(dtype: DType, a: Value, b: Value) -> Value:
    return Value(a.data - _quotient(a.data, b.data) * b.data, _worst(a, b))


def _high_half(dtype: DType, a: Value, b: Value) -> Value:
    product = a.data.astype(object) * b.data.astype(object)
    return Value(np.asarray(product >> dtype.bits, dtype=object).astype(dtype.storage), _worst(a, b))


def _invert(dtype: DType, a: Value) -> Value:
    return Value(~a.data, a.error)


def _shift(operation: np.ufunc) -> Rule:
    def rule(dtype: DType, a: Value, b: Value) -> Value:
        if ((b.data < 0) | (b.data >= dtype.bits)).any():
            raise Undefined("shift by more bits than there are")
        return Value(operation(a.data, b.data), _worst(a, b))

    return rule


def _bits(operation: np.ufunc) -> Rule:
    return lambda dtype, a, b: Value(operation(a.data, b.data), _worst(a, b))


# ---- comparisons and choice


def _compare(operation: np.ufunc) -> Rule:
    def rule(dtype: DType, a: Value, b: Value) -> Value:
        result = operation(a.data, b.data)
        total = a.error + b.error
        distance = np.abs(a.data.astype(dtype.exact) - b.data.astype(dtype.exact)) if dtype.is_float else np.inf
        return _certain(result, (total == 0) | (np.isfinite(total) & (distance > total)))

    return rule


def where(condition: Value, a: Value, b: Value) -> Value:
    chosen = np.where(condition.data, a.error, b.error)
    return Value(np.where(condition.data, a.data, b.data), np.where(known(condition), chosen, np.inf))


ELEMENTWISE |= {
    "div": _div, "fmod": _fmod, "neg": _neg, "abs": _abs, "fma": _fma, "sqrt": _sqrt, "sqrt_rn": _sqrt, "div_rn": _div,
    "floor": _to_integer(np.floor), "ceil": _to_integer(np.ceil), "trunc": _to_integer(np.trunc),
    "rint": _to_integer(np.rint), "round": _to_integer(_half_away),
    "maximum": _pick(True, False), "minimum": _pick(False, False), "clamp": _clamp,
    "maximum_nan": _pick(True, True), "minimum_nan": _pick(False, True),
    **FUNCTIONS,
    "idiv": _idiv, "irem": _irem, "umulhi": _high_half, "invert": _invert,
    "and": _bits(np.bitwise_and), "or": _bits(np.bitwise_or), "xor": _bits(np.bitwise_xor),
    "shl": _shift(np.left_shift), "shr": _shift(np.right_shift),
    "lt": _compare(np.less), "le": _compare(np.less_equal), "gt": _compare(np.greater),
    "ge": _compare(np.greater_equal), "eq": _compare(np.equal), "ne": _compare(np.not_equal),
}  # fmt: skip
_arithmetic("add", np.add, _add)
_arithmetic("sub", np.subtract, _sub)
_arithmetic("mul", np.multiply, _mul)

# ---- conversions


def convert(value: Value, source: DType, target: DType) -> Value:
    """`value.to(target)`."""
    if source is target:
        return value
    if target is BOOL:
        open_ = (value.error > 0) & ~(np.abs(value.data.astype(np.float64)) > value.error)
        return _certain(value.data != 0, ~open_)
    if not source.is_float:
        return _from_integer(value, target)
    return _to_float(value, target) if target.is_float else _truncated(value, target)


def _from_integer(value: Value, target: DType) -> Value:
    if not target.is_float:
        return Value(value.data.astype(target.storage), value.error)
    if target not in (F16, BF16):
        return Value(value.data.astype(target.storage), value.error)
    wide = value.data.astype(np.longdouble)  # holds every integer
    near = wide.astype(np.float64)
    return Value(round_to(target, to_odd_f64(near, (wide - near).astype(np.float64))), value.error)


def _to_float(value: Value, target: DType) -> Value:
    return arithmetic(target, value.data, value.error)


def _truncated(value: Value, target: DType) -> Value:
    """Float to integer. Out of range, and for NaN, C and LLVM leave the result undefined: nothing is claimed."""
    x = value.data.astype(np.longdouble)
    low, high = np.trunc(x - value.error), np.trunc(x + value.error)
    settled = (low == high) & (low >= target.low) & (high <= target.high)
    return _certain(np.trunc(np.where(settled, x, 0)).astype(target.storage), settled)


def towards_zero(value: Value, target: DType) -> Value:
    """`value.to(target, fp_downcast_rounding="rtz")`, f32 to bf16 or f16."""
    x = value.data
    if target is BF16:
        data = (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
        data = np.where(np.isnan(x), np.float32(np.nan), data)
    else:
        near = np.asarray(x.astype(np.float16))
        away = np.abs(near.astype(np.float32)) > np.abs(x)
        data = (near.view(np.uint16) - away.astype(np.uint16)).view(np.float16)
    error = two_roundings(target, data, value.error)
    return Value(data, np.where(value.error == 0, 0.0, error + 2 * target.unit * np.abs(data.astype(np.float64))))


def bits_of(data: np.ndarray, dtype: DType) -> np.ndarray:
    """Storage to unsigned integers of the type's width."""
    if dtype is BF16:
        return (data.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return data.view(f"u{max(1, dtype.bits // 8)}")


def from_bits(bits: np.ndarray, dtype: DType) -> np.ndarray:
    """Inverse of `bits_of`."""
    if dtype is BF16:
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return bits.view(dtype.storage)


def bitcast(value: Value, source: DType, target: DType) -> Value:
    """The bits of a NaN are not promised, nor those of a number that carries an error."""
    settled = (value.error == 0) & ~(np.isnan(value.data) if source.is_float else False)
    return _certain(from_bits(bits_of(value.data, source), target), settled)

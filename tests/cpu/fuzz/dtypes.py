"""Element types of the fuzzer: numpy storage, precision, and Triton's promotion rules, written down again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class DType:
    """One element type.

    `storage` holds its values on the oracle's side (bf16 as f32 numbers that bf16 has), `compute` is the type in which
    the backend says it computes. For floats `precision` counts the bits of the significand, `largest` is the largest
    finite value and `step` the distance of denormals.
    """

    name: str
    kind: str  # "float", "signed", "unsigned" or "bool"
    bits: int
    storage: type
    torch: torch.dtype
    precision: int = 0
    largest: float = 0.0
    step: float = 0.0

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_int(self) -> bool:
        return self.kind in ("signed", "unsigned")

    @property
    def triton(self) -> str:
        return "tl." + TRITON_NAMES[self.name]

    @property
    def compute(self) -> type:
        return np.float64 if self.name == "f64" else np.float32

    @property
    def exact(self) -> type:
        """A type in which one operation on values of this type has far less error than the type itself."""
        return np.longdouble if self.name == "f64" else np.float64

    @property
    def unit(self) -> float:
        """Largest relative error of rounding to this type; twice over where f32 lies in between."""
        return 2.0**-self.precision + (2.0**-24 if self.precision < 24 else 0.0)

    @property
    def low(self) -> int:
        return -(1 << (self.bits - 1)) if self.kind == "signed" else 0

    @property
    def high(self) -> int:
        return (1 << (self.bits - (self.kind == "signed"))) - 1


def _integer(kind: str, bits: int) -> DType:
    name = f"{'int' if kind == 'signed' else 'uint'}{bits}"
    return DType(f"{kind[0]}{bits}".replace("s", "i"), kind, bits, getattr(np, name), getattr(torch, name))


F16 = DType("f16", "float", 16, np.float16, torch.float16, 11, 65504.0, 2.0**-24)
BF16 = DType("bf16", "float", 16, np.float32, torch.bfloat16, 8, float(2 - 2**-7) * 2.0**127, 2.0**-133)
F32 = DType("f32", "float", 32, np.float32, torch.float32, 24, float(np.finfo(np.float32).max), 2.0**-149)
F64 = DType("f64", "float", 64, np.float64, torch.float64, 53, float(np.finfo(np.float64).max), 2.0**-1074)
BOOL = DType("i1", "bool", 1, np.bool_, torch.bool)
SIGNED = tuple(_integer("signed", bits) for bits in (8, 16, 32, 64))
UNSIGNED = tuple(_integer("unsigned", bits) for bits in (8, 16, 32, 64))
I8, I16, I32, I64 = SIGNED
U8, U16, U32, U64 = UNSIGNED
FLOATS, INTEGERS = (F32, F64, BF16, F16), (*SIGNED, *UNSIGNED)
DTYPES = {dtype.name: dtype for dtype in (*FLOATS, *INTEGERS, BOOL)}
TRITON_NAMES = {
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "i1": "int1",
    **{f"{word[0]}{bits}": f"{word}{bits}" for word in ("int", "uint") for bits in (8, 16, 32, 64)},
}  # fmt: skip


def promote(a: DType, b: DType, division: bool = False) -> DType:
    """Type in which Triton computes on tensors of types a and b; `division` for `/` and `%`."""
    for wide in (F64, F32):
        if wide in (a, b):
            return wide
    if F16 in (a, b):
        return F32 if division else F16
    if BF16 in (a, b):
        return BF16 if a is b and not division else F32
    return promote_integers(a, b)


def promote_integers(a: DType, b: DType) -> DType:
    """C's usual arithmetic conversions without the promotion to int; bool is an unsigned integer of one bit."""
    if (a.kind == "signed") == (b.kind == "signed"):
        return a if a.bits > b.bits else b
    unsigned, signed = (b, a) if a.kind == "signed" else (a, b)
    return unsigned if unsigned.bits >= signed.bits else signed


def summed(dtype: DType) -> DType:
    """Type of tl.sum and tl.cumsum: integers below 32 bits are widened."""
    if dtype.is_float or dtype.bits >= 32:
        return dtype
    return I32 if dtype.kind == "signed" else U32


def compared(dtype: DType) -> DType:
    """Type of tl.max and tl.min over an axis: everything below 32 bits is widened."""
    if dtype.bits >= 32:
        return dtype
    return F32 if dtype.is_float else I32

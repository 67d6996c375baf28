"""C types, literals and float conversions of TTIR element types."""

from __future__ import annotations

from ..analysis.affine import constant_text
from ..ttir.ir import BITS, POINTER_PREFIX, Op, Type

C_TYPES = {
    "i1": "bool", "i8": "int8_t", "i16": "int16_t", "i32": "int32_t", "i64": "int64_t", "index": "int64_t",
    "f32": "float", "f64": "double", "bf16": "uint16_t", "f16": "_Float16",
}  # fmt: skip
SIZES = {elem: max(1, bits // 8) for elem, bits in BITS.items()}


def c_type(elem: str) -> str:
    """bf16 is held as its bits in a uint16_t."""
    if elem.startswith(POINTER_PREFIX):
        return C_TYPES[Type(elem).pointee] + "*"
    return C_TYPES[elem]


def c_unsigned(elem: str) -> str:
    return "bool" if elem == "i1" else "u" + C_TYPES[elem]


def size_of(elem: str) -> int:
    return 8 if elem.startswith(POINTER_PREFIX) else SIZES[elem]


def wide(elem: str) -> str:
    """The type floats are computed in: f64 for f64, f32 for the rest."""
    return "f64" if elem == "f64" else "f32"


def widen(elem: str, expr: str) -> str:
    """Expression of `elem` as float or double."""
    if elem == "bf16":
        return f"cp_bf16_f32({expr})"
    return f"(float)({expr})" if elem == "f16" else expr


def narrow(elem: str, expr: str) -> str:
    """float (double for f64) rounded to `elem`."""
    if elem == "bf16":
        return f"cp_f32_bf16({expr})"
    return f"(_Float16)({expr})" if elem == "f16" else expr


def literal(op: Op) -> str:
    """C expression of an arith.constant (one element of a splat) or of poison."""
    elem = op.result.type.elem
    if op.name == "ub.poison":
        return f"(({c_type(elem)})0)"
    text = constant_text(op)
    if text in ("true", "false"):
        return "1" if text == "true" else "0"
    return _float_literal(elem, text) if op.result.type.is_float else _int_literal(elem, text)


def _float_literal(elem: str, text: str) -> str:
    if text.startswith("0x"):
        bits = int(text, 16)
        forms = {
            "f32": f"cp_bits_f32({bits}u)", "f64": f"cp_bits_f64({bits}ull)",
            "bf16": f"((uint16_t){bits})", "f16": f"cp_bits_f16({bits})",
        }  # fmt: skip
        return forms[elem]
    if elem == "bf16":
        return f"cp_f32_bf16({text}f)"
    return {"f32": f"({text}f)", "f64": f"({text})", "f16": f"((_Float16){text}f)"}[elem]


def _int_literal(elem: str, text: str) -> str:
    value = int(text)
    if BITS[elem] == 64:
        return "INT64_MIN" if value == -(1 << 63) else f"({value}ll)"
    return "INT32_MIN" if value == -(1 << 31) else f"({value})"

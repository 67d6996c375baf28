"""Elementwise operations as a table: operation name -> C expression of one element.

bf16 and f16 are computed in f32 and rounded once per operation. Integers wrap, except in address arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..analysis.placement import ARRAY_FUNCTIONS
from ..ttir.ir import BITS, Op, Value
from .ctypes import c_type, c_unsigned, narrow, wide, widen


@dataclass(frozen=True)
class Element:
    """One element of an operation: operand expressions `args`, `address` when the result may not wrap."""

    op: Op
    args: list[str]
    address: bool = False

    @property
    def elem(self) -> str:
        return self.op.result.type.elem

    def source(self, k: int = 0) -> str:
        return self.op.operands[k].type.elem

    def floats(self) -> list[str]:
        return [widen(operand.type.elem, arg) for operand, arg in zip(self.op.operands, self.args, strict=True)]

    def unsigned(self, k: int) -> str:
        return f"({c_unsigned(self.source(k))})({self.args[k]})"


def array_function(value: Value) -> str | None:
    """Name of the function in native/arrays.h that computes `value` from its operand, without the ending."""
    if value.defining not in ARRAY_FUNCTIONS or value.type.elem != "f32":
        return None
    return f"cp_{value.defining.removeprefix('math.')}_f32"


def is_rounding_to_bf16(value: Value) -> bool:
    """Is `value` a tensor of f32 rounded to the nearest bf16?"""
    if value.type.elem != "bf16" or value.defining not in ("arith.truncf", "tt.fp_to_fp"):
        return False
    return value.op.operands[0].type.elem == "f32" and value.op.attrs.get("rounding") != "rtz"


Emit = Callable[[Element], str]
TABLE: dict[str, Emit] = {}


def expression(op: Op, args: list[str], address: bool = False) -> str:
    """C expression of one element of `op`. KeyError for operations that are not elementwise."""
    return TABLE[op.name](Element(op, args, address))


def _define(names: str, emit: Emit) -> None:
    TABLE.update(dict.fromkeys(names.split(), emit))


# ---- floats


def _float_infix(symbol: str) -> Emit:
    def emit(e: Element) -> str:
        a, b = e.floats()
        return narrow(e.elem, f"({a} {symbol} {b})")

    return emit


def _float_call(name: str) -> Emit:
    return lambda e: narrow(e.elem, f"cp_{name}_{wide(e.elem)}({', '.join(e.floats())})")


_FLOAT_SYMBOLS = {"arith.addf": "+", "arith.subf": "-", "arith.mulf": "*", "arith.divf": "/", "tt.precise_divf": "/"}
_SAME_NAME = "exp exp2 log log2 sin cos erf tanh sqrt rsqrt fma floor ceil trunc round"
_FLOAT_CALLS = {
    **{f"math.{name}": name for name in _SAME_NAME.split()},
    **{f"arith.{name}f": name for name in ("maxnum", "minnum", "maximum", "minimum")},
    "math.absf": "abs",
    "math.powf": "pow",
    "math.roundeven": "rint",
    "tt.precise_sqrt": "sqrt",
    "arith.remf": "fmod",
}
for _name, _symbol in _FLOAT_SYMBOLS.items():
    _define(_name, _float_infix(_symbol))
for _name, _function in _FLOAT_CALLS.items():
    _define(_name, _float_call(_function))
_define("arith.negf", lambda e: narrow(e.elem, f"(-({e.floats()[0]}))"))


def _clamp(e: Element) -> str:
    x, low, high = e.floats()
    kind = "imum" if "all" in e.op.attrs.get("propagateNan", "") else "num"
    f = wide(e.elem)
    return narrow(e.elem, f"cp_min{kind}_{f}(cp_max{kind}_{f}({x}, {low}), {high})")


def _float_compare(e: Element) -> str:
    predicate = e.op.attrs["words"][0]
    a, b = e.floats()
    symbol = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}.get(predicate[1:])
    nan = f"({a} != {a}) | ({b} != {b})"
    if predicate in ("true", "false"):
        return "1" if predicate == "true" else "0"
    if predicate in ("ord", "uno"):
        return f"({nan})" if predicate == "uno" else f"(!({nan}))"
    if predicate == "one":
        return f"(({a} < {b}) | ({a} > {b}))"
    if predicate[0] == "o" or predicate == "une":
        return f"({a} {symbol} {b})"
    return f"({nan} | ({a} {symbol} {b}))"


_define("tt.clampf", _clamp)
_define("arith.cmpf", _float_compare)

# ---- integers


def _int_infix(symbol: str) -> Emit:
    def emit(e: Element) -> str:
        a, b = e.args
        if e.elem == "i1" or e.address or symbol in "&|^":
            return f"(({c_type(e.elem)})({a} {symbol} {b}))"
        # unsigned arithmetic of at least 32 bits: wraps, and small types do not overflow a promoted int
        u = c_unsigned(e.elem if BITS[e.elem] >= 32 else "i32")
        # gcc 12 takes x = x * x in a loop for a reduction and reorders it, so it must not see that it is a square
        other = f"(({u})({b}) ^ ({u})cp_zero)" if symbol == "*" and a == b else f"({u})({b})"
        return f"(({c_type(e.elem)})(({u})({a}) {symbol} {other}))"

    return emit


for _name, _symbol in (("addi", "+"), ("subi", "-"), ("muli", "*"), ("andi", "&"), ("ori", "|"), ("xori", "^")):
    _define(f"arith.{_name}", _int_infix(_symbol))


def _bool_arith(symbol: str, fallback: str) -> None:
    """i1 addition and subtraction are exclusive or, multiplication is and."""
    plain = TABLE[fallback]
    TABLE[fallback] = lambda e: f"({e.args[0]} {symbol} {e.args[1]})" if e.elem == "i1" else plain(e)


for _symbol, _name in (("^", "arith.addi"), ("^", "arith.subi"), ("&", "arith.muli")):
    _bool_arith(_symbol, _name)


def _divide(kind: str, signed: bool) -> Emit:
    def emit(e: Element) -> str:
        if e.elem == "i1":
            return f"(({e.args[0]}) & {'0' if kind == 'rem' else '1'})"
        bits = BITS[e.elem]
        args = ", ".join(e.args if signed else [e.unsigned(0), e.unsigned(1)])
        divisor = e.args[1].strip("()l")
        if divisor.isdigit() and int(divisor) > 0:
            a, b = e.args if signed else (e.unsigned(0), e.unsigned(1))
            return f"(({c_type(e.elem)})({a} {'/' if kind == 'div' else '%'} {b}))"
        return f"(({c_type(e.elem)})cp_{kind}_{'i' if signed else 'u'}{bits}({args}))"

    return emit


def _shift(symbol: str, signed: bool) -> Emit:
    def emit(e: Element) -> str:
        value = e.args[0] if signed else e.unsigned(0)
        return f"(({c_type(e.elem)})({value} {symbol} (({e.args[1]}) & {BITS[e.elem] - 1})))"

    return emit


def _choose(symbol: str, signed: bool) -> Emit:
    def emit(e: Element) -> str:
        a, b = e.args if signed else (e.unsigned(0), e.unsigned(1))
        return f"({a} {symbol} {b} ? {e.args[0]} : {e.args[1]})"

    return emit


def _int_compare(e: Element) -> str:
    predicate = e.op.attrs["words"][0]
    symbols = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
    if predicate in symbols:
        return f"({e.args[0]} {symbols[predicate]} {e.args[1]})"
    pointers = e.op.operands[0].type.is_pointer
    unsigned = predicate[0] == "u" and not pointers
    # a signed i1 is 0 or -1
    negate = "-" if predicate[0] == "s" and e.source() == "i1" else ""
    a, b = (e.unsigned(0), e.unsigned(1)) if unsigned else (f"{negate}{e.args[0]}", f"{negate}{e.args[1]}")
    return f"({a} {symbols[predicate[1:]]} {b})"


def _mulhi(e: Element) -> str:
    product = "unsigned __int128" if BITS[e.elem] == 64 else "uint64_t"
    return f"(({c_type(e.elem)})((({product}){e.unsigned(0)} * {e.unsigned(1)}) >> {BITS[e.elem]}))"


for _name, _symbol in (("div", "/"), ("rem", "%")):
    _define(f"arith.{_name}si", _divide(_name, signed=True))
    _define(f"arith.{_name}ui", _divide(_name, signed=False))
_define("arith.shli", _shift("<<", signed=False))
_define("arith.shrui", _shift(">>", signed=False))
_define("arith.shrsi", _shift(">>", signed=True))
for _name, _symbol in (("max", ">"), ("min", "<")):
    _define(f"arith.{_name}si", _choose(_symbol, signed=True))
    _define(f"arith.{_name}ui", _choose(_symbol, signed=False))
_define("arith.cmpi", _int_compare)
_define("tt.mulhiui", _mulhi)
_define("math.absi", lambda e: f"(({c_type(e.elem)})(({e.args[0]}) < 0 ? 0 - {e.unsigned(0)} : {e.unsigned(0)}))")

# ---- conversions


def _float_to_float(e: Element) -> str:
    source, target, x = e.source(), e.elem, e.args[0]
    if source == target:
        return x
    if source == "f64":
        return f"((float)({x}))" if target == "f32" else narrow(target, f"cp_f64_f32_odd({x})")
    if e.op.attrs.get("rounding") == "rtz":
        return f"cp_f32_{target}_rtz({x})"
    return f"((double)({widen(source, x)}))" if target == "f64" else narrow(target, widen(source, x))


def _int_to_float(signed: bool) -> Emit:
    def emit(e: Element) -> str:
        x = e.args[0] if signed else e.unsigned(0)
        x = f"(-(int)({x}))" if signed and e.source() == "i1" else x
        if e.elem == "bf16" and BITS[e.source()] >= 32:  # rounded once: f32 does not hold every integer
            wide = f"(double)({x})" if BITS[e.source()] == 32 else f"cp_{'i' if signed else 'u'}64_f64_odd({x})"
            return narrow(e.elem, f"cp_f64_f32_odd({wide})")
        return narrow(e.elem, f"(({'double' if e.elem == 'f64' else 'float'})({x}))")

    return emit


def _float_to_int(letter: str) -> Emit:
    def emit(e: Element) -> str:
        if e.elem == "i1":
            return f"({e.floats()[0]} != 0)"
        return f"(({c_type(e.elem)})cp_{wide(e.source())}_{letter}{BITS[e.elem]}({e.floats()[0]}))"

    return emit


def _sign_extend(e: Element) -> str:
    if e.elem == "i1":
        return f"(({e.args[0]}) & 1)"
    if e.source() == "i1":
        return f"(({c_type(e.elem)})-(int)({e.args[0]}))"
    return f"(({c_type(e.elem)})({e.args[0]}))"


def _bitcast(e: Element) -> str:
    source, target, x = e.source(), e.elem, e.args[0]
    if e.op.result.type.is_pointer or source == target:
        return f"(({c_type(target)})({x}))"
    to_bits = {"f32": "cp_f32_bits", "f64": "cp_f64_bits", "f16": "cp_f16_bits"}.get(source, "")
    from_bits = {"f32": "cp_bits_f32", "f64": "cp_bits_f64", "f16": "cp_bits_f16"}.get(target, f"({c_type(target)})")
    return f"({from_bits}({to_bits}({x})))"


def _address(e: Element) -> str:
    return f"(({c_type(e.elem)})({e.args[0]}))"


_define("arith.extf arith.truncf tt.fp_to_fp", _float_to_float)
_define("arith.sitofp", _int_to_float(signed=True))
_define("arith.uitofp", _int_to_float(signed=False))
_define("arith.fptosi", _float_to_int("i"))
_define("arith.fptoui", _float_to_int("u"))
_define("arith.extsi arith.trunci arith.index_cast", _sign_extend)
_define("arith.extui arith.index_castui", lambda e: f"(({c_type(e.elem)}){e.unsigned(0)})")
_define("arith.bitcast tt.bitcast", _bitcast)
_define("tt.int_to_ptr tt.ptr_to_int", _address)
_define("tt.addptr", lambda e: f"({e.args[0]} + {e.args[1]})")
_define("arith.select", lambda e: f"({e.args[0]} ? {e.args[1]} : {e.args[2]})")

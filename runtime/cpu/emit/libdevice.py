"""Device functions (tt.extern_elementwise) as a table: name -> C expression of one element.

What Triton itself has (exp, log, ...) is computed by the same code; the rest comes from libm. The `fast_` forms are not
faster here, and not less accurate."""

from __future__ import annotations

from ..ttir.ir import BITS
from ..ttir.verify import libdevice_name
from .ctypes import c_type, narrow, wide
from .elementwise import TABLE as OPERATIONS
from .elementwise import Element, Emit

_OWN = "exp exp2 expm1 log log2 log1p sin cos tanh erf sqrt rsqrt floor ceil trunc rint round pow fmod fma"
_LIBM = (
    "exp10 log10 tan sinh cosh asin acos atan asinh acosh atanh erfc cbrt nearbyint remainder atan2 hypot copysign "
    "nextafter fdim lgamma tgamma"
)
#: Name here: name of the function of `native/transcendental.h` or `_LIBM` that computes it.
_SAME_AS = {
    "fabs": "abs", "fast_exp": "exp", "fast_log": "log", "fast_log2": "log2", "fast_sin": "sin", "fast_cos": "cos",
    "fast_tanh": "tanh", "fast_pow": "pow", "fmaf_rn": "fma", "fma_rn": "fma", "fsqrt_rn": "sqrt", "dsqrt_rn": "sqrt",
    "frsqrt_rn": "rsqrt",
}  # fmt: skip
_FAST_LIBM = {"fast_exp10": "exp10", "fast_log10": "log10", "fast_tan": "tan"}
_SYMBOLS = {
    "fadd_rn": "+", "fsub_rn": "-", "fmul_rn": "*", "fdiv_rn": "/", "dadd_rn": "+", "dsub_rn": "-", "dmul_rn": "*",
    "ddiv_rn": "/", "fast_fdivide": "/",
}  # fmt: skip


def _own(name: str) -> Emit:
    return lambda e: narrow(e.elem, f"cp_{name}_{wide(e.elem)}({', '.join(e.floats())})")


def _libm(name: str) -> Emit:
    def emit(e: Element) -> str:
        suffix = "" if e.elem == "f64" else "f"
        return narrow(e.elem, f"__builtin_{name}{suffix}({', '.join(e.floats())})")

    return emit


def _infix(symbol: str) -> Emit:
    return lambda e: narrow(e.elem, f"({f' {symbol} '.join(e.floats())})")


def _formula(text: str) -> Emit:
    """A formula over `{0}`, the first operand as a float."""
    return lambda e: f"(({c_type(e.elem)}){text.format(*e.floats())})"


def _bits(text: str) -> Emit:
    """A formula over `{x}`, the operand as an unsigned integer of 32 or 64 bits; `{ll}` names the wider builtins."""

    def emit(e: Element) -> str:
        ll = "ll" if BITS[e.source()] == 64 else ""
        return f"(({c_type(e.elem)}){text.format(x=e.unsigned(0), ll=ll, bits=BITS[e.source()])})"

    return emit


FUNCTIONS: dict[str, Emit] = {
    **{name: _own(name) for name in _OWN.split()},
    **{name: _own(target) for name, target in _SAME_AS.items()},
    **{name: _libm(name) for name in _LIBM.split()},
    **{name: _libm(target) for name, target in _FAST_LIBM.items()},
    **{name: _infix(symbol) for name, symbol in _SYMBOLS.items()},
    "frcp_rn": _formula("(1 / {0})"),
    "drcp_rn": _formula("(1 / {0})"),
    "rcbrt": _formula("(1 / cbrt({0}))"),
    "saturate": _formula("({0} > 0 ? ({0} < 1 ? {0} : 1) : 0)"),
    "isnan": _formula("({0} != {0})"),
    "isinf": _formula("(fabs({0}) == INFINITY)"),
    "finite": _formula("(fabs({0}) < INFINITY)"),
    "isfinite": _formula("(fabs({0}) < INFINITY)"),
    "signbit": _formula("(__builtin_signbit({0}) != 0)"),
    "abs": OPERATIONS["math.absi"],
    "llabs": OPERATIONS["math.absi"],
    "popc": _bits("__builtin_popcount{ll}({x})"),
    "clz": _bits("({x} ? __builtin_clz{ll}({x}) : {bits})"),
    "ffs": _bits("__builtin_ffs{ll}({x})"),
    "brev": _bits("cp_reverse_bits({x}, {bits})"),
}
OPERATIONS["tt.extern_elementwise"] = lambda e: FUNCTIONS[libdevice_name(e.op)](e)

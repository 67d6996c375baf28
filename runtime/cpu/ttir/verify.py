"""What the backend accepts, as data: one row per operation, checked before any code is emitted.

An operation without a row, or on element types its row does not list, is refused with its name, types, kernel and
source location. Nothing is ever skipped silently.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..errors import UnsupportedOp
from .hints import EIGHT_BIT_FLOATS, hint, nearest
from .ir import BITS, CODED, FLOATS, INTEGERS, Function, Op, Type, words

FLOAT = frozenset(FLOATS)
INTEGER = frozenset(INTEGERS)
NUMBER = FLOAT | INTEGER
ANY = NUMBER | {"ptr"}
BOOL = frozenset(("i1",))
DOT_ACCUMULATORS = ("f16", "f32", "f64", "i32")
#: Device functions by the name `libdevice_name` gives; emit/libdevice.py has one entry for each.
LIBDEVICE = words(
    "exp exp2 exp10 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh erf erfc",
    "sqrt rsqrt cbrt rcbrt fabs floor ceil trunc rint nearbyint round pow fmod remainder fma atan2 hypot copysign",
    "nextafter fdim lgamma tgamma saturate isnan isinf finite isfinite signbit",
    "fast_exp fast_exp10 fast_log fast_log2 fast_log10 fast_sin fast_cos fast_tan fast_tanh fast_pow fast_fdivide",
    "fadd_rn fsub_rn fmul_rn fdiv_rn frcp_rn fsqrt_rn frsqrt_rn fmaf_rn dadd_rn dsub_rn dmul_rn ddiv_rn drcp_rn",
    "dsqrt_rn fma_rn abs llabs popc clz ffs brev",
)
ATOMICS = words("and or xor add fadd max min umax umin exch")


@dataclass(frozen=True)
class Rule:
    """Element types allowed for operands and for results, and an extra check that returns a reason or None."""

    operands: frozenset[str]
    results: frozenset[str]
    check: Callable[[Op], str | None] = lambda op: None


def _same(kinds: frozenset[str], names: str) -> dict[str, Rule]:
    return {name: Rule(kinds, kinds) for name in names.split()}


def _convert(source: frozenset[str], target: frozenset[str], names: str) -> dict[str, Rule]:
    return {name: Rule(source, target) for name in names.split()}


def _check_fp_to_fp(op: Op) -> str | None:
    rounding = op.attrs.get("rounding", "rtne")
    narrow = op.operands[0].type.elem == "f32" and op.result.type.elem in ("bf16", "f16")
    return None if rounding == "rtne" or (rounding == "rtz" and narrow) else f"rounding mode {rounding}"


def _check_dot(op: Op) -> str | None:
    left, right, acc = (operand.type.elem for operand in op.operands)
    if left != right:
        return "operands of different types"
    if acc not in DOT_ACCUMULATORS:
        return f"accumulator {acc}, must be one of {', '.join(DOT_ACCUMULATORS)}"
    if (acc == "i32") != (left in INTEGER) or BITS[left] > BITS[acc]:
        return "this combination of operand and accumulator types"
    return None


def _check_extern(op: Op) -> str | None:
    symbol = libdevice_name(op)
    return None if symbol in LIBDEVICE else f"device function {symbol}{nearest(symbol, LIBDEVICE)}"


def _check_atomic(op: Op) -> str | None:
    kind = op.attrs["words"][0]
    return None if kind in ATOMICS else f"atomic {kind}"


def _check_bitcast(op: Op) -> str | None:
    def width(t: Type) -> int:
        return 64 if t.is_pointer else BITS[t.elem]

    return None if width(op.operands[0].type) == width(op.result.type) else "types of different width"


def libdevice_name(op: Op) -> str:
    """`__nv_expf` and `__nv_exp` both give `exp`; `__nv_isnand` gives `isnan`, `__nv_popcll` gives `popc`."""
    name = op.attrs.get("symbol", "").strip('"').removeprefix("__nv_")
    candidates = (name, *(name.removesuffix(suffix) for suffix in ("f", "d", "ll")))
    return next((candidate for candidate in candidates if candidate in LIBDEVICE), name)


RULES: dict[str, Rule] = {
    **_same(FLOAT, "arith.addf arith.subf arith.mulf arith.divf arith.remf arith.negf math.fma tt.precise_divf"),
    **_same(FLOAT, "arith.maxnumf arith.minnumf arith.maximumf arith.minimumf tt.clampf"),
    **_same(FLOAT, "math.exp math.exp2 math.log math.log2 math.sin math.cos math.erf math.tanh math.sqrt math.rsqrt"),
    **_same(FLOAT, "math.absf math.floor math.ceil math.trunc math.round math.roundeven math.powf tt.precise_sqrt"),
    **_same(INTEGER, "arith.addi arith.subi arith.muli arith.andi arith.ori arith.xori arith.shli arith.shrsi"),
    **_same(INTEGER, "arith.shrui arith.divsi arith.divui arith.remsi arith.remui arith.maxsi arith.minsi arith.maxui"),
    **_same(INTEGER, "arith.minui math.absi tt.mulhiui"),
    **_convert(INTEGER, INTEGER, "arith.extsi arith.extui arith.trunci arith.index_cast arith.index_castui"),
    **_convert(INTEGER, FLOAT, "arith.sitofp arith.uitofp"),
    **_convert(FLOAT, INTEGER, "arith.fptosi arith.fptoui"),
    **_convert(FLOAT, FLOAT, "arith.extf arith.truncf"),
    "tt.fp_to_fp": Rule(FLOAT, FLOAT, _check_fp_to_fp),
    **_convert(ANY, BOOL, "arith.cmpi"),
    **_convert(FLOAT, BOOL, "arith.cmpf"),
    **_same(ANY, "arith.select"),
    **{name: Rule(ANY, ANY, _check_bitcast) for name in ("arith.bitcast", "tt.bitcast")},
    **_convert(ANY, ANY, "tt.int_to_ptr tt.ptr_to_int tt.addptr"),
    "tt.extern_elementwise": Rule(NUMBER, NUMBER, _check_extern),
    "arith.constant": Rule(ANY, NUMBER),
    "ub.poison": Rule(ANY, NUMBER),
    **_same(ANY, "tt.make_range tt.splat tt.unsplat tt.broadcast tt.expand_dims tt.reshape tt.trans"),
    **_same(ANY, "tt.join tt.split tt.cat"),
    **_same(ANY, "tt.get_program_id tt.get_num_programs tt.load tt.store tt.gather"),
    "tt.atomic_rmw": Rule(ANY, NUMBER, _check_atomic),
    "tt.atomic_cas": Rule(ANY, NUMBER),
    "tt.histogram": Rule(INTEGER, INTEGER),
    CODED: Rule(frozenset(("ptr",)), frozenset(("bf16",))),
    "tt.reduce": Rule(NUMBER, NUMBER),
    "tt.scan": Rule(NUMBER, NUMBER),
    "tt.map_elementwise": Rule(NUMBER, NUMBER),
    "tt.dot": Rule(NUMBER, NUMBER, _check_dot),
    **_same(ANY, "scf.for scf.if scf.while scf.yield scf.condition cf.br cf.cond_br"),
    **_same(ANY, "tt.return tt.reduce.return tt.scan.return tt.map_elementwise.return"),
    **_same(ANY, "tt.print tt.assert llvm.intr.assume tt.debug_barrier gpu.barrier ttg.barrier"),
}


def verify(function: Function) -> None:
    """Raise UnsupportedOp for the first operation this backend cannot translate."""
    for op in function.walk():
        reason = _reason(op)
        if reason is not None:
            raise unsupported(function, op, reason)


def unsupported(function: Function, op: Op, reason: str) -> UnsupportedOp:
    types = ", ".join(str(v.type) for v in op.operands) or ", ".join(str(v.type) for v in op.results)
    return UnsupportedOp(location=op.location, kernel=function.name, op=op.name, types=types, reason=reason)


def _reason(op: Op) -> str | None:
    rule = RULES.get(op.name)
    if rule is None:
        return hint(op.name)
    for values, allowed in ((op.operands, rule.operands), (op.results, rule.results)):
        for value in values:
            if _kind(value.type) not in allowed:
                return _refused_type(value.type)
    return rule.check(op)


def _refused_type(type_: Type) -> str:
    elem = type_.pointee if type_.is_pointer else type_.elem
    return EIGHT_BIT_FLOATS if elem.startswith("f8") else f"element type {type_.elem}"


def _kind(type_: Type) -> str:
    if not type_.is_pointer:
        return type_.elem
    return "ptr" if type_.pointee in NUMBER else type_.elem

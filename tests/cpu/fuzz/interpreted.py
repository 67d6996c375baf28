"""Which programs Triton's interpreter can judge: with these it is a second opinion, on oracle and backend alike."""

from __future__ import annotations

from tests.cpu.fuzz import versions
from tests.cpu.fuzz.dtypes import BF16, F16, I32
from tests.cpu.fuzz.program import Program, Stmt
from tests.cpu.fuzz.versions import holds

ABSENT = ("trunc", "rint", "round", "tanh", "log1p", "expm1")
EXTREMES = ("maximum", "minimum", "clamp")


def objection(program: Program) -> str | None:
    """Why this version's interpreter is no judge of this program (see ledger.py); None if it is."""
    return next((found for stmt in program.walk() if (found := _objection(program, stmt)) is not None), None)


def _objection(program: Program, stmt: Stmt) -> str | None:
    types = [program.types[name].dtype for name in (*stmt.args, *stmt.results)]
    if BF16 in types:
        return "bf16"
    if stmt.op in ABSENT:
        return "libdevice"
    extreme = stmt.op in EXTREMES or (stmt.op == "scan" and stmt.attrs["kind"] == "max")
    if extreme and types[0].is_float and holds(versions.NAN_EXTREMES):
        return "NaN in a maximum"
    if stmt.op == "histogram" and types[0] is not I32 and not holds(versions.HISTOGRAM_OF_32_BITS):
        return "histogram of other types than i32"
    if stmt.op == "fma" and holds(versions.ROUNDED_PRODUCT):
        return "fma"
    if stmt.op == "for" and holds(versions.NO_RUN_TIME_BOUND):
        return "loop to a bound that is no constant"
    if stmt.op == "dot" and program.types[stmt.result].dtype is F16:
        return "dot into f16"  # accumulates in f16: no worse than its type, but worse than the bound
    if stmt.attrs.get("rtz"):
        return "rounding towards zero"
    if _sums_to_a_scalar(program, stmt) and holds(versions.NO_WRAPPING_SUM):
        return "sum of integers to a scalar"
    return None


def _sums_to_a_scalar(program: Program, stmt: Stmt) -> bool:
    if stmt.op != "reduce" or stmt.attrs["kind"] != "sum":
        return False
    return program.types[stmt.args[0]].dtype.is_int and not program.types[stmt.result].shape

"""Which programs Triton's interpreter can judge: with these it is a second opinion, on oracle and backend alike."""

from __future__ import annotations

from tests.cpu.fuzz.dtypes import BF16, F16, I32
from tests.cpu.fuzz.program import Program, Stmt

ABSENT = ("trunc", "rint", "round", "tanh", "log1p", "expm1")
EXTREMES = ("maximum", "minimum", "clamp")


def objection(program: Program) -> str | None:
    """Why the interpreter is no judge of this program (see ledger.py); None if it is."""
    return next((found for stmt in program.walk() if (found := _objection(program, stmt)) is not None), None)


def _objection(program: Program, stmt: Stmt) -> str | None:
    types = [program.types[name].dtype for name in (*stmt.args, *stmt.results)]
    if BF16 in types:
        return "bf16"
    if stmt.op in ABSENT:
        return "libdevice"
    extreme = stmt.op in EXTREMES or (stmt.op == "scan" and stmt.attrs["kind"] == "max")
    if extreme and types[0].is_float:
        return "NaN in a maximum"
    if stmt.op == "histogram" and types[0] is not I32:
        return "histogram of other types than i32"
    if stmt.op == "fma":
        return "fma"
    if stmt.op == "dot" and program.types[stmt.result].dtype is F16:
        return "dot into f16"  # accumulates in f16: no worse than its type, but worse than the bound
    if stmt.attrs.get("rtz"):
        return "rounding towards zero"
    if stmt.op == "reduce" and stmt.attrs["kind"] == "sum" and types[0].is_int and not program.types[stmt.result].shape:
        return "sum of integers to a scalar"
    return None

"""Faults planted into the backend, to see that the fuzzer finds each: name -> what is wrong, and how to plant it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runtime.cpu import toolchain
from runtime.cpu.analysis.placement import Placement
from runtime.cpu.emit import control, elementwise, emitter, nest, reduce
from tests.cpu.fuzz.dtypes import BF16, F32, F64, I8, I16, I32, U16, U32, U64, DType


@dataclass(frozen=True)
class Mutant:
    """`plant(setattr, folder)` changes the backend through `setattr(object, name, value)`; `folder` is scratch space.

    `what` is the fault; programs of `kind` (a key of generate.STEPS) on the types `on` ought to find it."""

    what: str
    kind: str
    on: tuple[DType, ...]
    plant: Callable[[Callable[[Any, str, Any], None], Path], None]


def _header(
    name: str, pattern: str, by: str, count: int = 1
) -> Callable[[Callable[[Any, str, Any], None], Path], None]:
    """Change native/`name`: kernels are compiled against a changed copy."""

    def plant(put: Callable[[Any, str, Any], None], folder: Path) -> None:
        copy = folder / "native"
        shutil.copytree(toolchain.NATIVE, copy)
        text = (copy / name).read_text()
        changed = re.sub(pattern, by, text, count=count)
        assert changed != text, f"{name} has no {pattern}"
        (copy / name).write_text(changed)
        put(toolchain, "NATIVE", copy)

    return plant


def _operation(name: str, change: Callable[[elementwise.Emit], elementwise.Emit]) -> Any:
    """Change one entry of the table of elementwise operations."""

    def plant(put: Callable[[Any, str, Any], None], folder: Path) -> None:
        put(elementwise, "TABLE", elementwise.TABLE | {name: change(elementwise.TABLE[name])})

    return plant


def _statement(name: str, change: Callable[[Any], Any]) -> Any:
    """Change one emitter of statements."""

    def plant(put: Callable[[Any, str, Any], None], folder: Path) -> None:
        put(emitter, "STATEMENTS", emitter.STATEMENTS | {name: change(emitter.STATEMENTS[name])})

    return plant


def _rule(name: str, change: Callable[[nest.Rule], nest.Rule]) -> Any:
    """Change one inline rule."""

    def plant(put: Callable[[Any, str, Any], None], folder: Path) -> None:
        put(nest, "RULES", nest.RULES | {name: change(nest.RULES[name])})

    return plant


def _without_masks(put: Callable[[Any, str, Any], None], folder: Path) -> None:
    put(nest.Nest, "mask", lambda self, value, index: None)


def _wrong_other(put: Callable[[Any, str, Any], None], folder: Path) -> None:
    def load(n: nest.Nest, op: Any, value: Any, index: nest.Index) -> nest.At:
        operands = op.operands
        op.operands = operands[:2]
        try:
            return original(n, op, value, index)
        finally:
            op.operands = operands

    original = nest.RULES["tt.load"]
    put(nest, "RULES", nest.RULES | {"tt.load": load})


def _contracted(put: Callable[[Any, str, Any], None], folder: Path) -> None:
    flags = tuple("-ffp-contract=fast" if f == "-ffp-contract=off" else f for f in toolchain.KERNEL_FLAGS)
    put(toolchain, "KERNEL_FLAGS", flags)


def _sequential(put: Callable[[Any, str, Any], None], folder: Path) -> None:
    """Carried values assigned one after the other."""

    def one_by_one(e: Any, targets: list[Any], values: list[Any]) -> None:
        for target, value in zip(targets, values, strict=True):
            original(e, [target], [value])

    original = control.parallel_assign
    put(control, "parallel_assign", one_by_one)


def _half_of_the_lanes(put: Callable[[Any, str, Any], None], folder: Path) -> None:
    original = reduce._halve
    put(reduce, "_halve", lambda e, op, at_lane, lane, lanes: original(e, op, at_lane, lane, max(1, lanes // 2)))


def _forward(scan: Any) -> Any:
    def forward(e: Any, op: Any) -> None:
        op.attrs["reverse"] = False
        scan(e, op)

    return forward


def _swapped(rule: nest.Rule) -> nest.Rule:
    def join(n: nest.Nest, op: Any, value: Any, index: nest.Index) -> nest.At:
        op.operands.reverse()
        try:
            return rule(n, op, value, index)
        finally:
            op.operands.reverse()

    return join


MUTANTS: dict[str, Mutant] = {
    "bf16-truncates": Mutant(
        "rounding to bf16 cuts the low bits off", "elementwise", (BF16,),
        _header("scalar.h", r"u \+ 0x7fffu \+ \(\(u >> 16\) & 1u\)", "u"),
    ),
    "bf16-ties-up": Mutant(
        "rounding to bf16 takes ties up, not to even", "elementwise", (BF16,),
        _header("scalar.h", r"0x7fffu \+ \(\(u >> 16\) & 1u\)", "0x8000u"),
    ),
    "unsigned-compare": Mutant(
        "unsigned integers are compared as signed ones", "elementwise", (U32, U64,),
        _operation("arith.cmpi", lambda emit: lambda e: emit(_with_predicate(e))),
    ),
    "dropped-mask": Mutant("masks of loads and stores are ignored", "memory", (F32, I32,), _without_masks),
    "wrong-other": Mutant("masked-off lanes load 0 instead of `other`", "memory", (F32, I16,), _wrong_other),
    "nan-extremes": Mutant(
        "a NaN as second operand of a maximum or minimum wins", "extreme", (F32,),
        _header("scalar.h", r"return b != b \? a : m; \}", "return m; }", count=2),
    ),
    "saturating-add": Mutant(
        "8-bit sums saturate instead of wrapping", "elementwise", (I8,),
        _operation("arith.addi", lambda emit: lambda e: _saturated(e) if e.elem == "i8" else emit(e)),
    ),
    "arithmetic-shift": Mutant(
        "unsigned right shifts copy the sign", "shift", (U32, U16,),
        _operation("arith.shrui", lambda emit: lambda e: elementwise.TABLE["arith.shrsi"](e)),
    ),
    "contracted": Mutant("a * b + c is rounded once", "multiply_add", (F32,), _contracted),
    "twice-rounded": Mutant(
        "f64 is rounded to f32 on its way to bf16 and f16", "conversion", (F64, BF16),
        _header("scalar.h", r"return back == d .* \? f : cp_bits_f32\(odd\);", "return f;"),
    ),
    "moved-elements": Mutant(
        "a tile is read while it is written over itself in another order", "memory", (F32, I32),
        lambda put, folder: put(Placement, "_read_in_place", lambda self, value, root: True),
    ),
    "half-summed": Mutant("a sum leaves out half of the lanes", "reduce", (F32,), _half_of_the_lanes),
    "forward-scan": Mutant("reverse scans run forward", "scan", (I32,), _statement("tt.scan", _forward)),
    "swapped-join": Mutant("tl.join swaps its operands", "join", (I16,), _rule("tt.join", _swapped)),
    "short-dot": Mutant(
        "a dot leaves out the last step of k", "dot", (F32,),
        _header("dot.h", r"for \(int k = 0; k < K; k\+\+\)", "for (int k = 0; k + (K > 1) < K; k++)"),
    ),
    "short-quads": Mutant(
        "a dot of int8 leaves out the last four steps of k", "dot", (I8,),
        _header("dot_i8.h", r"k < quads; k\+\+, P", "k + (quads > 1) < quads; k++, P"),
    ),
    "sequential-assignment": Mutant(
        "loops assign carried values one after the other", "control", (I32, F32), _sequential
    ),
}  # fmt: skip


def _with_predicate(element: elementwise.Element) -> elementwise.Element:
    """A copy of a comparison that says signed where it said unsigned."""
    op = element.op
    predicate = op.attrs["words"][0]
    if predicate[0] != "u":
        return element
    signed = replace(op, attrs=op.attrs | {"words": ["s" + predicate[1:], *op.attrs["words"][1:]]})
    return replace(element, op=signed)


def _saturated(e: elementwise.Element) -> str:
    total = f"((int)({e.args[0]}) + (int)({e.args[1]}))"
    return f"((int8_t)({total} > 127 ? 127 : {total} < -128 ? -128 : {total}))"

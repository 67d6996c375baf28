"""Rules that every compiled CUDA kernel keeps. Each yields what breaks it, naming the instruction and the line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from codegen.inspect.compiled import Compiled
from codegen.inspect.device import DEVICES, REGISTER_FILE, WIDE_ROWS
from codegen.inspect.listing import Instruction, Line, matching

PTX_FMA = r"(fma|mad)\.\S*f32"
PTX_MUL = r"mul\.\S*f32"
SASS_FMA = r"FFMA"
# PTX operations that the assembler expands into multiply-adds: correctly rounded division and roots.
EXPANDED = r"(div|rcp|sqrt)\.r[nzmp]\."
PTX_DOT = r"(mma\.|wgmma\.mma_async|tcgen05\.mma)"
SASS_DOT = r"\w*MMA(\.|$)"
HALF_ARITHMETIC = r"H(FMA|ADD|MUL)2"
CONSTANT_MOVE = re.compile(r"\w+(\.reuse)?, -RZ, RZ, ")  # how the assembler writes an immediate with the half unit
OPERANDS = {("bf16", "bf16"): "f32", ("i8", "i8"): "i32"}  # of a dot, and what it accumulates in
# Saturation, which Triton asks for, is beyond reach: 127 * 127 * 16384, the widest residual stream, is below 2^28.
INT8_DOT = {
    "mma": re.compile(r"mma\.sync\.aligned\.m16n8k(16|32)\.row\.col(\.satfinite)?\.s32\.s8\.s8\.s32$"),
    "wgmma": re.compile(r"wgmma\.mma_async\.sync\.aligned\.m64n\d+k32(\.satfinite)?\.s32\.s8\.s8$"),
    "tcgen05": re.compile(r"tcgen05\.mma\.cta_group::[12]\.kind::i8$"),
}
BF16_DOT = {
    "mma": re.compile(r"mma\.sync\.aligned\.m16n8k(8|16)\.row\.col\.f32\.bf16\.bf16\.f32$"),
    "wgmma": re.compile(r"wgmma\.mma_async\.sync\.aligned\.m64n\d+k16\.f32\.bf16\.bf16$"),
    "tcgen05": re.compile(r"tcgen05\.mma\.cta_group::[12]\.kind::f16$"),
}


@dataclass(frozen=True)
class Finding:
    """A broken rule and what breaks it."""

    rule: str
    detail: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.detail}"


def judge(compiled: Compiled) -> list[Finding]:
    """Every rule that the kernel breaks."""
    return [Finding(name, detail) for name, rule in RULES.items() for detail in rule(compiled)]


def lanes(multiply_adds: Iterable[Instruction]) -> Counter[Line | None]:
    """fp32 multiply-adds by source line; a packed one counts twice."""
    found: Counter[Line | None] = Counter()
    for instruction in multiply_adds:
        found[instruction.line] += 2 if re.search(r"f32x2|FFMA2", instruction.op) else 1
    return found


def half_arithmetic(compiled: Compiled) -> list[Instruction]:
    """Machine instructions that compute in 16 bits; the assembler's constant moves are none."""
    found = matching(compiled.sass, HALF_ARITHMETIC)
    return [instruction for instruction in found if not CONSTANT_MOVE.match(instruction.operands)]


def dot_family(op: str) -> str:
    """mma, wgmma or tcgen05."""
    return op.split(".", 1)[0]


def _spills(compiled: Compiled) -> Iterator[str]:
    if compiled.spill_bytes:
        yield f"{compiled.spill_bytes} bytes of stack and local memory per thread"
    local = matching(compiled.sass, r"(LDL|STL)(\.|$)") or matching(compiled.ptx, r"(ld|st)\.local")
    if local:
        yield f"{len(local)} accesses of local memory, first {_at(local[0])}"


def _shared(compiled: Compiled) -> Iterator[str]:
    limit = DEVICES[compiled.arch].shared_bytes
    if compiled.shared_bytes > limit:
        yield f"{compiled.shared_bytes} bytes of shared memory; a block of {compiled.target} has {limit}"


def _registers(compiled: Compiled) -> Iterator[str]:
    threads = 32 * compiled.num_warps
    if compiled.registers * threads > REGISTER_FILE:
        yield f"{threads} threads of {compiled.registers} registers; a multiprocessor has {REGISTER_FILE}"


def _tensor_memory(compiled: Compiled) -> Iterator[str]:
    columns = DEVICES[compiled.arch].tensor_columns
    if compiled.tensor_columns > columns:
        yield f"{compiled.tensor_columns} columns of tensor memory; {compiled.target} has {columns}"


def _operands(compiled: Compiled) -> Iterator[str]:
    """Dots take bf16 and accumulate in fp32, or int8 and int32; a dot of fp32 must say `input_precision="ieee"`."""
    for dot in compiled.intent.dots:
        shape = f"dot of [{dot.m}, {dot.k}] {dot.left} and [{dot.k}, {dot.n}] {dot.right} at {dot.line}"
        meant = OPERANDS.get((dot.left, dot.right), "f32")
        if dot.accumulator != meant:
            yield f"{shape} accumulates in {dot.accumulator}, {meant} is meant"
        if dot.left == dot.right == "f32":
            if dot.precision != "ieee":
                yield f'{shape} is computed in {dot.precision}; say input_precision="ieee" or pass bf16'
        elif (dot.left, dot.right) not in OPERANDS:
            yield f"{shape}: bf16 or int8 operands are meant"


def _tensor_cores(compiled: Compiled) -> Iterator[str]:
    """A bf16 or int8 dot runs on tensor cores, in a family that the target has; nothing else does.

    bf16 products are added in fp32, those of int8 in int32.
    """
    device = DEVICES[compiled.arch]
    dots = [dot for dot in compiled.intent.dots if (dot.left, dot.right) in OPERANDS]
    forms = [form for left, form in (("bf16", BF16_DOT), ("i8", INT8_DOT)) if any(dot.left == left for dot in dots)]
    used = matching(compiled.ptx, PTX_DOT)
    if dots and not used:
        yield f"dot at {dots[0].line} has no tensor core instruction"
    if not dots and used:
        yield f"{_at(used[0])} without a bf16 or int8 dot"
    for instruction in used:
        family = dot_family(instruction.op)
        if family not in device.families:
            yield f"{_at(instruction)}: {compiled.target} has {', '.join(device.families)}"
        elif dots and not any(form[family].match(instruction.op) for form in forms):
            yield f"{_at(instruction)} is no bf16 product with fp32 accumulation, nor one of int8 with int32"
    machine = matching(compiled.sass, SASS_DOT)
    if bool(machine) != bool(used):
        yield f"{len(used)} dots in PTX are {len(machine)} in machine code"
    wide = [dot for dot in dots if dot.m >= WIDE_ROWS]
    families = {dot_family(instruction.op) for instruction in used}
    if wide and device.wide_dot not in families:
        ran = ", ".join(sorted(families)) or "nothing"
        yield f"dot of {wide[0].m} rows at {wide[0].line} runs on {ran}, not on {device.wide_dot}"


def _tf32(compiled: Compiled) -> Iterator[str]:
    for instruction in (*matching(compiled.ptx, r".*tf32"), *matching(compiled.sass, r".*TF32")):
        yield f"{_at(instruction)} rounds fp32 to tf32"
        return


def _contraction(compiled: Compiled) -> Iterator[str]:
    """A multiply-add is one that `tl.fma` or an elementary function asks for, in PTX and in machine code.

    Lines tell: that of an fp32 multiply-add in PTX holds one of the two in the IR, that in machine code one in PTX.
    Where a product is added to something on such a line, the two could not be told apart, which is a finding as well.
    Parts of an elementary function may have lost their line, but flush denormals, which no arithmetic of a kernel does.
    Where code goes on in another file at a line of the same number, the listing of machine code does not tell. So a
    line of an allowed number is allowed if PTX has no product there: then there is nothing to contract.
    """
    intent = compiled.intent
    asked = intent.fma | intent.functions
    for line in sorted(asked & intent.contractible, key=str):
        yield f"{line} adds a product beside a tl.fma or an elementary function; give it a line of its own"
    in_ptx = matching(compiled.ptx, PTX_FMA)
    lost = any(_flushes(i) and i.line is None for i in in_ptx) and bool(intent.functions)
    for place, count in _elsewhere(in_ptx, asked, lost):
        yield f"{count} multiply-adds of PTX at {place or 'an unknown line'}, where no tl.fma asks for one"
    allowed = asked | {i.line for i in matching(compiled.ptx, EXPANDED) if i.line} | {i.line for i in in_ptx if i.line}
    numbers, products = {line.number for line in allowed}, {i.line for i in matching(compiled.ptx, PTX_MUL)}
    in_sass = matching(compiled.sass, SASS_FMA)
    mistaken = {i.line for i in in_sass if i.line and i.line.number in numbers and i.line not in products}
    for place, count in _elsewhere(in_sass, allowed | mistaken, lost):
        yield f"{count} FFMA at {place or 'an unknown line'}, where PTX has none: contracted by the assembler"


def _elsewhere(found: list[Instruction], allowed: Iterable[Line], lost: bool) -> list[tuple[Line | None, int]]:
    """Multiply-adds on lines that are not allowed. lost: those that flush denormals are of an elementary function."""
    kept = [instruction for instruction in found if not (lost and _flushes(instruction))]
    counts = lanes(kept)
    return sorted(((line, counts[line]) for line in set(counts) - set(allowed)), key=str)


def _flushes(instruction: Instruction) -> bool:
    return ".ftz" in instruction.op.lower()


def _half(compiled: Compiled) -> Iterator[str]:
    found = half_arithmetic(compiled)
    if found:
        yield f"{len(found)} instructions compute in 16 bits, first {_at(found[0])}"


def _double(compiled: Compiled) -> Iterator[str]:
    found = matching(compiled.ptx, r".*\.f64") or matching(
        compiled.sass, r"(D(ADD|MUL|FMA|SETP|MMA)|F2F\S*F64|MUFU\S*64)"
    )
    if found:
        yield f"{len(found)} instructions in fp64, first {_at(found[0])}"


def _unordered(compiled: Compiled) -> Iterator[str]:
    """An atomic sum of floats has no order, so no bits that can be promised."""
    found = matching(compiled.ptx, r"(atom|red)\..*add\.\S*(f32|f64|f16|bf16)")
    if found:
        yield f"{_at(found[0])} adds floats in no order"


def _at(instruction: Instruction) -> str:
    return f"{instruction.op} at {instruction.line or 'an unknown line'}"


RULES: dict[str, Callable[[Compiled], Iterator[str]]] = {
    "spills": _spills,
    "shared memory": _shared,
    "registers": _registers,
    "tensor memory": _tensor_memory,
    "dot operands": _operands,
    "tensor cores": _tensor_cores,
    "tf32": _tf32,
    "contraction": _contraction,
    "16-bit arithmetic": _half,
    "fp64": _double,
    "unordered sum": _unordered,
}

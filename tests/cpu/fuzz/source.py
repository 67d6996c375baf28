"""Prints a program as the source of a real `@triton.jit` kernel."""

from __future__ import annotations

import math

from tests.cpu.fuzz.dtypes import DTYPES
from tests.cpu.fuzz.operations import OPERATIONS
from tests.cpu.fuzz.program import Block, Program, Stmt, walk

HEADER = '''"""Program {index} of seed {seed} ({kind})."""

import triton
import triton.language as tl
from triton.language.extra import libdevice
'''
HELPERS = {
    "multiply": "return a * b",
    "larger": "return tl.maximum(a, b)",
}
AFFINE = """

@triton.jit
def affine(a1, b1, a2, b2):
    return a1 * a2, b1 * a2 + b2
"""


def kernel_source(program: Program) -> str:
    """Text of a module with the kernel `program`: buffers as pointers, then the scalar arguments."""
    parameters = [buffer.name for buffer in program.buffers] + list(program.scalars)
    lines = [HEADER.format(index=program.index, seed=program.seed, kind=program.kind)]
    statements = Printer(program).block(program.body, 1)
    text = "\n".join(statements)
    for name, body in HELPERS.items():
        if f", {name})" in text or f", {name}, " in text:
            lines.append(f"\n@triton.jit\ndef {name}(a, b):\n    {body}\n")
    if ", affine, " in text:
        lines.append(AFFINE.lstrip("\n").join(["\n", ""]))
    lines.append(f"\n@triton.jit\ndef program({', '.join(parameters)}):")
    lines.append("    pid = tl.program_id(0) + tl.program_id(1) * tl.num_programs(0)")
    return "\n".join([*lines, *_offsets(program), text]) + "\n"


def _offsets(program: Program) -> list[str]:
    """One line per shape that some access needs: the row-major number of each element of a tile."""
    shapes = {tuple(s.attrs["shape"]) for s in walk(program.body) if s.attrs.get("mode") in ("tile", "shared")}
    return [f"    {offset_name(shape)} = {offset_text(shape)}" for shape in sorted(shapes) if shape]


def offset_name(shape: tuple[int, ...]) -> str:
    return "o_" + "x".join(map(str, shape)) if shape else ""


def offset_text(shape: tuple[int, ...]) -> str:
    terms, stride = [], 1
    for d in reversed(range(len(shape))):
        place = ", ".join(":" if k == d else "None" for k in range(len(shape)))
        text = f"tl.arange(0, {shape[d]})" + (f"[{place}]" if len(shape) > 1 else "")
        terms.append(text if stride == 1 else f"{text} * {stride}")
        stride *= shape[d]
    return " + ".join(reversed(terms))


def number(value: float | int | bool) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


class Printer:
    """Statements as lines."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def block(self, body: tuple[Stmt, ...], depth: int) -> list[str]:
        return [line for stmt in body for line in self.statement(stmt, depth)]

    def statement(self, stmt: Stmt, depth: int) -> list[str]:
        pad = "    " * depth
        if stmt.op in ("if", "for", "while"):
            return getattr(self, "_" + stmt.op)(stmt, depth)
        if stmt.op == "store":
            return [f"{pad}{line}" for line in self._store(stmt)]
        left = f"{', '.join(stmt.results)} = " if stmt.results else ""
        note = f"  # {self.program.types[stmt.result]}" if stmt.results else ""
        return [f"{pad}{left}{self.expression(stmt)}{note}"]

    # ---- control

    def _assign(self, names: tuple[str, ...], values: tuple[str, ...], depth: int) -> list[str]:
        return [f"{'    ' * depth}{', '.join(names)} = {', '.join(values)}"] if names else []

    def _arm(self, block: Block, results: tuple[str, ...], depth: int) -> list[str]:
        lines = [*self.block(block.body, depth), *self._assign(results, block.yields, depth)]
        return lines or ["    " * depth + "pass"]

    def _if(self, stmt: Stmt, depth: int) -> list[str]:
        pad, (then, otherwise) = "    " * depth, stmt.blocks
        lines = [f"{pad}if {stmt.args[0]}:", *self._arm(then, stmt.results, depth + 1)]
        return [*lines, f"{pad}else:", *self._arm(otherwise, stmt.results, depth + 1)]

    def _loop(self, stmt: Stmt, head: str, carried: tuple[str, ...], tail: list[str], depth: int) -> list[str]:
        """The carried names become the results after the loop."""
        (block,) = stmt.blocks
        names = block.params[1:]
        lines = [*self._assign(names, carried, depth), f"{'    ' * depth}{head}"]
        lines += [*self.block(block.body, depth + 1), *self._assign(names, block.yields, depth + 1)]
        lines += [f"{'    ' * (depth + 1)}{line}" for line in tail]
        return [*lines, *self._assign(stmt.results, names, depth)]

    def _for(self, stmt: Stmt, depth: int) -> list[str]:
        low, high, *carried = stmt.args
        step = f", {stmt.attrs['step']}" if stmt.attrs["step"] != 1 else ""
        head = f"for {stmt.blocks[0].params[0]} in range({low}, {high}{step}):"
        return self._loop(stmt, head, tuple(carried), [], depth)

    def _while(self, stmt: Stmt, depth: int) -> list[str]:
        count, (counter, *_) = stmt.args[0], stmt.blocks[0].params
        lines = self._loop(stmt, f"while {counter} > 0:", stmt.args[1:], [f"{counter} -= 1"], depth)
        return [f"{'    ' * depth}{counter} = {count}", *lines]

    # ---- memory

    def _place(self, stmt: Stmt) -> tuple[str, str]:
        """Offset and mask of an access; the mask may be empty."""
        attrs, shape = stmt.attrs, tuple(stmt.attrs["shape"])
        if attrs["mode"] == "index":
            offset = stmt.args[attrs["index_arg"]]
        elif attrs["mode"] == "strided":
            stride = attrs["stride_name"]
            rows = f"(pid * {shape[0]} + tl.arange(0, {shape[0]}))[:, None]"
            offset = f"{rows} * {stride} + tl.arange(0, {shape[1]})[None, :]"
        else:
            flat = offset_name(shape)
            base = "" if attrs["mode"] == "shared" else f"pid * {math.prod(shape)}" if shape else "pid"
            offset = " + ".join(filter(None, (base, flat))) or "0"
        masks = []
        if attrs.get("limit"):
            masks.append(f"({offset} < {attrs['limit']})")
        if attrs.get("columns"):
            masks.append(f"(tl.arange(0, {shape[1]})[None, :] < {attrs['columns']})")
        if attrs.get("mask_arg") is not None:
            masks.append(stmt.args[attrs["mask_arg"]])
        return offset, " & ".join(masks)

    def _load(self, stmt: Stmt) -> str:
        offset, mask = self._place(stmt)
        other = stmt.attrs.get("other")
        masked = f", mask={mask}" if mask else ""
        otherwise = f", other={number(other)}" if mask and other is not None else ""
        return f"tl.load({stmt.attrs['buffer']} + {offset}{masked}{otherwise})"

    def _store(self, stmt: Stmt) -> list[str]:
        offset, mask = self._place(stmt)
        masked = f", mask={mask}" if mask else ""
        barrier = ["tl.debug_barrier()"] if stmt.attrs.get("barrier") else []
        return [f"tl.store({stmt.attrs['buffer']} + {offset}, {stmt.args[0]}{masked})", *barrier]

    def _atomic(self, stmt: Stmt) -> str:
        offset, mask = self._place(stmt)
        masked = f", mask={mask}" if mask else ""
        return f"tl.atomic_{stmt.attrs['kind']}({stmt.attrs['buffer']} + {offset}, {stmt.args[0]}{masked})"

    # ---- everything else

    def expression(self, stmt: Stmt) -> str:
        args, attrs = stmt.args, stmt.attrs
        if stmt.op in OPERATIONS:
            return OPERATIONS[stmt.op].source.format(*args)
        match stmt.op:
            case "load":
                return self._load(stmt)
            case "atomic":
                return self._atomic(stmt)
            case "cas":
                return f"tl.atomic_cas({attrs['buffer']} + {self._place(stmt)[0]}, {args[0]}, {args[1]})"
            case "const":
                type_ = self.program.types[stmt.result]
                return f"tl.full({list(type_.shape)}, {number(attrs['value'])}, {type_.dtype.triton})"
            case "arange":
                return f"tl.arange({attrs['range'][0]}, {attrs['range'][1]})"
            case "pid":
                return "pid"
            case "scalar":
                return f"tl.full([], {attrs['scalar']}, tl.int32)"
            case "reduce":
                return self._reduce(stmt)
            case "scan":
                return self._scan(stmt)
        return TEXTS[stmt.op](stmt, DTYPES[self.program.types[stmt.result].elem].triton, self.program)

    def _reduce(self, stmt: Stmt) -> str:
        names = {"xor": "xor_sum", "or": "reduce_or"}
        kind, axis = stmt.attrs["kind"], stmt.attrs["axis"]
        keep = ", keep_dims=True" if stmt.attrs["keep_dims"] else ""
        if kind == "prod":
            return f"tl.reduce({stmt.args[0]}, {axis}, multiply{keep})"
        return f"tl.{names.get(kind, kind)}({stmt.args[0]}, axis={axis}{keep})"

    def _scan(self, stmt: Stmt) -> str:
        kind, axis = stmt.attrs["kind"], stmt.attrs["axis"]
        reverse = f", reverse={stmt.attrs['reverse']}"
        if kind in ("sum", "prod"):
            return f"tl.cum{kind}({stmt.args[0]}, axis={axis}{reverse})"
        if kind == "affine":
            return f"tl.associative_scan(({', '.join(stmt.args)}), {axis}, affine{reverse})[1]"
        return f"tl.associative_scan({stmt.args[0]}, {axis}, larger{reverse})"


def _dot(stmt: Stmt, dtype: str, program: Program) -> str:
    acc = f", acc={stmt.args[2]}" if len(stmt.args) > 2 else ""
    return f'tl.dot({stmt.args[0]}, {stmt.args[1]}{acc}, input_precision="ieee", out_dtype={dtype})'


TEXTS = {
    "where": lambda s, t, p: f"tl.where({', '.join(s.args)})",
    "cast": lambda s, t, p: f"{s.args[0]}.to({t}" + (', fp_downcast_rounding="rtz")' if s.attrs.get("rtz") else ")"),
    "bitcast": lambda s, t, p: f"{s.args[0]}.to({t}, bitcast=True)",
    "reshape": lambda s, t, p: f"tl.reshape({s.args[0]}, {list(p.types[s.result].shape)})",
    "broadcast": lambda s, t, p: f"tl.broadcast_to({s.args[0]}, {list(p.types[s.result].shape)})",
    "trans": lambda s, t, p: f"tl.permute({s.args[0]}, {list(s.attrs['order'])})",
    "expand_dims": lambda s, t, p: f"tl.expand_dims({s.args[0]}, {s.attrs['axis']})",
    "flip": lambda s, t, p: f"tl.flip({s.args[0]}, {s.attrs['axis']})",
    "join": lambda s, t, p: f"tl.join({s.args[0]}, {s.args[1]})",
    "split": lambda s, t, p: f"tl.split({s.args[0]})",
    "cat": lambda s, t, p: f"tl.cat({s.args[0]}, {s.args[1]}, can_reorder=True)",
    "gather": lambda s, t, p: f"tl.gather({s.args[0]}, {s.args[1]}, {s.attrs['axis']})",
    "sort": lambda s, t, p: f"tl.sort({s.args[0]}, descending={s.attrs['descending']})",
    "histogram": lambda s, t, p: (
        f"tl.histogram({s.args[0]}, {s.attrs['bins']}" + (f", mask={s.args[1]})" if len(s.args) > 1 else ")")
    ),
    "dot": _dot,
}

"""What a kernel's Triton IR asks for: dots, fused multiply-adds, elementary functions, each with its source line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from codegen.inspect.listing import Line

DEFINITION = re.compile(r"\s*(%[\w.#-]+)(?::\d+)?\s*=\s*\"?([a-z_]+\.[\w.]+)\"?\s*(.*)$")
OPERAND = re.compile(r"%[\w.-]+(?:#\d+)?")
LOCATION = re.compile(r"loc\((#loc\d*|\"[^\"]*\":\d+:\d+)\)\s*$")
ALIAS = re.compile(r"^(#loc\d*) = loc\((.*)\)\s*$")
PLACE = re.compile(r'"([^"]*)":(\d+):\d+')
DOT = re.compile(
    r"inputPrecision = (\w+).*?: tensor<(\d+)x(\d+)x(\w+)> \* tensor<(\d+)x(\d+)x(\w+)> -> tensor<\d+x\d+x(\w+)>"
)
PASSED_ON = ("tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.splat", "tt.trans", "ttg.convert_layout")
# Operations that one instruction computes, or none: all other elementary functions may hold multiply-adds of their own.
SINGLE = ("math.exp", "math.exp2", "math.sqrt", "math.absf", "math.floor", "math.ceil", "math.rsqrt")


@dataclass(frozen=True)
class Dot:
    """A `tl.dot` of [m, k] and [k, n]; precision as in the IR, which means nothing for 16-bit operands."""

    m: int
    n: int
    k: int
    left: str
    right: str
    accumulator: str
    precision: str
    line: Line | None


@dataclass(frozen=True)
class Intent:
    """fma: lines of `tl.fma`; functions: lines of elementary functions that may hold multiply-adds of their own;
    contractible: lines where a product is added to something, which a contracting compiler would fuse.
    """

    dots: tuple[Dot, ...]
    fma: frozenset[Line]
    functions: frozenset[Line]
    contractible: frozenset[Line]


@dataclass(frozen=True)
class _Operation:
    result: str
    op: str
    rest: str
    line: Line | None

    @property
    def operands(self) -> list[str]:
        return OPERAND.findall(self.rest)


def read_intent(ttir: str) -> Intent:
    """The Intent of a Triton IR module, as Triton prints it."""
    operations = list(_operations(ttir))
    defined = {operation.result: operation for operation in operations}
    return Intent(
        tuple(_dots(operations)),
        frozenset(_lines(operations, lambda op: op.op == "math.fma")),
        frozenset(_lines(operations, lambda op: _may_expand(op.op))),
        frozenset(_lines(operations, lambda op: op.op in ("arith.addf", "arith.subf") and _adds_product(op, defined))),
    )


def _may_expand(op: str) -> bool:
    if op.startswith("math."):
        return op != "math.fma" and op not in SINGLE
    return op in ("tt.extern_elementwise", "tt.precise_sqrt", "tt.precise_divf", "arith.remf")


def _lines(operations: list[_Operation], wanted: Callable[[_Operation], bool]) -> Iterator[Line]:
    for operation in operations:
        if operation.line is not None and wanted(operation):
            yield operation.line


def _adds_product(operation: _Operation, defined: dict[str, _Operation]) -> bool:
    for name in operation.operands:
        source = defined.get(name)
        while source is not None and source.op in PASSED_ON and source.operands:
            source = defined.get(source.operands[0])
        if source is not None and source.op == "arith.mulf":
            return True
    return False


def _dots(operations: list[_Operation]) -> Iterator[Dot]:
    for operation in operations:
        if operation.op != "tt.dot":
            continue
        found = DOT.search(operation.rest)
        if found is None:  # ieee is the default, which the IR leaves out
            found = DOT.search(operation.rest.replace(" : tensor", ", inputPrecision = ieee : tensor", 1))
        assert found is not None, operation.rest
        precision, m, k, left, _, n, right, accumulator = found.groups()
        yield Dot(int(m), int(n), int(k), left, right, accumulator, precision, operation.line)


def _operations(ttir: str) -> Iterator[_Operation]:
    places = _places(ttir)
    for text in ttir.splitlines():
        if definition := DEFINITION.match(text):
            where = LOCATION.search(text)
            line = _place(where[1], places) if where else None
            yield _Operation(definition[1], definition[2], definition[3], line)


def _places(ttir: str) -> dict[str, str]:
    return {found[1]: found[2] for found in map(ALIAS.match, ttir.splitlines()) if found}


def _place(text: str, places: dict[str, str]) -> Line | None:
    """The innermost source line: the callee of a call site, the place of a named location."""
    while True:
        if found := PLACE.match(text):
            return Line(PurePosixPath(found[1]).name, int(found[2]))
        alias = re.search(r"#loc\d*", text)
        if alias is None or alias[0] not in places:
            return None
        text = places[alias[0]]

"""Tiles whose places a loop reads from a table, such as the pages of a sequence.

The processor cannot guess where the next one lies, so a round fetches what the next round reads (`emit/tiles.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from ..ttir.ir import BITS, Op, Value, words
from .effects import WRITES
from .panel import COLUMN_MULTIPLE, GROUPS, Panel

#: A smaller tile comes with a few misses, a larger one is a stream of its own (stream.py).
LEAST_BYTES, MOST_BYTES = 1024, 32768
#: What finds a place in memory without reading any.
_ARITHMETIC = words(
    "tt.make_range tt.splat tt.broadcast tt.expand_dims tt.reshape tt.addptr arith.constant arith.addi arith.subi",
    "arith.muli arith.divsi arith.remsi arith.extsi arith.extui arith.trunci",
)
#: Operations of a body after which the next round may find another table, or may not be reached.
_LEAVES_OPEN = WRITES | {"tt.assert"}


@dataclass(frozen=True)
class Tiles:
    """Of one scf.for. loads: of a tile each, which a product reads where it lies, in order. steps: scalar operations of
    its body, in order, by which the loop's counter tells where they lie; what is loaded among them lies where the
    counter alone says."""

    loads: tuple[Op, ...]
    steps: tuple[Op, ...]


def bytes_of(load: Op) -> int:
    """Of what it loads."""
    return load.result.type.numel * BITS[load.result.type.elem] // 8


def find_tiles(panels: Mapping[Op, Panel], stored: Collection[Value]) -> dict[Op, Tiles]:
    """Maps a loop to its tiles, if it has some. panels: of products. stored: tensors that are not evaluated where they
    are used."""
    steps_of: dict[Op, dict[Op, set[Op]]] = {}
    for dot, panel in panels.items():
        loop = dot.block.parent
        if panel.load is not None and loop is not None and _is_tile(dot, panel, stored) and _is_certain(loop):
            steps = _steps(panel.load, loop, stored)
            if steps is not None:
                steps_of.setdefault(loop, {})[panel.load] = steps
    return {loop: _in_order(loop, found) for loop, found in steps_of.items()}


def _in_order(loop: Op, found: Mapping[Op, set[Op]]) -> Tiles:
    body, needed = loop.regions[0].ops, set().union(*found.values())
    return Tiles(tuple(op for op in body if op in found), tuple(op for op in body if op in needed))


def _is_certain(loop: Op) -> bool:
    """Is every round but the last followed by another, which finds the table as it is now?"""
    if loop.name != "scf.for" or loop.attrs["unsigned"]:
        return False
    return not any(op.name in _LEAVES_OPEN for op in loop.walk())


def _is_tile(dot: Op, panel: Panel, stored: Collection[Value]) -> bool:
    """Is it one block of memory that this product, first of those of its block, reads where it lies?"""
    load, columns = panel.load, dot.operands[1].type.dims[1]
    if load.name != "tt.load" or load.block is not dot.block or panel.fields is not None or not panel.fetches:
        return False
    if panel.groups in stored or columns < COLUMN_MULTIPLE:
        return False
    without_gaps = panel.row_stride == columns * GROUPS[panel.groups.type.elem]
    return without_gaps and LEAST_BYTES <= bytes_of(load) <= MOST_BYTES


def _steps(load: Op, loop: Op, stored: Collection[Value]) -> set[Op] | None:
    """The scalar operations by which a tile is found; None if the counter and a table do not tell where it lies."""
    steps: set[Op] = set()
    for op in _behind(load.operands[0], loop):
        if op is None or not (op.name in _ARITHMETIC or _reads_table(op)) or op.result in stored:
            return None
        if not op.result.type.is_tensor:
            steps.add(op)
    tables = [op for op in steps if op.name == "tt.load"]
    by_tables = any(
        op is not None and op.name == "tt.load" for each in tables for op in _behind(each.operands[0], loop)
    )
    return None if by_tables or not tables else steps


def _reads_table(op: Op) -> bool:
    plain = len(op.operands) == 1 and "isVolatile" not in op.attrs
    return op.name == "tt.load" and not op.result.type.is_tensor and plain


def _behind(value: Value, loop: Op) -> Iterator[Op | None]:
    """Operations of the body that a value is computed by; None for what the loop carries."""
    body, seen, pending = loop.regions[0], set(), [value]
    while pending:
        value = pending.pop()
        if value in seen or value is body.args[0]:
            continue
        seen.add(value)
        if value.op is None:
            if value.block is body:
                yield None
        elif value.op.block is body:
            yield value.op
            pending += value.op.operands

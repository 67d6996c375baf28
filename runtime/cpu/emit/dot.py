"""tt.dot. bf16 products read their right operand as a k-pair panel: in place when it lies in memory as one
(`analysis/panel.py`), else packed into a local buffer. All paths accumulate in the order `native/dot_bf16.h` states."""

from __future__ import annotations

from ..analysis.affine import RUNTIME
from ..analysis.liveness import accumulates_in_place
from ..analysis.placement import Place
from ..ttir.ir import Op, Value
from .emitter import Emitter, emits
from .nest import ZERO, At, Nest

COLUMN_MULTIPLE = 16


@emits("tt.dot")
def dot(e: Emitter, op: Op) -> None:
    left, right, _ = op.operands
    target = _accumulator(e, op)
    if left.type.elem == right.type.elem == "bf16" and op.result.type.elem == "f32" and len(left.type.dims) == 2:
        e.include("dot_bf16.h")
        _dot_bf16(e, op, target)
    else:
        e.include("dot.h")
        emit = _dot_f16 if op.result.type.elem == "f16" else _dot_any
        emit(e, op, target)


def _accumulator(e: Emitter, op: Op) -> str:
    """Array that holds the accumulator and becomes the result: the loop's own when it may be updated in place."""
    accumulator = op.operands[2]
    carried = e.in_place_accumulators.get(op) or accumulates_in_place(op, e.placement.updates)
    if carried is not None and e.names.get(accumulator) == e.names[carried]:
        e.names[op.result], e.place[op.result] = e.names[carried], Place.ARRAY
    else:
        e.allocate(op.result)
        e.materialise(accumulator, e.names[op.result])
    return e.names[op.result]


def _dot_f16(e: Emitter, op: Op, target: str) -> None:
    """An f16 accumulator: the product is accumulated in f32 and rounded once at the end."""
    count, i = op.result.type.numel, e.fresh("i")
    exact = e.array("f32", count)
    e.write(f"for (int {i} = 0; {i} < {count}; {i}++) {exact}[{i}] = (float){target}[{i}];")
    _dot_any(e, op, exact, "f32")
    e.write(f"for (int {i} = 0; {i} < {count}; {i}++) {target}[{i}] = (_Float16){exact}[{i}];")


def _dot_any(e: Emitter, op: Op, target: str, elem: str = "") -> None:
    """`target` is an array of `elem`, the type of the result unless given."""
    left, right, _ = op.operands
    rows, depth = left.type.dims[-2:]
    columns, elem = right.type.dims[-1], elem or op.result.type.elem
    a, b = _converted(e, left, elem), _converted(e, right, elem)
    for batch in range(left.type.numel // (rows * depth)):
        args = f"{a} + {batch * rows * depth}, {b} + {batch * depth * columns}, {target} + {batch * rows * columns}"
        e.write(f"cp_dot_{elem}({rows}, {columns}, {depth}, {args});")


def _converted(e: Emitter, operand: Value, elem: str) -> str:
    if operand.type.elem == elem:
        return e.stored(operand)
    name = e.array(elem, operand.type.numel)
    e.materialise(operand, name, as_type=elem)
    return name


def _dot_bf16(e: Emitter, op: Op, target: str) -> None:
    left, right, _ = op.operands
    (rows, depth), columns = left.type.dims, right.type.dims[1]
    padded = max(columns, COLUMN_MULTIPLE)
    a, lda = _left(e, left, rows, depth)
    panel, stride = _panel(e, op, depth, columns, padded)
    pairs = (depth + 1) // 2
    if padded == columns:
        e.write(f"cp_dot_panel({rows}, {columns}, {pairs}, {a}, {lda}, {panel}, {stride}, {target}, {columns});")
        return
    wide = e.array("f32", rows * padded)
    row, copy = e.fresh("i"), f"sizeof(float) * {columns}"
    each_row = f"for (int {row} = 0; {row} < {rows}; {row}++)"
    e.write(
        f"memset({wide}, 0, sizeof {wide});",
        f"{each_row} memcpy({wide} + {row} * {padded}, {target} + {row} * {columns}, {copy});",
        f"cp_dot_panel({rows}, {padded}, {pairs}, {a}, {lda}, {panel}, {stride}, {wide}, {padded});",
        f"{each_row} memcpy({target} + {row} * {columns}, {wide} + {row} * {padded}, {copy});",
    )


def _left(e: Emitter, left: Value, rows: int, depth: int) -> tuple[str, int]:
    """Array of the left operand as rows of whole k pairs, and its row stride."""
    if depth > 1:
        return e.stored(left), depth
    single, name, i = e.stored(left), e.array("bf16", 2 * rows), e.fresh("i")
    with e.scope(f"for (int {i} = 0; {i} < {rows}; {i}++)"):
        e.write(f"{name}[2 * {i}] = {single}[{i}];", f"{name}[2 * {i} + 1] = 0;")
    return name, 2


def _panel(e: Emitter, op: Op, depth: int, columns: int, padded: int) -> tuple[str, str]:
    """C expressions of the panel's address and of the elements between its k pairs."""
    panel = e.placement.panels.get(op)
    if panel is not None and padded == columns:
        if panel.load is not None and e.place[panel.pairs] is not Place.ARRAY:
            return _in_place(e, panel.load, panel.row_stride)
        return e.stored(panel.pairs), str(2 * columns)
    right = op.operands[1]
    packed = e.array("bf16", (depth + depth % 2) * padded)
    transposed = right.defining == "tt.trans" and e.place[right] is Place.INLINE
    source = e.stored(right.op.operands[0] if transposed else right)
    e.write(f"cp_pack_panel{'_transposed' if transposed else ''}({depth}, {columns}, {padded}, {source}, {packed});")
    return packed, str(2 * padded)


def _in_place(e: Emitter, load: Op, row_stride: int | str) -> tuple[str, str]:
    nest, pointers = Nest(e, 0), load.operands[0]
    origin = tuple(ZERO for _ in pointers.type.dims)
    base = nest.at(pointers, origin).code
    if row_stride != RUNTIME:
        e.write(*nest.levels[0])
        return base, str(row_stride)
    second = nest.at(pointers, (At("1", 0), *origin[1:])).code
    e.write(*nest.levels[0])
    return base, f"({second} - {base})"

"""tt.dot. bf16 products read their right operand as a k-pair panel: in place when it lies in memory as one
(`analysis/panel.py`), else packed into a local buffer. All paths accumulate in the order `native/dot_bf16.h` states."""

from __future__ import annotations

from typing import NamedTuple

from ..analysis.affine import RUNTIME, is_positive_zero
from ..analysis.liveness import accumulates_in_place
from ..analysis.placement import Place, is_packed, scaled_rows
from ..ttir.ir import Op, Value
from .emitter import Emitter, emits
from .nest import ZERO, At, Index, Nest, flat

COLUMN_MULTIPLE = 16


class Start(NamedTuple):
    """What accumulators start from: the name of `enum cp_start`, and the array of numbers that scale rows."""

    kind: str = "CP_FROM_C"
    scale: str = "0"


@emits("tt.dot")
def dot(e: Emitter, op: Op) -> None:
    if is_packed(op):
        e.include("dot_bf16.h")
        _dot_bf16(e, op)
    else:
        target = _accumulator(e, op)
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


def _packed_accumulator(e: Emitter, op: Op) -> tuple[str, Start]:
    """The same of a packed dot, which makes zeros and scales rows of its accumulators by itself."""
    accumulator = op.operands[2]
    if is_positive_zero(accumulator):
        return e.allocate(op.result), Start("CP_FROM_ZERO")
    if (rows := scaled_rows(accumulator)) is not None and e.place[accumulator] is Place.INLINE:
        carried, factors = rows
        if e.placement.updates.get(accumulator) is carried:
            e.names[op.result], e.place[op.result] = e.names[carried], Place.ARRAY
            return e.names[carried], Start("CP_FROM_SCALED", e.stored(factors))
    return _accumulator(e, op), Start()


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
    a, b = _converted(e, left, elem), _right(e, right, elem)
    for batch in range(left.type.numel // (rows * depth)):
        args = f"{a} + {batch * rows * depth}, {b} + {batch * depth * columns}, {target} + {batch * rows * columns}"
        e.write(f"cp_dot_{elem}({rows}, {columns}, {depth}, {args});")


def _converted(e: Emitter, operand: Value, elem: str) -> str:
    if operand.type.elem == elem:
        return e.stored(operand)
    name = e.array(elem, operand.type.numel)
    e.materialise(operand, name, as_type=elem)
    return name


def _right(e: Emitter, right: Value, elem: str) -> str:
    """Array of the right operand [K, N], row-major. Columns contiguous in memory are read so, then transposed."""
    if not (elem == right.type.elem == "f32" and _columns_contiguous(e, right)):
        return _converted(e, right, elem)
    depth, columns = right.type.dims
    name = e.array(elem, right.type.numel)
    e.write(f"cp_transpose_words({columns}, {depth}, {_column_by_column(e, right)}, {4 * depth}, {name}, {columns});")
    return name


def _columns_contiguous(e: Emitter, right: Value) -> bool:
    return len(right.type.dims) == 2 and min(right.type.dims) > 1 and e.innermost(right) == 0


def _column_by_column(e: Emitter, right: Value) -> str:
    """Array [N, K] of the right operand: the array or load it is a transposed view of, or a copy."""
    if right.defining == "tt.trans" and e.place[right] is Place.INLINE:
        return e.stored(right.op.operands[0])
    depth, columns = right.type.dims
    name = e.array(right.type.elem, right.type.numel)

    def build(nest: Nest, index: Index) -> None:
        nest.levels[-1].append(f"{name}[{flat((columns, depth), index)}] = {nest.at(right, index[::-1]).code};")

    e.loop_nest((columns, depth), build)
    return name


def _pack_rows(e: Emitter, right: Value, packed: str) -> None:
    """packed[k / 2][n][k % 2] = right[k, n]; K is even."""
    depth, columns = right.type.dims

    def build(nest: Nest, index: Index) -> None:
        pair = index[0]
        low, high = (nest.at(right, (At(f"(2 * {pair.code} + {k})", pair.level), index[1])).code for k in range(2))
        position = flat((depth // 2, columns), index)
        nest.levels[-1].append(f"((uint32_t *){packed})[{position}] = (uint32_t){low} | (uint32_t){high} << 16;")

    e.loop_nest((depth // 2, columns), build)


def _dot_bf16(e: Emitter, op: Op) -> None:
    left, right, _ = op.operands
    (rows, depth), columns = left.type.dims, right.type.dims[1]
    padded = max(columns, COLUMN_MULTIPLE)
    target, start = _packed_accumulator(e, op)
    a, lda = _left(e, op, rows, depth)
    panel, stride = _panel(e, op, depth, columns, padded)
    pairs = (depth + 1) // 2
    operands = f"{pairs}, {a}, {lda}, {panel}, {stride}"
    if padded == columns:
        e.write(f"cp_dot_panel({rows}, {columns}, {operands}, {target}, {columns}, {start.kind}, {start.scale});")
        return
    wide = e.array("f32", rows * padded)
    row, copy = e.fresh("i"), f"sizeof(float) * {columns}"
    each_row = f"for (int {row} = 0; {row} < {rows}; {row}++)"
    if start.kind != "CP_FROM_ZERO":
        e.write(
            f"memset({wide}, 0, sizeof {wide});",
            f"{each_row} memcpy({wide} + {row} * {padded}, {target} + {row} * {columns}, {copy});",
        )
    e.write(
        f"cp_dot_panel({rows}, {padded}, {operands}, {wide}, {padded}, {start.kind}, {start.scale});",
        f"{each_row} memcpy({target} + {row} * {columns}, {wide} + {row} * {padded}, {copy});",
    )


def _left(e: Emitter, op: Op, rows: int, depth: int) -> tuple[str, int | str]:
    """Array of the left operand as rows of whole k pairs, and its row stride."""
    left = op.operands[0]
    if depth > 1:
        if left not in e.rows_in_memory:
            e.rows_in_memory[left] = _left_in_place(e, op, depth)
        return e.rows_in_memory[left] or (e.stored(left), depth)
    single, name, i = e.stored(left), e.array("bf16", 2 * rows), e.fresh("i")
    with e.scope(f"for (int {i} = 0; {i} < {rows}; {i}++)"):
        e.write(f"{name}[2 * {i}] = {single}[{i}];", f"{name}[2 * {i} + 1] = 0;")
    return name, 2


#: A row stride whose multiples by the rows of a tile fit an int.
_LARGEST_STRIDE = 1 << 20


def _left_in_place(e: Emitter, op: Op, depth: int) -> tuple[str, str] | None:
    """Where the left operand lies in memory, if its rows are contiguous; a copy if masks or remainders say no."""
    left = op.operands[0]
    if e.checks or depth % 2 or left.defining != "tt.load" or e.place[left] is not Place.INLINE:
        return None
    pointers, *mask = left.op.operands
    row, column = (e.placement.strides_unwrapped.of(pointers, d) for d in range(2))
    general, anywhere = Nest(e, 0), (At("0", 0), At("0", 0))
    general.at(left, anywhere)
    fast = Nest(e, 0, frozenset(general.corners), unwrapped=frozenset(general.wraps))
    if column != 1 or row is None or (mask and fast.mask(mask[0], anywhere) is not None):
        return None
    name, stride, start, second = (e.fresh(prefix) for prefix in ("left", "stride", "start", "row"))
    e.declare(f"const uint16_t *{name}; int {stride};")
    statements, condition = e.assumptions(general)
    base, next_row = fast.at(pointers, (ZERO, ZERO)).code, fast.at(pointers, (At("1", 0), ZERO)).code
    e.write("{", *statements, *fast.levels[0], f"const uint16_t *const {start} = {base};")
    e.write(f"int64_t const {second} = {next_row} - {start};")
    fits = f"{second} < {_LARGEST_STRIDE} & {second} > -{_LARGEST_STRIDE}"
    copy = e.array("bf16", left.type.numel)
    with e.scope(f"if (cp_likely({condition} & {fits}))"):
        e.write(f"{name} = {start}; {stride} = (int){second};")
    with e.scope("else"):
        e.materialise(left, copy)
        e.write(f"{name} = {copy}; {stride} = {depth};")
    e.write("}")
    return name, stride


def _panel(e: Emitter, op: Op, depth: int, columns: int, padded: int) -> tuple[str, str]:
    """C expressions of the panel's address and of the elements between its k pairs."""
    panel = e.placement.panels.get(op)
    if panel is not None and padded == columns:
        if panel.load is not None and e.place[panel.pairs] is not Place.ARRAY:
            return _in_place(e, panel.load, panel.row_stride)
        return e.stored(panel.pairs), str(2 * columns)
    right = op.operands[1]
    packed = e.array("bf16", (depth + depth % 2) * padded)
    is_view = right.defining == "tt.trans" and e.place[right] is Place.INLINE
    sizes = f"{depth}, {columns}, {padded}"
    if is_view or _columns_contiguous(e, right):
        e.write(f"cp_pack_panel_transposed({sizes}, {_column_by_column(e, right)}, {packed});")
    elif depth % 2 == 0 and padded == columns:
        _pack_rows(e, right, packed)
    else:
        e.write(f"cp_pack_panel({sizes}, {e.stored(right)}, {packed});")
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

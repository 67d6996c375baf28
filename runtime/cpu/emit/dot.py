"""tt.dot. Products of bf16 and of int8 read their right operand as a panel of groups along k: in place when it lies in
memory as one (`analysis/panel.py`), else packed into a local buffer. All paths of bf16 accumulate in the order that
`native/dot_bf16.h` states; sums of int8 products are exact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..analysis.affine import RUNTIME, constant_int, is_positive_zero, uniform
from ..analysis.liveness import accumulates_in_place
from ..analysis.panel import COLUMN_MULTIPLE, GROUPS, SUMS, Panel, is_packed
from ..analysis.placement import Place, scaled_rows
from ..ttir.ir import CODED, Op, Value
from .coded import coded_rows
from .ctypes import c_type
from .emitter import Emitter, emits
from .nest import ZERO, At, Index, Nest, flat
from .tiles import distance


@dataclass(frozen=True)
class PanelDot:
    """A product on panels. header: its C; run, pack: functions of it; group: elements along k that lie together;
    unsigned: C type of one of them, as a part of 32 bits; scales: whether accumulators may start from scaled rows."""

    elem: str
    header: str
    run: str
    pack: str
    unsigned: str
    scales: bool

    @property
    def group(self) -> int:
        return GROUPS[self.elem]

    @property
    def accumulator(self) -> str:
        return SUMS[self.elem]


PANEL_DOTS = (
    PanelDot("bf16", "dot_bf16.h", "cp_dot_panel", "cp_pack_panel", "uint16_t", scales=True),
    PanelDot("i8", "dot_i8.h", "cp_dot_quads", "cp_pack_quads", "uint8_t", scales=False),
)


class Start(NamedTuple):
    """What accumulators start from: the name of `enum cp_start`, and numbers that scale their rows."""

    kind: str = "CP_FROM_C"
    scale: str = "0"


@emits("tt.dot")
def dot(e: Emitter, op: Op) -> None:
    form = _form(op)
    if form is not None:
        e.include(form.header)
        _dot_panel(e, op, form)
    else:
        target = _accumulator(e, op)
        e.include("dot.h")
        emit = _dot_f16 if op.result.type.elem == "f16" else _dot_any
        emit(e, op, target)


def _form(op: Op) -> PanelDot | None:
    elem = op.operands[0].type.elem
    return next(form for form in PANEL_DOTS if form.elem == elem) if is_packed(op) else None


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


def _panel_accumulator(e: Emitter, op: Op, form: PanelDot) -> tuple[str, Start]:
    """The same of a product on panels, which makes zeros by itself; some scale rows of their accumulators as well."""
    accumulator = op.operands[2]
    if is_positive_zero(accumulator) or constant_int(accumulator) == 0:
        return e.allocate(op.result), Start("CP_FROM_ZERO")
    rows = scaled_rows(accumulator) if form.scales else None
    if rows is not None and e.place[accumulator] is Place.INLINE:
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


def _pack_rows(e: Emitter, right: Value, form: PanelDot, packed: str) -> None:
    """packed[k / G][n][k % G] = right[k, n]; K is a multiple of G."""
    depth, columns = right.type.dims
    bits = 32 // form.group

    def build(nest: Nest, index: Index) -> None:
        group, column = index
        parts = [
            nest.at(right, (At(f"({form.group} * {group.code} + {k})", group.level), column)).code
            for k in range(form.group)
        ]
        word = " | ".join(f"(uint32_t)({form.unsigned}){part} << {bits * k}" for k, part in enumerate(parts))
        position = flat((depth // form.group, columns), index)
        nest.levels[-1].append(f"((uint32_t *){packed})[{position}] = {word};")

    e.loop_nest((depth // form.group, columns), build)


def _dot_panel(e: Emitter, op: Op, form: PanelDot) -> None:
    left, right, _ = op.operands
    (rows, depth), columns = left.type.dims, right.type.dims[1]
    padded = max(columns, COLUMN_MULTIPLE)
    target, start = _panel_accumulator(e, op, form)
    a, lda = _left(e, op, form)
    found = e.placement.panels.get(op)
    if found is not None and found.load is not None and found.load.name == CODED:
        assert e.place[found.groups] is Place.INLINE
        operands = f"{depth // form.group}, {a}, {lda}, {coded_rows(e, found.load)}"
        e.write(f"cp_dot_coded({rows}, {columns}, {operands}, {target}, {columns}, {start.kind}, {start.scale});")
        return
    panel, stride = _panel(e, op, form, padded)
    operands = f"{-(-depth // form.group)}, {a}, {lda}, {panel}, {stride}"
    if found is not None and found.fields is not None and padded == columns and _reads_in_place(e, found):
        part = f"(cp_fields){{{found.fields.shift}, {found.fields.mask}, {found.fields.bias}}}"
        ahead = f"CP_BLOCK_AHEAD({depth * columns})" if found.fetches else "0"
        e.write(f"cp_dot_fields({rows}, {columns}, {operands}, {target}, {columns}, {start.kind}, {part}, {ahead});")
        return
    begin = f", {start.kind}" + (f", {start.scale}" if form.scales else "") + f", {distance(e, op, panel)}"
    if padded == columns:
        e.write(f"{form.run}({rows}, {columns}, {operands}, {target}, {columns}{begin});")
        return
    wide = e.array(form.accumulator, rows * padded)
    row, copy = e.fresh("i"), f"4 * {columns}"
    each_row = f"for (int {row} = 0; {row} < {rows}; {row}++)"
    if start.kind != "CP_FROM_ZERO":
        e.write(
            f"memset({wide}, 0, {4 * rows * padded});",
            f"{each_row} memcpy({wide} + {row} * {padded}, {target} + {row} * {columns}, {copy});",
        )
    e.write(
        f"{form.run}({rows}, {padded}, {operands}, {wide}, {padded}{begin});",
        f"{each_row} memcpy({target} + {row} * {columns}, {wide} + {row} * {padded}, {copy});",
    )


def _left(e: Emitter, op: Op, form: PanelDot) -> tuple[str, int | str]:
    """Array of the left operand as rows of whole k groups, and its row stride."""
    left, group = op.operands[0], form.group
    rows, depth = left.type.dims
    if depth % group == 0:
        if left not in e.rows_in_memory:
            once = left.defining == "tt.load" and e.place[left] is Place.INLINE
            e.rows_in_memory[left] = _left_in_place(e, op, form) or ((e.stored(left), str(depth)) if once else None)
        return e.rows_in_memory[left] or (e.stored(left), depth)
    short, name, i = e.stored(left), e.array(form.elem, group * rows), e.fresh("i")
    padding = "".join(f" {name}[{group} * {i} + {k}] = 0;" for k in range(depth, group))
    copies = "".join(f" {name}[{group} * {i} + {k}] = {short}[{depth} * {i} + {k}];" for k in range(depth))
    e.write(f"for (int {i} = 0; {i} < {rows}; {i}++) {{{copies}{padding} }}")
    return name, group


#: A row stride whose multiples by the rows of a tile fit an int.
_LARGEST_STRIDE = 1 << 20


def _left_in_place(e: Emitter, op: Op, form: PanelDot) -> tuple[str, str] | None:
    """Where the left operand lies in memory, if its rows are contiguous; a copy if masks or remainders say no."""
    left = op.operands[0]
    depth, pointer = left.type.dims[1], f"const {c_type(form.elem)} *"
    if e.checks or left.defining != "tt.load" or e.place[left] is not Place.INLINE:
        return None
    pointers, *mask = left.op.operands
    row, column = (e.placement.strides_unwrapped.of(pointers, d) for d in range(2))
    general, anywhere = Nest(e, 0), (At("0", 0), At("0", 0))
    general.at(left, anywhere)
    fast = Nest(e, 0, frozenset(general.corners), unwrapped=frozenset(general.wraps))
    if column != 1 or row is None:
        return None
    whole = "" if not mask or fast.mask(mask[0], anywhere) is None else _for_all(e, mask[0])
    if whole is None:
        return None
    name, stride, start, second = (e.fresh(prefix) for prefix in ("left", "stride", "start", "row"))
    e.declare(f"{pointer}{name}; int {stride};")
    statements, condition = e.assumptions(general)
    base, next_row = fast.at(pointers, (ZERO, ZERO)).code, fast.at(pointers, (At("1", 0), ZERO)).code
    e.write("{", *statements, *fast.levels[0], f"{pointer}const {start} = {base};")
    e.write(f"int64_t const {second} = {next_row} - {start};")
    fits = f"{second} < {_LARGEST_STRIDE} & {second} > -{_LARGEST_STRIDE}"
    copy = e.array(form.elem, left.type.numel)
    with e.scope(f"if (cp_likely({condition} & {fits}{whole}))"):
        e.write(f"{name} = {start}; {stride} = (int){second};")
    with e.scope("else"):
        e.materialise(left, copy)
        e.write(f"{name} = {copy}; {stride} = {depth};")
    e.write("}")
    return name, stride


def _for_all(e: Emitter, mask: Value) -> str | None:
    """A further condition, if one number says whether a mask lets all elements through."""
    same = uniform(mask)
    return None if same is None or same.type.is_tensor else f" & {e.scalar(same)}"


def _panel(e: Emitter, op: Op, form: PanelDot, padded: int) -> tuple[str, str]:
    """C expressions of the panel's address and of the elements between its k groups."""
    panel, right, group = e.placement.panels.get(op), op.operands[1], form.group
    depth, columns = right.type.dims
    if panel is not None and padded == columns:
        if panel.load is not None and _reads_in_place(e, panel):
            return _in_place(e, panel.load, panel.row_stride)
        return e.stored(panel.groups), str(group * columns)
    packed = e.array(form.elem, -(-depth // group) * group * padded)
    is_view = right.defining == "tt.trans" and e.place[right] is Place.INLINE
    sizes = f"{depth}, {columns}, {padded}"
    if is_view or _columns_contiguous(e, right):
        e.write(f"{form.pack}_transposed({sizes}, {_column_by_column(e, right)}, {packed});")
    elif depth % group == 0 and padded == columns:
        _pack_rows(e, right, form, packed)
    else:
        e.write(f"{form.pack}({sizes}, {e.stored(right)}, {packed});")
    return packed, str(group * padded)


def _reads_in_place(e: Emitter, panel: Panel) -> bool:
    return panel.load is not None and e.place[panel.groups] is not Place.ARRAY


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

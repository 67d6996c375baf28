"""tt.gather, tt.cat, tt.histogram, tt.map_elementwise."""

from __future__ import annotations

from ..ttir.ir import Op
from .emitter import Emitter, emits
from .nest import At, Index, Nest, flat


@emits("tt.gather")
def gather(e: Emitter, op: Op) -> None:
    source, indices = op.operands
    axis, table, shape = int(op.attrs["axis"]), e.stored(source), op.result.type.dims
    target = e.allocate(op.result)

    def build(nest: Nest, index: Index) -> None:
        picked = At(f"({nest.at(indices, index).code})", len(index))
        if e.checks:
            nest.levels[-1].append(e.checks.lane_of_tile(op, picked.code, source.type.dims[axis], flat(shape, index)))
        position = flat(source.type.dims, (*index[:axis], picked, *index[axis + 1 :]))
        nest.levels[-1].append(f"{target}[{flat(shape, index)}] = {table}[{position}];")

    e.loop_nest(shape, build)


@emits("tt.cat")
def cat(e: Emitter, op: Op) -> None:
    first, second = op.operands
    target = e.allocate(op.result)
    e.materialise(first, target)
    e.materialise(second, f"({target} + {first.type.numel})")


@emits("tt.histogram")
def histogram(e: Emitter, op: Op) -> None:
    """Values outside the bins are not counted."""
    values, *rest = op.operands
    source, mask = e.stored(values), e.stored(rest[0]) if rest else None
    target, i = e.allocate(op.result), e.fresh("i")
    bins = op.result.type.numel
    allowed = f"{mask}[{i}] && " if mask else ""
    e.write(f"for (int {i} = 0; {i} < {bins}; {i}++) {target}[{i}] = 0;")
    with e.scope(f"for (int {i} = 0; {i} < {values.type.numel}; {i}++)"):
        e.write(f"if ({allowed}(uint64_t){source}[{i}] < {bins}) {target}[{source}[{i}]]++;")


@emits("tt.map_elementwise")
def map_elementwise(e: Emitter, op: Op) -> None:
    """Elements are taken `pack` at a time in row-major order; arguments and results are grouped by tensor."""
    pack, i = op.attrs["pack"], e.fresh("i")
    places = [f"[{i} + {k}]" for k in range(pack)]
    sources, targets = [e.stored(v) for v in op.operands], [e.allocate(r) for r in op.results]
    statements, values = e.apply(op.regions[0], [source + place for source in sources for place in places])
    with e.scope(f"for (int {i} = 0; {i} < {op.operands[0].type.numel}; {i} += {pack})"):
        e.write(*statements)
        for target, value in zip((t + place for t in targets for place in places), values, strict=True):
            e.write(f"{target} = {value};")

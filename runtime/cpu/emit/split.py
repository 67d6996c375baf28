"""Loops cut where a mask ends: one part without the mask, one where it never holds.

`offsets < n`, with offsets that grow by one along the innermost dimension, holds up to some place and not after it. So
neither part needs a mask, and both vectorise as if there was none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..ttir.ir import Value
from .nest import ZERO, At, Index, Loop, Nest

Build = Callable[[Nest, Index], None]
#: Shorter loops are left whole.
SHORTEST = 32


def split_loop(
    general: Nest, shape: Sequence[int], names: Sequence[str], order: Sequence[int], build: Build
) -> list[str] | None:
    """The nest that `build` fills, its innermost loop cut in two; None when no single comparison cuts it.

    `general`: the nest as built without assumptions. `names` and `shape` of its loops by dimension, `order` from the
    outermost to the innermost."""
    e = general.emitter
    if e.checks or not order or shape[order[-1]] < SHORTEST:
        return None
    *outer, inner = order
    cut = _cutting(general, names[inner])
    if cut is None:
        return None
    comparison, dim = cut
    at_start = tuple(ZERO if d == dim else At(at.code, 0) for d, at in enumerate(general.asked[comparison][0]))
    count, size, first = e.fresh("count"), shape[inner], Nest(e, 0)
    length = reach(first, comparison, at_start, size)
    body = [*first.levels[0], f"int64_t const {count} = {length};"]
    index = tuple(At(name, 1 if d == inner else 0) for d, name in enumerate(names))
    holds, fails = Nest(e, 1, frozenset([comparison])), Nest(e, 1, frozenset(), frozenset([comparison]))
    for nest, loop in ((holds, Loop(names[inner], count)), (fails, Loop(names[inner], size, count))):
        build(nest, index)
        if nest.levels[1]:
            body += ["{", *nest.loops([loop]), "}"]
    around = Nest(e, len(outer))
    around.levels[-1] = body
    return around.loops([Loop(names[d], shape[d]) for d in outer], independent=False)


def _cutting(general: Nest, inner: str) -> tuple[Value, int] | None:
    """The one comparison that changes along the innermost loop, and its dimension that this loop runs over."""
    cutting = []
    for comparison in general.corners:
        dims = {d for index in general.asked[comparison] for d, at in enumerate(index) if at.code == inner}
        mixed = any(inner in at.code and at.code != inner for index in general.asked[comparison] for at in index)
        if dims or mixed:
            cutting.append((comparison, dims, mixed))
    if len(cutting) != 1:
        return None
    comparison, dims, mixed = cutting[0]
    same = len(set(general.asked[comparison])) == 1
    if mixed or not same or len(dims) != 1 or not _cuts(general, comparison, next(iter(dims))):
        return None
    return comparison, next(iter(dims))


def _cuts(general: Nest, comparison: Value, dim: int) -> bool:
    """Does it hold up to a place along the loop, which the first element tells?"""
    placement = general.emitter.placement
    steps = {str(placement.strides.of(side, dim)) for side in comparison.op.operands}
    return steps == {"0", "1"} and placement.corners.deciding(comparison) == "last"


def reach(nest: Nest, comparison: Value, start: Index, size: int) -> str:
    """For how many of `size` elements from `start` on the comparison holds."""
    left, right = (nest.at(side, start).code for side in comparison.op.operands)
    predicate = comparison.op.attrs["words"][0]
    low, bound = (left, right) if predicate in ("slt", "sle") else (right, left)
    return f"cp_reach({low}, {bound}, {int(predicate in ('sle', 'sge'))}, {size})"

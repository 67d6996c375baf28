"""Fetching tiles whose places are read from a table (analysis/tiles.py): each round fetches those of the next.

A dot that reads a tile where it lies fetches, with each row, that row of the next tile. Nobody fetches for the first
round: of that, the tiles behind the first one are fetched at once.
"""

from __future__ import annotations

from ..analysis.tiles import bytes_of
from ..ttir.ir import Op
from .emitter import Emitter
from .nest import ZERO, Nest


def begin_round(e: Emitter, loop: Op, counter: str) -> None:
    """At the start of a loop's body: where the next round's tiles lie, 0 in the last round."""
    tiles = e.placement.tiles.get(loop)
    if tiles is None:
        return
    low, high, step = (e.names[operand] for operand in loop.operands[:3])
    e.first_round.update((load, f"{counter} == {low}") for load in tiles.loads[1:])
    e.next_tile.update((load, e.fresh("next")) for load in tiles.loads)
    e.declare(" ".join(f"const char *{e.next_tile[load]} = 0;" for load in tiles.loads))
    before = dict(e.names)
    e.names[loop.regions[0].args[0]] = f"({counter} + {step})"
    with e.scope(f"if ((int64_t){counter} + {step} < {high})"):
        for op in tiles.steps:
            e.operation(op)
        for load in tiles.loads:
            e.write(f"{e.next_tile[load]} = (const char *)({_place(e, load)});")
    e.names.clear()
    e.names.update(before)


def fetch_first(e: Emitter, load: Op) -> None:
    """In the first round: all of a tile."""
    if load in e.first_round:
        e.include("prefetch.h")
        e.write(f"if ({e.first_round[load]}) cp_prefetch({_place(e, load)}, {bytes_of(load)}, 0);")


def distance(e: Emitter, dot: Op, place: str) -> str:
    """How far ahead of its panel, which lies at `place`, a product fetches, in bytes: to the next tile, 0 in the last
    round and where another product does it; else as streams do."""
    panel = e.placement.panels.get(dot)
    following = None if panel is None else e.next_tile.get(panel.load)
    if following is None:
        return "CP_PREFETCH_BYTES"
    is_first = panel.fetches and panel.load.block is dot.block
    return f"({following} ? {following} - (const char *)({place}) : 0)" if is_first else "0"


def _place(e: Emitter, load: Op) -> str:
    nest, pointers = Nest(e, 0), load.operands[0]
    place = nest.at(pointers, tuple(ZERO for _ in pointers.type.dims)).code
    e.write(*nest.levels[0])
    return place

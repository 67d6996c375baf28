"""What a target decides: tiles, row tiles and warps. Numbers live here, not in templates."""

from __future__ import annotations

from dataclasses import dataclass

from codegen.errors import UnknownTarget, UnsupportedOnTarget

MIN_PANELS = 4  # fewer would leave threads without work
TARGETS = ("cpu", "cuda:80", "cuda:90", "cuda:100")


def next_power_of_two(value: int) -> int:
    """The smallest power of two that is at least `value` (value >= 1)."""
    return 1 << (value - 1).bit_length()


def powers_up_to(limit: int) -> tuple[int, ...]:
    """The powers of two below `limit`, and `limit`."""
    return (*(1 << i for i in range(limit.bit_length()) if 1 << i < limit), limit)


@dataclass(frozen=True)
class MatmulTile:
    """Tile of a matmul: `block_n` columns per panel, `block_k` per dot, K padded to `k_padded`."""

    block_n: int
    block_k: int
    k_padded: int


@dataclass(frozen=True)
class Target:
    """Tile choices of one target. row_blocks: programs that share the rows of a matmul; 1: each goes through all.

    dot_queries: queries of an attention program at most; more would take no less time each. min_dot: smallest size of a dot.
    """

    name: str
    panels: tuple[int, ...]
    block_ks: tuple[int, ...]
    row_tiles: tuple[int, ...]
    row_blocks: int | str
    dot_queries: int
    min_dot: int
    conv_block: int
    num_warps: int

    def matmul(self, n: int, k: int) -> MatmulTile:
        """The k-block that pads K least, the largest of those; the widest panel that pads N by at most an eighth.

        A wide panel keeps more accumulators in flight, and the last resort is the narrowest: see docs/numerics.md.
        """
        block_k = min(self.block_ks, key=lambda block: (-(-k // block) * block, -block))
        fitting = [width for width in self.panels if -(-n // width) * width <= n + n // 8 and n >= MIN_PANELS * width]
        return MatmulTile(max(fitting, default=min(self.panels)), block_k, -(-k // block_k) * block_k)

    def slot_tiles(self, queries_per_kv: int) -> tuple[int, ...]:
        """Rows of a slot that an attention program may take, each with the query heads of a kv head.

        As many as fit into dots of a power of two of queries. One size where no dot may be smaller: a layout of the dot,
        so an order of its sums, for every number of rows.
        """
        least = next_power_of_two(queries_per_kv)
        dots = powers_up_to(max(least, self.dot_queries))
        return tuple(sorted({dot // queries_per_kv for dot in dots if dot >= max(least, self.min_dot)}))

    def check_dot(self, field: str, value: int) -> None:
        """Refuse a dimension below the smallest one `tl.dot` takes on this target."""
        if value < self.min_dot:
            raise UnsupportedOnTarget(field=field, value=value, target=self.name, allowed=f"at least {self.min_dot}")


def resolve_target(name: str) -> Target:
    """`cpu` or `cuda:<sm>`. Raises UnknownTarget."""
    if name == "cpu":
        return Target(
            name,
            panels=(32, 64),
            block_ks=(512, 256, 128, 64, 32),
            row_tiles=(1, 2, 4, 8),
            row_blocks=1,
            dot_queries=32,
            min_dot=1,
            conv_block=64,
            num_warps=1,
        )
    if name in TARGETS:
        return Target(
            name,
            panels=(32,),
            block_ks=(64, 32),
            row_tiles=(16,),
            row_blocks="row_blocks",
            dot_queries=16,
            min_dot=16,
            conv_block=128,
            num_warps=4,
        )
    raise UnknownTarget(value=name, allowed=", ".join(TARGETS))

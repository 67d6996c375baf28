"""What a target decides: tiles, row tiles and warps. Numbers live here, not in templates."""

from __future__ import annotations

from dataclasses import dataclass

from codegen.errors import UnknownTarget, UnsupportedOnTarget
from codegen.plan import DTYPE_BYTES
from codegen.tunables import CODED, NUM_STAGES, NUM_WARPS, PREFETCH_BYTES, ROW_TILES, Tunable, among

MIN_PANELS = 4  # fewer would leave threads without work
MANY_PANELS = 32
HEAD_COLUMNS = 16384  # more than a layer's matrix has
NEAREST_BYTES = 32 << 10  # of the nearest cache of most CPUs
TARGETS = ("cpu", "cuda:80", "cuda:90", "cuda:100")


def next_power_of_two(value: int) -> int:
    """The smallest power of two that is at least `value` (value >= 1)."""
    return 1 << (value - 1).bit_length()


def powers_up_to(limit: int) -> tuple[int, ...]:
    """The powers of two below `limit`, and `limit`."""
    return (*(1 << i for i in range(limit.bit_length()) if 1 << i < limit), limit)


@dataclass(frozen=True)
class MatmulTile:
    """Tile of a matmul: `block_n` columns per panel, `block_k` per dot, K padded to `k_padded`; rows per program.

    coded: whether its weights lie in codes of 12 bits.
    """

    block_n: int
    block_k: int
    k_padded: int
    row_tiles: tuple[int, ...]
    coded: bool


def pads_little(size: int, block: int) -> bool:
    """Whether whole blocks exceed `size` by at most an eighth."""
    return -(-size // block) * block <= size + size // 8


def shares_evenly(panels: int) -> bool:
    """Whether two cores get equal shares of the panels, or nearly: an odd one costs little among many."""
    return panels % 2 == 0 or panels >= MANY_PANELS


@dataclass(frozen=True)
class Searched:
    """Values that tuning may try, beside a target's own choice. prefetch: bytes ahead; empty: no such thing here."""

    panels: tuple[int, ...]
    row_tiles: tuple[int, ...]
    conv_blocks: tuple[int, ...]
    prefetch: tuple[int, ...] = ()
    warps: tuple[int, ...] = ()
    stages: tuple[int, ...] = ()


@dataclass(frozen=True)
class Target:
    """Tile choices of one target. row_blocks: programs that share the rows of a matmul; 1: each goes through all.

    dot_queries: queries of an attention program at most; more would take no less time each. min_dot: smallest size of
    a dot.
    """

    name: str
    panels: tuple[int, ...]
    block_ks: tuple[int, ...]
    row_tiles: tuple[int, ...]
    row_blocks: int | str
    dot_queries: int
    min_dot: int
    conv_block: int
    one_pass_rows: int
    num_warps: int
    searched: Searched

    @property
    def has_warps(self) -> bool:
        """Whether programs run on several warps, whose number and layout order the sums of a dot or a reduction."""
        return self.name != "cpu"

    def panel_width(self, n: int, k: int, model_bytes: int) -> int:
        """The widest panel that pads N by at most an eighth, leaves MIN_PANELS of them, and shares evenly.

        A wide panel keeps more accumulators in flight: better for a row. For the many of a prefill it is better if the
        panel stays in the nearest cache, which decides where the model does not fit the last one, but for a head,
        of which a prefill wants a row. The last resort is the narrowest.
        """
        fitting = [width for width in self.panels if pads_little(n, width) and n >= MIN_PANELS * width]
        even = [width for width in fitting if shares_evenly(-(-n // width))]
        far = n < HEAD_COLUMNS and model_bytes > CACHE_BYTES
        near = [width for width in even or fitting if not far or width * k * DTYPE_BYTES["bf16"] <= NEAREST_BYTES]
        return max(near, default=min(self.panels))

    def dot_length(self, k: int) -> int:
        """The k-block that pads K least, the largest of those."""
        return min(self.block_ks, key=lambda block: (-(-k // block) * block, -block))

    def warps(self, *, changes_bits: bool) -> tuple[Tunable, ...]:
        """Warps of a program. changes_bits: the kernel has a dot or a reduction, whose order follows the layout."""
        values = among(self.num_warps, self.searched.warps)
        return (Tunable(NUM_WARPS, self.num_warps, values, changes_bits),) if self.has_warps else ()

    def loads(self) -> tuple[Tunable, ...]:
        """How far a loop's loads run ahead of their use: bytes on a CPU (0: as the backend finds best), else stages."""
        if self.has_warps:
            return (Tunable(NUM_STAGES, TRITON_STAGES, among(TRITON_STAGES, self.searched.stages), changes_bits=False),)
        return (Tunable(PREFETCH_BYTES, 0, among(0, self.searched.prefetch), changes_bits=False),)

    def codes(self, model_bytes: int) -> tuple[Tunable, ...]:
        """Whether weights lie in codes of 12 bits: decoding them takes less time than reading the rest from memory.

        model_bytes: of all weights; what a CPU's caches hold is as fast as it is.
        """
        streamed = int(model_bytes > CACHE_BYTES)
        return () if self.has_warps else (Tunable(CODED, streamed, (1, 0), changes_bits=False, lays_out=True),)

    def rows(self, default: tuple[int, ...]) -> Tunable:
        """Rows of a program: a CPU computes each row alone; a dot of other size is another layout on a GPU."""
        tops = (tuple(sorted({*(size for size in default if size < top), top})) for top in self.searched.row_tiles)
        return Tunable(ROW_TILES, default, among(default, tops), changes_bits=self.has_warps)

    def slot_tiles(self, queries_per_kv: int) -> tuple[int, ...]:
        """Rows of a slot that an attention program may take, each with the query heads of a kv head.

        As many as fit into dots of a power of two of queries. One size where no dot may be smaller: a layout of the
        dot, so an order of its sums, for every number of rows.
        """
        least = next_power_of_two(queries_per_kv)
        dots = powers_up_to(max(least, self.dot_queries))
        return tuple(sorted({dot // queries_per_kv for dot in dots if dot >= max(least, self.min_dot)}))

    def check_dot(self, field: str, value: int) -> None:
        """Refuse a dimension below the smallest one `tl.dot` takes on this target."""
        if value < self.min_dot:
            raise UnsupportedOnTarget(field=field, value=value, target=self.name, allowed=f"at least {self.min_dot}")


CACHE_BYTES = 32 << 20  # of the last cache of most CPUs
TRITON_STAGES = 3  # what a launch gets that does not say
CPU_SEARCHED = Searched(
    panels=(16, 32, 64, 128),
    row_tiles=(1, 2, 4, 8, 16, 32),
    prefetch=(0, 512, 1024, 4096, 8192),
    conv_blocks=(16, 32, 64, 128, 256, 512),
)
CUDA_SEARCHED = Searched(
    panels=(16, 32, 64, 128),
    row_tiles=(16, 32, 64),
    conv_blocks=(32, 64, 128, 256, 512),
    warps=(1, 2, 4, 8),
    stages=(1, 2, 3, 4, 5),
)


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
            one_pass_rows=4,
            num_warps=1,
            searched=CPU_SEARCHED,
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
            one_pass_rows=0,
            num_warps=4,
            searched=CUDA_SEARCHED,
        )
    raise UnknownTarget(value=name, allowed=", ".join(TARGETS))

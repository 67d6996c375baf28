"""How the step module launches each kernel: the local that is its BLOCK_M, its grid, its options.

Most kernels share their row tiles and options, which are constants of the module; a kernel with others has its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from codegen.plan import Kernel, Launch, Plan, Section

ROW_TILE, SLOT_TILE = "tile", "slot_tile"
BLOCKS = {ROW_TILE: "row_blocks", SLOT_TILE: "slot_blocks"}
OPTIONS, OWN_OPTIONS = "OPTIONS", "OPTIONS_OF"


@dataclass(frozen=True)
class Launching:
    """Names and values of one plan's launches."""

    plan: Plan

    @cached_property
    def kernels(self) -> dict[str, Kernel]:
        """Kernel instances by name."""
        return {kernel.name: kernel for kernel in self.plan.kernels}

    @cached_property
    def buffers(self) -> frozenset[str]:
        """Names of the plan's buffers."""
        return frozenset(buffer.name for buffer in self.plan.buffers)

    @cached_property
    def common_tiles(self) -> dict[str, tuple[int, ...]]:
        """By kind of tile, the sizes that most kernels have, the first of several."""
        kinds = {launch.kernel: self.kind(launch) for _, launch in self.plan.launches()}
        counted = {kind: Counter(self._sizes(kinds, kind)).most_common(1) for kind in BLOCKS}
        return {kind: found[0][0] if found else () for kind, found in counted.items()}

    def _sizes(self, kinds: dict[str, str], wanted: str) -> list[tuple[int, ...]]:
        return [self.kernels[name].row_tiles for name, kind in kinds.items() if kind == wanted]

    def kind(self, launch: Launch) -> str:
        """Whether BLOCK_M of a tiled kernel is of all rows or of those of a slot; nothing without one."""
        if not self.kernels[launch.kernel].row_tiles:
            return ""
        return SLOT_TILE if BLOCKS[SLOT_TILE] in launch.grid else ROW_TILE

    def _is_own(self, launch: Launch) -> bool:
        kind = self.kind(launch)
        return bool(kind) and self.kernels[launch.kernel].row_tiles != self.common_tiles[kind]

    def tile(self, launch: Launch) -> str:
        """The local that is BLOCK_M."""
        return f"{self.kind(launch)}_{launch.kernel}" if self._is_own(launch) else self.kind(launch)

    def grid(self, launch: Launch) -> tuple[int | str, ...]:
        """Numbers and locals."""
        if not self._is_own(launch):
            return launch.grid
        return tuple(f"{size}_{launch.kernel}" if size in BLOCKS.values() else size for size in launch.grid)

    def own_tiles(self, section: Section) -> Iterator[tuple[str, str, str, tuple[int, ...]]]:
        """(kind, local of the tile, local of the blocks, sizes) of the section's kernels that have their own."""
        found = {launch.kernel: self.kind(launch) for launch in section.launches if self._is_own(launch)}
        for name, kind in found.items():
            yield kind, f"{kind}_{name}", f"{BLOCKS[kind]}_{name}", self.kernels[name].row_tiles

    @cached_property
    def common_options(self) -> dict[str, Any]:
        """The options that most kernels are launched with, the first of several."""
        counted = Counter(tuple(options_of(kernel).items()) for kernel in self.plan.kernels)
        return dict(counted.most_common(1)[0][0])

    @cached_property
    def own_options(self) -> dict[str, dict[str, Any]]:
        """The options of the others, by kernel."""
        every = {kernel.name: options_of(kernel) for kernel in self.plan.kernels}
        return {name: options for name, options in every.items() if options != self.common_options}

    def options(self, launch: Launch) -> str:
        """The constant that holds the options of a launch."""
        return f"{OWN_OPTIONS}_{launch.kernel}" if launch.kernel in self.own_options else OPTIONS


def row_tile(sizes: tuple[int, ...], rows: int) -> int:
    """BLOCK_M of a kernel with these tiles: the smallest that covers the rows, else the largest; 0 without tiles."""
    return next((size for size in sizes if size >= rows), max(sizes, default=0))


def options_of(kernel: Kernel) -> dict[str, Any]:
    """Options of a kernel's launches, by name."""
    return {"num_warps": kernel.num_warps, **dict(kernel.options), "enable_fp_fusion": False}

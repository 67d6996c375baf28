"""Collects buffers, kernels and sections while the passes run, and freezes them into a Plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from codegen import __version__
from codegen.errors import PlanInvalid, TunedRefused
from codegen.lower.targets import MatmulTile, Target, next_power_of_two
from codegen.plan import Buffer, CheckpointPart, Kernel, Launch, Limits, Plan, Role, Section, Source
from codegen.tunables import NUM_WARPS, OPTIONS, Tunable, Value
from dsl import ModelSpec

CODES, CODED_BYTES = 16, 3  # in a codebook; of a pair of elements: runtime/coding.py


@dataclass
class Builder:
    """The plan under construction. Declaring the same thing twice is fine, declaring it differently is an error."""

    spec: ModelSpec
    target: Target
    limits: Limits
    spec_sha256: str
    model_bytes: int  # of all weights
    buffers: dict[str, Buffer] = field(default_factory=dict)
    kernels: dict[str, Kernel] = field(default_factory=dict)
    sections: list[Section] = field(default_factory=list)
    checkpoint_parts: list[CheckpointPart] = field(default_factory=list)
    kv_buffers: list[str] = field(default_factory=list)
    numerics: dict[str, Any] = field(default_factory=dict)
    tuned: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    tunables: dict[str, tuple[Tunable, ...]] = field(default_factory=dict)

    @property
    def max_rows(self) -> int:
        """Rows of the largest launch: a full verify step or a prefill chunk."""
        return max(self.limits.max_slots * self.limits.max_rows, self.limits.prefill_chunk)

    def buffer(self, name: str, shape: tuple[int, ...], dtype: str, role: Role, **options: Any) -> str:
        """Declare a buffer and return its name."""
        new = Buffer(name, shape, dtype, role, **options)
        if self.buffers.setdefault(name, new) != new:
            raise PlanInvalid(node=name, detail="declared twice with different contents")
        return name

    def vector(self, name: str, tensor: str, size: int) -> str:
        """An fp32 weight vector."""
        return self.buffer(name, (size,), "fp32", Role.WEIGHT, sources=(Source(tensor, (size,), "fp32"),))

    def choose(self, kernel: str, *tunables: Tunable) -> dict[str, Any]:
        """Declare what may be chosen about a kernel instance; the values it has, by name. Raises TunedRefused."""
        if self.tunables.setdefault(kernel, tunables) != tunables:
            raise PlanInvalid(node=kernel, detail="two declarations of its tunables differ")
        given = self.tuned.get(kernel, {})
        known = {tunable.name: tunable for tunable in tunables}
        values = {tunable.name: tunable.default for tunable in tunables}
        for name, value in given.items():
            allowed = known[name].read(value) if name in known else None
            if allowed is None:
                offered = known[name].values if name in known else f"nothing of this name, but {', '.join(known)}"
                raise TunedRefused(kernel=kernel, name=name, value=value, target=self.target.name, allowed=offered)
            values[name] = allowed
        return values

    def panel(self, name: str, tensors: tuple[tuple[str, int], ...], k: int, tile: MatmulTile) -> str:
        """Matmul weights `[sum N, K]`, the named tensors stacked by rows, in panels of the tile of their matmul."""
        n = sum(rows for _, rows in tensors)
        panels = -(-n // tile.block_n)
        pairs = tile.k_padded // 2
        sources = tuple(Source(tensor, (rows, k), "bf16") for tensor, rows in tensors)
        if tile.coded:
            escapes = (panels, pairs, tile.block_n)
            self.buffer(escapes_of(name), escapes, "uint8", Role.WEIGHT, layout="coded_escapes", sources=sources)
            head = -(-(CODES + pairs) // (CODED_BYTES * tile.block_n))  # the codebook, and what marks rows that escape
            coded = (panels, head + pairs, CODED_BYTES, tile.block_n)
            return self.buffer(name, coded, "uint8", Role.WEIGHT, layout="coded_panel", sources=sources)
        shape = (panels, pairs, tile.block_n, 2)
        return self.buffer(name, shape, "bf16", Role.WEIGHT, layout="panel", sources=sources)

    def scratch(self, name: str, width: int, dtype: str) -> str:
        """A row-indexed scratch buffer."""
        return self.buffer(name, (self.max_rows, width), dtype, Role.SCRATCH)

    def checkpoint_part(self, part: CheckpointPart) -> None:
        """Declare what a checkpoint holds of a live buffer."""
        if part not in self.checkpoint_parts:
            self.checkpoint_parts.append(part)

    def kernel(self, template: str, name: str, **constants: int | float | bool) -> str:
        """An instance of a template, named after it and what it is specialised for."""
        return self._kernel(template, name, (), constants)

    def tiled_kernel(
        self, template: str, name: str, row_tiles: tuple[int, ...], **constants: int | float | bool
    ) -> str:
        """An instance that is compiled once per row tile (BLOCK_M)."""
        return self._kernel(template, name, row_tiles, constants)

    def _kernel(
        self, template: str, name: str, row_tiles: tuple[int, ...], constants: dict[str, int | float | bool]
    ) -> str:
        path = f"kernels/{template}.py.j2"
        tunables = self.tunables.get(name, ())
        chosen = self.choose(name, *tunables)
        moved = [t.name for t in tunables if t.name in OPTIONS and chosen[t.name] != t.default]
        options = tuple((option, chosen[option]) for option in moved if option != NUM_WARPS)
        warps = chosen.get(NUM_WARPS, self.target.num_warps)
        new = Kernel(name, path, tuple(constants.items()), row_tiles, warps, options, tunables)
        if self.kernels.setdefault(name, new) != new:
            raise PlanInvalid(node=name, detail="two kernel instances share a name")
        return name

    def section(self, name: str, doc: str, params: tuple[str, ...], launches: list[Launch]) -> None:
        """Append a section."""
        self.sections.append(Section(name, doc, params, tuple(launches)))

    def plan(self) -> Plan:
        """Freeze what is there."""
        tokenizer = self.spec.tokenizer
        return Plan(
            name=self.spec.name,
            target=self.target.name,
            spec_sha256=self.spec_sha256,
            generator=__version__,
            limits=self.limits,
            tokenizer=(("kind", tokenizer.kind), ("specials", tuple(tokenizer.specials))),
            has_drafter=self.spec.mtp is not None,
            numerics=tuple(sorted(self.numerics.items())),
            buffers=tuple(self.buffers.values()),
            kernels=tuple(self.kernels.values()),
            sections=tuple(self.sections),
            checkpoint_parts=tuple(self.checkpoint_parts),
            kv_buffers=tuple(self.kv_buffers),
        )


def launch(kernel: str, grid: tuple[int | str, ...], layer: str, note: str, *same: str, **args: str) -> Launch:
    """A launch. same: parameters whose buffer or scalar has their own name; args: parameter = buffer or scalar name."""
    return Launch(kernel, grid, tuple(({name: name for name in same} | args).items()), note, layer)


def escapes_of(w: str) -> str:
    """The buffer beside coded weights that holds the rest of rows that escape."""
    return f"{w}_escapes"


def block_d(size: int) -> int:
    """Lanes that cover a row of `size` elements."""
    return next_power_of_two(size)

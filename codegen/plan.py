"""The Plan: everything that was decided about a model's step, frozen, ordered and hashable.

A plan names buffers, kernel instances and the launches of each section. Templates print it, `--dump plan` shows it,
and the package carries it as plan.json, from which the runtime allocates (`runtime/plan.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

from codegen.tunables import NUM_WARPS, ROW_TILES, Tunable, Value

DTYPE_BYTES: Mapping[str, int] = {"uint8": 1, "int8": 1, "bf16": 2, "fp32": 4, "int32": 4, "int64": 8}
GRID_SYMBOLS = ("rows", "bucket", "row_blocks", "slot_blocks")
SECTION_SCALARS = ("rows", "bucket", "rows_per_slot", "draft_index", "num_drafts")
PAD_SLOT_ID = -1


class Role(StrEnum):
    """What a buffer is for; the memory table groups by it."""

    WEIGHT = "weight"
    TABLE = "table"
    STATE = "state"
    RING = "ring"
    KV = "kv"
    CHECKPOINT = "checkpoint"
    PROTOCOL = "protocol"
    SCRATCH = "scratch"


@dataclass(frozen=True)
class Source:
    """A tensor of the weights file, rows `[0, shape[0])` of the buffer part it fills."""

    tensor: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Buffer:
    """A static device buffer.

    fill: "zero", "pad" (PAD_SLOT_ID), "rope_cos" or "rope_sin" (with `theta`). Weights have `sources` and a layout:
    "plain" (as stored), "transposed", "panel": `[N/BN][K/2][BN][2]`, N padded to BN and K to BLOCK_K, "coded_panel" and
    "coded_escapes": the same in 12 bits an element (`runtime.coding`), or derived from a matrix: "int8_panel":
    `[N/BN][K/4][BN][4]`, its rows quantised, and "int8_scale" `[N]`, their scales, "int4_panel":
    `[N/BN][K/128][2 + 64][BN]`, the same with four bits a value (`runtime.quantise`), and "int4_scale". KV buffers
    `[pages, kv_heads, BLOCK_D * PAGE]` have one too: "k_pages", a page of a head being `[BLOCK_D/2][PAGE][2]`, the
    last dim two neighbours of an entry, or "v_pages": `[PAGE/2][BLOCK_D][2]`, the last dim two neighbouring entries.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: Role
    fill: str = "zero"
    layout: str = "plain"
    sources: tuple[Source, ...] = ()
    theta: float = 0.0

    @property
    def elements(self) -> int:
        """Number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def bytes(self) -> int:
        """Allocated bytes."""
        return self.elements * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class Kernel:
    """A template with its constants resolved: one generated Triton function.

    row_tiles: sizes of its BLOCK_M. options: further options of its launches, where they are not Triton's own defaults.
    tunables: what may be chosen; what was chosen is in the other fields.
    """

    name: str
    template: str
    constants: tuple[tuple[str, int | float | bool], ...]
    row_tiles: tuple[int, ...] = ()
    num_warps: int = 4
    options: tuple[tuple[str, int], ...] = ()
    tunables: tuple[Tunable, ...] = ()

    @property
    def template_name(self) -> str:
        """The template, without folder and ending."""
        return self.template.removeprefix("kernels/").removesuffix(".py.j2")

    def constant(self, name: str) -> Any:
        """The value of one constant."""
        return dict(self.constants)[name]

    def chosen(self, tunable: Tunable) -> Value:
        """The value that this instance has of one of its tunables."""
        held: dict[str, Any] = {tunable.name: tunable.default} | {ROW_TILES: self.row_tiles, NUM_WARPS: self.num_warps}
        held |= dict(self.constants) | dict(self.options)
        value: Value = held[tunable.name]
        return value

    @property
    def is_tunable(self) -> bool:
        """Whether there is another value that changes no bit."""
        return any(len(tunable.values) > 1 and not tunable.changes_bits for tunable in self.tunables)

    @property
    def tuned(self) -> dict[str, Value]:
        """What is not as it would be untuned."""
        chosen = {tunable.name: self.chosen(tunable) for tunable in self.tunables}
        return {t.name: chosen[t.name] for t in self.tunables if chosen[t.name] != t.default}

    @property
    def deciding(self) -> dict[str, Any]:
        """What decides bits: every constant, tile and option but the tunables that change none."""
        neutral = {tunable.name for tunable in self.tunables if not tunable.changes_bits}
        held = {**dict(self.constants), ROW_TILES: list(self.row_tiles), **self.tuned}
        return {name: value for name, value in held.items() if name not in neutral}


@dataclass(frozen=True)
class Launch:
    """One kernel launch. grid: ints and GRID_SYMBOLS; args: parameter and the buffer or scalar it gets.

    A kernel with row tiles gets BLOCK_M too: of the rows of each slot where the grid has `slot_blocks`, else of all.
    """

    kernel: str
    grid: tuple[int | str, ...]
    args: tuple[tuple[str, str], ...]
    note: str = ""
    layer: str = ""


@dataclass(frozen=True)
class Section:
    """A function of the generated step module: its scalar and buffer parameters and its launches or calls, in order."""

    name: str
    doc: str
    params: tuple[str, ...]
    launches: tuple[Launch, ...]


@dataclass(frozen=True)
class CheckpointPart:
    """How one live buffer appears in a checkpoint.

    kind "slot": `checkpoint[c] <- live[slot]`; "window": the `width` ring rows before the position; "hidden": the ring
    row of position - 1.
    """

    kind: str
    live: str
    checkpoint: str
    width: int = 1


@dataclass(frozen=True)
class Limits:
    """Sizes fixed at build time that the runtime needs (tokens, slots, rows, pages)."""

    max_slots: int
    max_context: int
    max_drafts: int
    max_rows: int
    ring: int
    prefill_chunk: int
    prefill_rows: tuple[int, ...]
    prefill_slots: int
    buckets: tuple[int, ...]
    page_size: int
    pages_per_slot: int
    num_pages: int
    checkpoint_slots: int
    checkpoint_interval: int | None
    max_stop_tokens: int
    max_biases: int
    vocab_size: int


@dataclass(frozen=True)
class Plan:
    """All decisions for one spec and one target."""

    name: str
    target: str
    spec_sha256: str
    generator: str
    limits: Limits
    tokenizer: tuple[tuple[str, Any], ...]
    has_drafter: bool
    numerics: tuple[tuple[str, Any], ...] = ()
    buffers: tuple[Buffer, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    sections: tuple[Section, ...] = ()
    checkpoint_parts: tuple[CheckpointPart, ...] = ()
    kv_buffers: tuple[str, ...] = ()

    def buffer(self, name: str) -> Buffer:
        """The buffer called `name`."""
        return next(b for b in self.buffers if b.name == name)

    def kernel(self, name: str) -> Kernel:
        """The kernel instance called `name`."""
        return next(k for k in self.kernels if k.name == name)

    def section(self, name: str) -> Section:
        """The section called `name`."""
        return next(s for s in self.sections if s.name == name)

    @property
    def tuned(self) -> dict[str, dict[str, Value]]:
        """What tuning chose, by kernel: `lower(spec, target, plan.tuned)` gives this plan again."""
        return {kernel.name: kernel.tuned for kernel in self.kernels if kernel.tuned}

    def launches(self) -> Iterator[tuple[Section, Launch]]:
        """Every launch with its section, in order."""
        for section in self.sections:
            for launch in section.launches:
                yield section, launch

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, one trailing newline."""
        return json.dumps(asdict(self), sort_keys=True, indent=1) + "\n"

    @cached_property
    def sha256(self) -> str:
        """Hash of the canonical JSON."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @property
    def numerics_sha256(self) -> str:
        """Hash of the fields that decide bits: rounding points, orders, split lengths, tiles."""
        return hashlib.sha256(json.dumps(self.numerics, sort_keys=True).encode()).hexdigest()

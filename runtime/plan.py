"""What the runtime reads of a plan.json: frozen, validated on reading, never written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

PAD_SLOT_ID = -1
DTYPE_BYTES: Mapping[str, int] = {"bf16": 2, "fp32": 4, "int32": 4, "int64": 8}


@dataclass(frozen=True)
class Source:
    """A tensor of the weights file. dtype: a key of DTYPE_BYTES."""

    tensor: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Buffer:
    """A static device buffer. role: weight, table, state, ring, kv, checkpoint, protocol or scratch."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str
    fill: str
    layout: str
    sources: tuple[Source, ...]
    theta: float

    @property
    def bytes(self) -> int:
        """Allocated bytes."""
        count = DTYPE_BYTES[self.dtype]
        for size in self.shape:
            count *= size
        return count


@dataclass(frozen=True)
class Kernel:
    """A kernel instance. template: path of the template it was rendered from."""

    name: str
    template: str
    constants: Mapping[str, Any]


@dataclass(frozen=True)
class Launch:
    """One launch of a section. args: parameter -> buffer or scalar."""

    kernel: str
    grid: tuple[int | str, ...]
    args: Mapping[str, str]
    layer: str


@dataclass(frozen=True)
class CheckpointPart:
    """How one live buffer appears in a checkpoint. kind: "slot", "window" (`width` ring rows before it) or "hidden"."""

    kind: str
    live: str
    checkpoint: str
    width: int


@dataclass(frozen=True)
class Limits:
    """Sizes fixed at build time, in tokens, slots, rows and pages."""

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

    def bucket(self, slots: int) -> int:
        """The smallest bucket for a number of slots."""
        return next(size for size in self.buckets if size >= slots)

    def prefill_size(self, tokens: int) -> int:
        """Rows of the launch that prefills a number of tokens."""
        return next(size for size in self.prefill_rows if size >= tokens)

    def prefill_bucket(self, rows: int) -> int:
        """Slots of a prefill launch of a number of rows."""
        return min(rows, self.prefill_slots)


@dataclass(frozen=True)
class Plan:
    """One target's plan. sections: launches by section name."""

    name: str
    target: str
    limits: Limits
    specials: tuple[str, ...]
    has_drafter: bool
    buffers: Mapping[str, Buffer]
    kernels: Mapping[str, Kernel]
    sections: Mapping[str, tuple[Launch, ...]]
    checkpoint_parts: tuple[CheckpointPart, ...]
    kv_buffers: tuple[str, ...]

    def role(self, *roles: str) -> list[Buffer]:
        """The buffers of these roles, in plan order."""
        return [buffer for buffer in self.buffers.values() if buffer.role in roles]


def _known(cls: type, data: Mapping[str, Any], **replaced: Any) -> Any:
    """An instance of `cls` from the keys it knows. Raises KeyError if one is absent."""
    values = {f.name: replaced.get(f.name, data[f.name]) for f in fields(cls)}
    return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def _buffer(data: Mapping[str, Any]) -> Buffer:
    sources = tuple(Source(s["tensor"], tuple(s["shape"]), s["dtype"]) for s in data["sources"])
    buffer: Buffer = _known(Buffer, data, sources=sources)
    if buffer.dtype not in DTYPE_BYTES:
        raise ValueError(f"buffer {buffer.name} has the unknown dtype {buffer.dtype}")
    return buffer


def _launch(data: Mapping[str, Any]) -> Launch:
    return Launch(data["kernel"], tuple(data["grid"]), dict(data["args"]), data["layer"])


def read_plan(data: Mapping[str, Any]) -> Plan:
    """The Plan of parsed JSON. Raises KeyError, TypeError or ValueError if it is not one."""
    tokenizer = dict(data["tokenizer"])
    if tokenizer["kind"] != "bytes":
        raise ValueError(f"tokenizer kind {tokenizer['kind']!r} is unknown")
    parts = dict.fromkeys(_known(CheckpointPart, part) for part in data["checkpoint_parts"])
    return Plan(
        name=data["name"],
        target=data["target"],
        limits=_known(Limits, data["limits"]),
        specials=tuple(tokenizer["specials"]),
        has_drafter=bool(data["has_drafter"]),
        buffers={b["name"]: _buffer(b) for b in data["buffers"]},
        kernels={k["name"]: Kernel(k["name"], k["template"], dict(k["constants"])) for k in data["kernels"]},
        sections={s["name"]: tuple(_launch(x) for x in s["launches"]) for s in data["sections"]},
        checkpoint_parts=tuple(parts),
        kv_buffers=tuple(data["kv_buffers"]),
    )

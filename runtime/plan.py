"""What the runtime reads of a plan.json: frozen, validated on reading, never written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from runtime.checked import MOST, flag, identifier, integer, items, mapping, named, number, one_of, text
from runtime.checked import name as checked_name

PAD_SLOT_ID = -1
NUM_BYTES = 256
MOST_DIMS = 8
DTYPE_BYTES: Mapping[str, int] = {"uint8": 1, "int8": 1, "bf16": 2, "fp32": 4, "int32": 4, "int64": 8}
ROLES = ("weight", "table", "state", "ring", "kv", "checkpoint", "protocol", "scratch")
FILLS = ("zero", "pad", "rope_cos", "rope_sin")
LAYOUTS = (
    *("plain", "transposed", "panel", "coded_panel", "coded_escapes"),
    *("int8_panel", "int8_scale", "int4_panel", "int4_scale"),
    *("k_pages", "v_pages"),
)
SIZES = (
    *("max_slots", "max_context", "max_rows", "ring", "prefill_chunk", "page_size", "pages_per_slot", "num_pages"),
    *("checkpoint_slots", "max_stop_tokens", "max_biases", "prefill_slots", "vocab_size"),
)


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


def _limits(data: Mapping[str, Any]) -> Limits:
    """Every size is an integer; those that others are derived from fit together."""
    interval = data["checkpoint_interval"]
    sizes = {f.name: data[f.name] for f in fields(Limits)}
    limits = Limits(
        **sizes
        | {n: integer(sizes[n], 1) for n in SIZES}
        | {n: items(sizes[n], _size) for n in ("prefill_rows", "buckets")}
        | {
            "max_drafts": integer(sizes["max_drafts"]),
            "checkpoint_interval": None if interval is None else integer(interval),
        }
    )
    _holds(limits.ring & (limits.ring - 1) == 0, "ring is no power of two")
    _holds(limits.max_drafts < limits.max_rows <= limits.ring, "max_rows does not fit")
    _holds(limits.pages_per_slot * limits.page_size >= limits.max_context, "the pages of a slot hold no context")
    _holds(limits.num_pages >= limits.pages_per_slot, "there are too few pages")
    _holds(bool(limits.buckets) and limits.buckets[-1] == limits.max_slots, "buckets do not end with max_slots")
    _holds(bool(limits.prefill_rows) and limits.prefill_rows[-1] == limits.prefill_chunk, "no chunk is a whole one")
    return limits


def _size(value: Any) -> int:
    return integer(value, 1)


def _holds(condition: bool, otherwise: str) -> None:
    if not condition:
        raise ValueError(otherwise)


def _source(data: Any) -> Source:
    data = mapping(data)
    source = Source(text(data["tensor"]), items(data["shape"], _size), one_of(*DTYPE_BYTES)(data["dtype"]))
    _holds(0 < len(source.shape) <= MOST_DIMS, f"tensor {source.tensor[:60]} has no possible shape")
    return source


def _buffer(data: Any) -> Buffer:
    data = mapping(data)
    buffer = Buffer(
        name=identifier(data["name"]),
        shape=items(data["shape"], _size),
        dtype=one_of(*DTYPE_BYTES)(data["dtype"]),
        role=one_of(*ROLES)(data["role"]),
        fill=one_of(*FILLS)(data["fill"]),
        layout=one_of(*LAYOUTS)(data["layout"]),
        sources=items(data["sources"], _source),
        theta=number(data["theta"]),
    )
    _holds(0 < len(buffer.shape) <= MOST_DIMS and buffer.bytes <= MOST, f"buffer {buffer.name} has no possible size")
    return buffer


def _kernel(data: Any) -> Kernel:
    data = mapping(data)
    constants = items(data["constants"], _constant)
    return Kernel(identifier(data["name"]), text(data["template"]), dict(constants))


def _constant(pair: Any) -> tuple[str, Any]:
    name, value = items(pair, lambda item: item)
    if not isinstance(value, (bool, int, float, str)):
        raise TypeError(f"constant {text(name)[:60]} is no literal")
    return identifier(name), value


def _launch(data: Any) -> Launch:
    data = mapping(data)
    args = items(data["args"], lambda pair: items(pair, identifier))
    return Launch(
        identifier(data["kernel"]),
        items(data["grid"], lambda size: identifier(size) if isinstance(size, str) else integer(size, 1)),
        dict(args),
        text(data["layer"]),
    )


def _part(data: Any) -> CheckpointPart:
    data = mapping(data)
    kind = one_of("slot", "window", "hidden")(data["kind"])
    width = integer(data["width"], 1)
    return CheckpointPart(kind, identifier(data["live"]), identifier(data["checkpoint"]), width)


def _section(data: Any) -> tuple[str, tuple[Launch, ...]]:
    data = mapping(data)
    return identifier(data["name"]), items(data["launches"], _launch)


def _specials(pairs: Any, vocab_size: int) -> tuple[str, ...]:
    tokenizer = dict(items(pairs, lambda pair: items(pair, lambda item: item)))
    one_of("bytes")(tokenizer["kind"])
    specials = items(tokenizer["specials"], checked_name)
    _holds(len(set(specials)) == len(specials), "a special token is named twice")
    _holds(NUM_BYTES + len(specials) <= vocab_size, "the vocabulary is too small for the tokenizer")
    return specials


def read_plan(data: Any) -> Plan:
    """The Plan of parsed JSON, every value checked. Raises KeyError, TypeError or ValueError if it is not one."""
    data = mapping(data)
    limits = _limits(mapping(data["limits"]))
    sections = items(data["sections"], _section)
    plan = Plan(
        name=checked_name(data["name"]),
        target=text(data["target"]),
        limits=limits,
        specials=_specials(data["tokenizer"], limits.vocab_size),
        has_drafter=flag(data["has_drafter"]),
        buffers=named(items(data["buffers"], _buffer), lambda buffer: buffer.name),
        kernels=named(items(data["kernels"], _kernel), lambda kernel: kernel.name),
        sections=dict(sections),
        checkpoint_parts=tuple(dict.fromkeys(items(data["checkpoint_parts"], _part))),
        kv_buffers=items(data["kv_buffers"], identifier),
    )
    _holds(len(plan.sections) == len(sections), "a section is given twice")
    return plan

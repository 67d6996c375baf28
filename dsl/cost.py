"""What a spec costs, from its sizes alone: parameters, bytes kept per slot and token, bytes that a step moves.

No target is chosen here: a target may pad matmul weights and KV pages to its tiles, which `python -m codegen explain`
counts. Where nothing is padded the two are equal, and a test holds them so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from dsl.layers import AttentionSpec, Mamba2Spec
from dsl.spec import LayerSpec, ModelSpec
from dsl.tensors import Shapes, layer_shapes, mtp_shapes, num_parameters, weight_shapes

DTYPE_BYTES: Mapping[str, int] = {"bf16": 2, "fp32": 4, "int8": 1}
INT4_GROUP = 64  # neighbours of a row of an int4 head that share a multiplier of one byte
STATE_BYTES = DTYPE_BYTES["fp32"]
CONTEXT = 256  # tokens already in the context of the step that is counted
STEP = f"one slot, {CONTEXT} tokens of context"


@dataclass(frozen=True)
class Costs:
    """Figures of one spec. Each name is the field's; `WORDS` says what it counts."""

    parameters: int
    weight_bytes: int
    state_bytes_per_slot: int
    ring_bytes_per_slot: int
    kv_bytes_per_token: int
    kv_pool_bytes: int
    checkpoint_bytes: int
    checkpoint_pool_bytes: int
    step_bytes: int
    drafting_step_bytes: int


WORDS: Mapping[str, str] = {
    "parameters": "parameters",
    "weight_bytes": "bytes of weights, as the file stores them",
    "state_bytes_per_slot": "bytes of recurrent state per slot",
    "ring_bytes_per_slot": "bytes of rings per slot: what a rejected draft can undo",
    "kv_bytes_per_token": "bytes of keys and values per token",
    "kv_pool_bytes": "bytes of all KV pages",
    "checkpoint_bytes": "bytes per checkpoint, its shared KV pages apart",
    "checkpoint_pool_bytes": "bytes of all checkpoints",
    "step_bytes": f"bytes a step moves without drafts ({STEP})",
    "drafting_step_bytes": f"bytes a step moves with max_drafts drafts ({STEP})",
}
assert set(WORDS) == {field.name for field in fields(Costs)}


def costs(spec: ModelSpec) -> Costs:
    """All figures of a spec. Bytes of a step: weights, states and KV, each once per launch that touches it."""
    engine, kv = spec.engine, kv_bytes_per_token(spec)
    checkpoint = checkpoint_bytes(spec)
    return Costs(
        parameters=num_parameters(spec),
        weight_bytes=bytes_of(weight_shapes(spec)),
        state_bytes_per_slot=state_bytes_per_slot(spec),
        ring_bytes_per_slot=ring_bytes_per_slot(spec),
        kv_bytes_per_token=kv,
        kv_pool_bytes=kv * engine.page_size * num_pages(spec),
        checkpoint_bytes=checkpoint,
        checkpoint_pool_bytes=checkpoint * engine.checkpoint_slots,
        step_bytes=step_bytes(spec, 0),
        drafting_step_bytes=step_bytes(spec, engine.max_drafts),
    )


def bytes_of(shapes: Shapes) -> int:
    """Bytes of some weights as stored."""
    return sum(math.prod(shape) * DTYPE_BYTES[dtype] for shape, dtype in shapes.values())


def _mamba2(spec: ModelSpec) -> list[Mamba2Spec]:
    return [layer.mixer for layer in spec.pattern_layers if isinstance(layer.mixer, Mamba2Spec)]


def state_bytes_per_slot(spec: ModelSpec) -> int:
    """The states S [H, N, P] fp32 of all Mamba-2 layers."""
    return STATE_BYTES * sum(mixer.d_inner * mixer.state_size for mixer in _mamba2(spec))


def max_rows(spec: ModelSpec) -> int:
    """Rows of a verify step per slot: max_drafts + 1, rounded up to a power of two."""
    return 1 << spec.engine.max_drafts.bit_length()


def ring_entries(spec: ModelSpec) -> int:
    """Positions that the rings hold: a power of two, for pending rows, new ones and two windows of the convolution."""
    least = 2 * max_rows(spec) + 2 * max((mixer.conv_width for mixer in _mamba2(spec)), default=1)
    return 1 << (least - 1).bit_length()


def ring_bytes_per_slot(spec: ModelSpec) -> int:
    """Per position: the hidden state, and per Mamba-2 layer raw conv inputs, records and time steps, all fp32."""
    width = spec.d_model + sum(2 * mixer.conv_dim + mixer.num_heads for mixer in _mamba2(spec))
    return STATE_BYTES * ring_entries(spec) * width


def kv_bytes_per_token(spec: ModelSpec) -> int:
    """Keys and values bf16 of all attention layers, the drafter's included."""
    drafter = [] if spec.mtp_layer is None else [spec.mtp_layer]
    return sum(_kv_bytes(layer) for layer in (*spec.pattern_layers, *drafter))


def _kv_bytes(layer: LayerSpec) -> int:
    mixer = layer.mixer
    return 2 * DTYPE_BYTES["bf16"] * mixer.kv_dim if isinstance(mixer, AttentionSpec) else 0


def num_pages(spec: ModelSpec) -> int:
    """Pages of the pool: twice what the slots need for a whole context and the rows of a step."""
    engine = spec.engine
    return 2 * engine.max_slots * -(-(engine.max_context + max_rows(spec)) // engine.page_size)


def checkpoint_bytes(spec: ModelSpec) -> int:
    """Per Mamba-2 layer S and conv_width - 1 raw conv inputs, and one hidden state: all fp32."""
    windows = sum((mixer.conv_width - 1) * mixer.conv_dim for mixer in _mamba2(spec))
    return state_bytes_per_slot(spec) + STATE_BYTES * (windows + spec.d_model)


def step_bytes(spec: ModelSpec, drafts: int, context: int = CONTEXT) -> int:
    """Bytes that one step of one slot moves at K = drafts, the drafter's included when K > 0."""
    rows, d = drafts + 1, spec.d_model
    embedded = DTYPE_BYTES["bf16"] * d * min(rows, spec.vocab_size)
    head = DTYPE_BYTES["bf16"] * spec.vocab_size * d
    norm = DTYPE_BYTES["fp32"] * d
    layers = sum(
        bytes_of(layer_shapes(layer, d)) + _kv_bytes(layer) * (rows + context) for layer in spec.pattern_layers
    )
    total = embedded + layers + 2 * state_bytes_per_slot(spec) + norm + head
    if drafts == 0 or spec.mtp_layer is None:
        return total
    module = {name: shape for name, shape in mtp_shapes(spec).items() if name != "mtp.norm.weight"}
    weights, kv = bytes_of(module), _kv_bytes(spec.mtp_layer)
    total += embedded + weights + kv * (rows + context)  # over the accepted rows
    total += (drafts - 1) * (DTYPE_BYTES["bf16"] * d + weights + kv * (1 + context))  # over each further draft
    return total + drafts * (norm + draft_head_bytes(spec))


def draft_head_bytes(spec: ModelSpec) -> int:
    """The head that a draft reads: the target's, or per row of it one fp32 scale and values of 8 or of 4 bits.

    Those of 4 bits have a multiplier of one byte per group.
    """
    assert spec.mtp is not None
    d = spec.d_model
    row = {
        "bf16": DTYPE_BYTES["bf16"] * d,
        "int8": DTYPE_BYTES["int8"] * d + DTYPE_BYTES["fp32"],
        "int4": d // 2 + -(-d // INT4_GROUP) + DTYPE_BYTES["fp32"],
    }
    return spec.vocab_size * row[spec.mtp.draft_head]

"""What the parts of a plan must be to each other: then allocating, filling and driving its buffers cannot fail midway.

What the kernels do with the buffers no rule sees: a package's code is trusted once its files have their hashes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

from runtime.coding import BYTES, head_rows, rows_of
from runtime.plan import Buffer, Limits, Plan
from runtime.quantise import INT4_GROUP, ROWS_AT_ONCE

PAIR, QUAD = 2, 4
REAL = ("bf16", "fp32")
# Protocol buffers that the host reads or writes: dtype and least number of elements.
SLOT_BUFFERS = (
    *("committed_len", "state_len", "limit_len", "num_accepted", "row_first", "row_count"),
    *("slot_idx", "emit_position", "emit_checkpoint", "restore_checkpoint", "page_from", "page_to"),
    *("adjusted", "counted", "masked", "min_len", "num_biases", "top_k"),
)
REAL_SLOT_BUFFERS = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
ROW_BUFFERS = ("row_slot", "row_seat", "row_pos", "row_token", "row_checkpoint", "targets")


def check_plan(plan: Plan) -> None:
    """Raises ValueError that names the first part which does not fit."""
    for broken in _broken(plan):
        raise ValueError(broken)


def _broken(plan: Plan) -> Iterator[str]:
    yield from _references(plan)
    yield from _protocol(plan)
    for buffer in plan.buffers.values():
        yield from _leading(buffer, plan.limits)
        if not _filled(buffer):
            yield f"buffer {buffer.name} does not have the shape that its {buffer.layout} contents take"


def _references(plan: Plan) -> Iterator[str]:
    """Whatever names a kernel or a buffer names one that is there."""
    for launch in (launch for launches in plan.sections.values() for launch in launches):
        if launch.kernel not in plan.kernels:
            yield f"kernel {launch.kernel} is launched, but not defined"
    parts = {name for part in plan.checkpoint_parts for name in (part.live, part.checkpoint)}
    for name in (*sorted(parts), *plan.kv_buffers):
        if name not in plan.buffers:
            yield f"buffer {name} is referred to, but not defined"


def _protocol(plan: Plan) -> Iterator[str]:
    """What the host reads and writes is there, of its dtype, and large enough."""
    limits = plan.limits
    slots, rows = limits.max_slots, max(limits.max_slots * limits.max_rows, limits.prefill_chunk)
    needed = {
        **dict.fromkeys(SLOT_BUFFERS, ("int32", slots)),
        **dict.fromkeys(ROW_BUFFERS, ("int32", rows)),
        **dict.fromkeys(("tokens", "out_tokens"), ("int32", slots * limits.max_rows)),
        "stop_tokens": ("int32", slots * limits.max_stop_tokens),
        "page_table": ("int32", slots * limits.pages_per_slot),
        **dict.fromkeys(REAL_SLOT_BUFFERS, ("fp32", slots)),
        "seed": ("int64", slots),
        "bias_tokens": ("int32", slots * limits.max_biases),
        "bias_values": ("fp32", slots * limits.max_biases),
        "slot_text": ("int32", slots * (limits.max_context + limits.max_rows)),
        "token_counts": ("int32", slots * limits.vocab_size),
        "grammar_mask": ("int32", slots * limits.max_rows * -(-limits.vocab_size // 32)),
    }
    for name, (dtype, least) in needed.items():
        buffer = plan.buffers.get(name)
        if buffer is None or buffer.role != "protocol" or buffer.dtype != dtype or prod(buffer.shape) < least:
            yield f"there is no protocol buffer {name} of {least} {dtype}"
    logits = plan.buffers.get("logits")
    if logits is None or len(logits.shape) != PAIR or logits.shape[1] != limits.vocab_size:
        yield "there is no buffer of logits as wide as the vocabulary"


def _leading(buffer: Buffer, limits: Limits) -> Iterator[str]:
    """A buffer of slots, checkpoints or pages has as many as there are."""
    counts = {
        "state": limits.max_slots,
        "ring": limits.max_slots,
        "checkpoint": limits.checkpoint_slots,
        "kv": limits.num_pages,
    }
    wanted = counts.get(buffer.role, buffer.shape[0])
    if buffer.shape[0] != wanted:
        yield f"buffer {buffer.name} is of {buffer.shape[0]} instead of {wanted}"


def _filled(buffer: Buffer) -> bool:
    """Whether what fills a buffer has its shape."""
    if buffer.role == "kv":
        return buffer.layout in ("k_pages", "v_pages") and not buffer.sources
    if buffer.fill in ("rope_cos", "rope_sin"):
        return len(buffer.shape) == PAIR and buffer.theta > 0 and not buffer.sources
    if buffer.role != "weight":
        return not buffer.sources
    rule = WEIGHT_SHAPES.get(buffer.layout)
    return bool(buffer.sources) and rule is not None and rule(buffer)


def _is_panel(buffer: Buffer) -> bool:
    """[panels, K_padded / 2, BN, 2] bf16 or fp32 of matrices [n_i, K]: `runtime.layouts.panel`."""
    if buffer.dtype not in REAL or len(buffer.shape) != 2 * PAIR or buffer.shape[-1] != PAIR:
        return False
    return _fit(buffer, *buffer.shape[:-1])


def _is_coded_panel(buffer: Buffer) -> bool:
    """[panels, H + K_padded / 2, 3, BN] uint8 of bf16 matrices [n_i, K]: `runtime.coding`."""
    if len(buffer.shape) != 2 * PAIR or buffer.shape[2] != BYTES:
        return False
    panels, height, _, block_n = buffer.shape
    pairs = rows_of(height, block_n)
    return height == head_rows(pairs, block_n) + pairs and _is_coded(buffer, panels, pairs, block_n)


def _is_coded_escapes(buffer: Buffer) -> bool:
    """[panels, K_padded / 2, BN] uint8 of bf16 matrices [n_i, K]."""
    return len(buffer.shape) == 1 + PAIR and _is_coded(buffer, *buffer.shape)


def _is_coded(buffer: Buffer, panels: int, pairs: int, block_n: int) -> bool:
    stored = {source.dtype for source in buffer.sources}
    return buffer.dtype == "uint8" and stored == {"bf16"} and _fit(buffer, panels, pairs, block_n)


def _fit(buffer: Buffer, panels: int, pairs: int, block_n: int) -> bool:
    """Whether the tensors of a buffer are matrices of one width that panels of these sizes hold."""
    widths = {source.shape[1:] for source in buffer.sources}
    if len(widths) != 1:
        return False
    (width,) = widths
    rows = sum(source.shape[0] for source in buffer.sources)
    return len(width) == 1 and width[0] <= PAIR * pairs and rows <= panels * block_n


def _is_int8_panel(buffer: Buffer) -> bool:
    """[panels, K_padded / 4, BN, 4] int8 of one bf16 or fp32 matrix [N, K]."""
    if len(buffer.shape) != 2 * PAIR or buffer.shape[-1] != QUAD or buffer.dtype != "int8" or not _is_matrix(buffer):
        return False
    panels, quads, block_n, _ = buffer.shape
    rows, width = buffer.sources[0].shape
    return width <= QUAD * quads and rows <= panels * block_n


def _is_int4_panel(buffer: Buffer) -> bool:
    """[panels, K_padded / 128, 2 + 64, BN] uint8 of one bf16 or fp32 matrix [N, K]: `runtime.quantise`."""
    if len(buffer.shape) != 2 * PAIR or buffer.dtype != "uint8" or not _is_matrix(buffer):
        return False
    panels, blocks, height, block_n = buffer.shape
    rows, width = buffer.sources[0].shape
    fits = width <= PAIR * INT4_GROUP * blocks and rows <= panels * block_n
    return fits and height == PAIR + INT4_GROUP and ROWS_AT_ONCE % block_n == 0


def _is_row_scale(buffer: Buffer) -> bool:
    """[N] fp32 of one bf16 or fp32 matrix [N, K]."""
    return buffer.dtype == "fp32" and _is_matrix(buffer) and buffer.shape == buffer.sources[0].shape[:1]


def _is_matrix(buffer: Buffer) -> bool:
    (source, *more) = buffer.sources
    return not more and len(source.shape) == PAIR and source.dtype in REAL


def _is_transposed(buffer: Buffer) -> bool:
    """[K, N] of one matrix [N, K]."""
    (source, *more) = buffer.sources
    return not more and len(source.shape) == PAIR and source.shape[::-1] == buffer.shape


def _is_plain(buffer: Buffer) -> bool:
    """Tensors stacked by rows as they are stored."""
    rows = sum(source.shape[0] for source in buffer.sources)
    return all((rows, *source.shape[1:]) == buffer.shape for source in buffer.sources)


WEIGHT_SHAPES: dict[str, Callable[[Buffer], bool]] = {
    "panel": _is_panel,
    "coded_panel": _is_coded_panel,
    "coded_escapes": _is_coded_escapes,
    "int8_panel": _is_int8_panel,
    "int8_scale": _is_row_scale,
    "int4_panel": _is_int4_panel,
    "int4_scale": _is_row_scale,
    "transposed": _is_transposed,
    "plain": _is_plain,
}

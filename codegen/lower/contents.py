"""What integers the protocol buffers may hold, and who writes them. See docs/architecture.md, "The protocol"."""

from __future__ import annotations

from collections.abc import Mapping

from codegen.access import INT, Range
from codegen.plan import PAD_SLOT_ID, Plan, Role

BITS = {"uint8": 32, "int32": 32, "int64": 64}  # that its elements are computed in
ANYTHING = {"uint8": Range(0, 255), "int32": INT[32], "int64": INT[64]}
# Row buffers, written anew for every composition. What the host writes of them before one, the rest is up to kernels.
ROW_PREFIX, ROW_BUFFERS = "row_", ("targets",)
HOST_WRITES: Mapping[str, tuple[str, ...]] = {
    "prefill_chunk": ("row_slot", "row_pos", "row_token", "row_first", "row_count", "row_seat", "row_checkpoint"),
    "score": ("row_slot", "row_pos"),
}


def contents(plan: Plan) -> dict[str, Range]:
    """Range of the integers in each protocol buffer that kernels compute addresses from; others may hold anything."""
    limits = plan.limits
    rows = max(limits.max_slots * limits.max_rows, *limits.prefill_rows)
    positions = Range(-1, limits.pages_per_slot * limits.page_size)
    slots, tokens = Range(PAD_SLOT_ID, limits.max_slots - 1), Range(-1, limits.vocab_size - 1)
    checkpoints = Range(-1, limits.checkpoint_slots - 1)
    groups = (
        (slots, ("slot_idx", "row_slot", "row_seat")),
        (Range(0, rows), ("row_first", "row_count")),
        (positions, ("committed_len", "state_len", "limit_len", "row_pos", "emit_position")),
        (Range(0, limits.max_rows), ("num_accepted",)),
        (tokens, ("tokens", "out_tokens", "row_token", "targets", "stop_tokens")),
        (checkpoints, ("emit_checkpoint", "row_checkpoint", "restore_checkpoint")),
        (Range(0, limits.num_pages - 1), ("page_table",)),
        (Range(-1, limits.num_pages - 1), ("page_from", "page_to")),
    )
    return {name: held for held, names in groups for name in names}


def written_anew(plan: Plan) -> frozenset[str]:
    """Buffers that hold nothing from one composition to the next: scratch, and the rows of a launch."""
    return frozenset(
        buffer.name
        for buffer in plan.buffers
        if buffer.role is Role.SCRATCH
        or (buffer.role is Role.PROTOCOL and (buffer.name.startswith(ROW_PREFIX) or buffer.name in ROW_BUFFERS))
    )

"""Sizes derived from a spec: rows, ring, pages, buckets."""

from __future__ import annotations

from codegen.lower.targets import next_power_of_two, powers_up_to
from codegen.plan import Limits
from dsl import ModelSpec
from dsl.spec import Mamba2Spec

MAX_STOP_TOKENS = 8
MAX_BIASES = 64  # of a request: each is compared with every token of a row
SHORT_CHUNKS = (1, 4, 16, 32, 64, 96, 128, 192, 256, 384)  # rows of prefill graphs: padded ones take time too
MAX_PREFILL_SLOTS = 8  # prompts of a prefill launch: more would have few tokens each, and add empty programs


def resolve_limits(spec: ModelSpec) -> Limits:
    """Limits of the engine. The ring covers pending rows, new rows and two conv windows; pages cover late drafts."""
    engine = spec.engine
    max_rows = next_power_of_two(engine.max_drafts + 1)
    widths = [layer.mixer.conv_width for layer in spec.pattern_layers if isinstance(layer.mixer, Mamba2Spec)]
    ring = next_power_of_two(2 * max_rows + 2 * max(widths, default=1))
    pages = -(-(engine.max_context + max_rows) // engine.page_size)
    return Limits(
        max_slots=engine.max_slots,
        max_context=engine.max_context,
        max_drafts=engine.max_drafts,
        max_rows=max_rows,
        ring=ring,
        prefill_chunk=engine.prefill_chunk,
        prefill_rows=tuple(sorted({n for n in SHORT_CHUNKS if n < engine.prefill_chunk} | {engine.prefill_chunk})),
        prefill_slots=min(engine.max_slots, MAX_PREFILL_SLOTS),
        buckets=powers_up_to(engine.max_slots),
        page_size=engine.page_size,
        pages_per_slot=pages,
        num_pages=2 * engine.max_slots * pages,
        checkpoint_slots=engine.checkpoint_slots,
        checkpoint_interval=spec.checkpoints.interval,
        max_stop_tokens=MAX_STOP_TOKENS,
        max_biases=MAX_BIASES,
        vocab_size=spec.vocab_size,
    )

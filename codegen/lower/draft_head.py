"""What drafts are chosen by: the target's head, or an int8 copy of it with half the bytes. See docs/drafting.md."""

from __future__ import annotations

from codegen.lower.builder import Builder, block_d, launch
from codegen.lower.common import matmul, matmul_tile, panel_kernel, rms_norm
from codegen.lower.target_model import head_weight
from codegen.plan import Launch, Role, Source
from dsl.spec import MTPSpec

LAYER = "mtp head"
SMALLEST = 1e-30  # of a row's largest value: a row of zeros has a scale, too
QUAD = 4  # int8 values along k that lie together: the 32 bits of a bf16 pair


def draft_head(b: Builder, mtp: MTPSpec, norm: str) -> list[Launch]:
    """Launches from draft_hidden [rows, d] to logits [rows, V], at most one row per slot. norm: the vector before."""
    return _int8(b, norm) if mtp.draft_head == "int8" else _shared(b, norm)


def _shared(b: Builder, norm: str) -> list[Launch]:
    return [
        rms_norm(b, "draft_hidden", norm, "h", layer=LAYER),
        matmul(b, "h", "lm_head", "logits", b.limits.vocab_size, b.spec.d_model, layer=LAYER),
    ]


def _int8(b: Builder, norm: str) -> list[Launch]:
    """Rows and head in int8 with a scale per row; sums of integers have no order, so no choice shows in a bit."""
    vocab, d, slots = b.limits.vocab_size, b.spec.d_model, b.limits.max_slots
    rows = b.buffer("draft_h", (slots, d), "int8", Role.SCRATCH)
    row_scale = b.buffer("draft_h_scale", (slots,), "fp32", Role.SCRATCH)
    return [_quantised_norm(b, norm, rows, row_scale), _logits(b, rows, row_scale, vocab, d)]


def _quantised_norm(b: Builder, norm: str, rows: str, row_scale: str) -> Launch:
    d, name = b.spec.d_model, f"rms_norm_int8_{b.spec.d_model}"
    b.choose(name, *b.target.warps(changes_bits=True))
    kernel = b.kernel("rms_norm_int8", name, D=d, BLOCK_D=block_d(d), EPS=b.spec.norm_eps, SMALLEST=SMALLEST)
    note = f"{rows} [rows, {d}] int8, {row_scale} [rows] fp32"
    return launch(kernel, ("rows",), LAYER, note, x="draft_hidden", weight=norm, y=rows, scale=row_scale)


def _logits(b: Builder, rows: str, row_scale: str, vocab: int, d: int) -> Launch:
    name = f"draft_head_{d}x{vocab}"
    tile = matmul_tile(b, name, vocab, d, exact=True)
    panels = -(-vocab // tile.block_n)
    sources = (Source(head_weight(b), (vocab, d), "bf16"),)
    shape = (panels, tile.k_padded // QUAD, tile.block_n, QUAD)
    head = b.buffer("draft_head", shape, "int8", Role.WEIGHT, layout="int8_panel", sources=sources)
    scale = b.buffer("draft_head_scale", (vocab,), "fp32", Role.WEIGHT, layout="int8_scale", sources=sources)
    kernel = panel_kernel(b, "draft_head", name, vocab, d, tile)
    return launch(
        kernel,
        (panels, b.target.row_blocks),
        LAYER,
        f"logits [rows, {vocab}] fp32",
        x=rows,
        x_scale=row_scale,
        w=head,
        w_scale=scale,
        y="logits",
        rows="rows",
    )

"""What drafts are chosen by: the target's head, or a copy of it in int8 or int4. See docs/drafting.md."""

from __future__ import annotations

from codegen.lower.builder import Builder, block_d, launch
from codegen.lower.common import matmul, matmul_tile, panel_kernel, rms_norm
from codegen.lower.target_model import head_weight
from codegen.plan import Launch, Role, Source
from dsl.cost import INT4_GROUP
from dsl.spec import MTPSpec

LAYER = "mtp head"
SMALLEST = 1e-30  # of a row's largest value: a row of zeros has a scale, too
QUAD = 4  # int8 values along k that lie together: the 32 bits of a bf16 pair
LARGEST_ROW, LARGEST_INT4, LARGEST_MULTIPLIER = 127, 7, 63  # of runtime/quantise.py, and of rows
LARGEST_SUM = 2**31 - 1  # of int32


def draft_head(b: Builder, mtp: MTPSpec, norm: str) -> list[Launch]:
    """Launches from draft_hidden [rows, d] to logits [rows, V], at most one row per slot. norm: the vector before."""
    return _shared(b, norm) if mtp.draft_head == "bf16" else _rounded(b, mtp, norm)


def _shared(b: Builder, norm: str) -> list[Launch]:
    return [
        rms_norm(b, "draft_hidden", norm, "h", layer=LAYER),
        matmul(b, "h", "lm_head", "logits", b.limits.vocab_size, b.spec.d_model, layer=LAYER),
    ]


def _rounded(b: Builder, mtp: MTPSpec, norm: str) -> list[Launch]:
    """Rows in int8 and a head of whole numbers; sums of integers have no order, so no choice shows in a bit."""
    d, slots = b.spec.d_model, b.limits.max_slots
    rows = b.buffer("draft_h", (slots, d), "int8", Role.SCRATCH)
    row_scale = b.buffer("draft_h_scale", (slots,), "fp32", Role.SCRATCH)
    logits = _int8_logits if mtp.draft_head == "int8" else _int4_logits
    return [_quantised_norm(b, norm, rows, row_scale), logits(b, rows, row_scale)]


def _quantised_norm(b: Builder, norm: str, rows: str, row_scale: str) -> Launch:
    d, name = b.spec.d_model, f"rms_norm_int8_{b.spec.d_model}"
    b.choose(name, *b.target.warps(changes_bits=True))
    kernel = b.kernel("rms_norm_int8", name, D=d, BLOCK_D=block_d(d), EPS=b.spec.norm_eps, SMALLEST=SMALLEST)
    note = f"{rows} [rows, {d}] int8, {row_scale} [rows] fp32"
    return launch(kernel, ("rows",), LAYER, note, x="draft_hidden", weight=norm, y=rows, scale=row_scale)


def _int8_logits(b: Builder, rows: str, row_scale: str) -> Launch:
    vocab, d = b.limits.vocab_size, b.spec.d_model
    name = f"draft_head_{d}x{vocab}"
    tile = matmul_tile(b, name, vocab, d, exact=True)
    shape = (-(-vocab // tile.block_n), tile.k_padded // QUAD, tile.block_n, QUAD)
    kernel = panel_kernel(b, "draft_head", name, vocab, d, tile)
    return _logits(b, kernel, rows, row_scale, shape, "int8", "int8")


def _int4_logits(b: Builder, rows: str, row_scale: str) -> Launch:
    """A block of a panel: the multipliers of two groups along k, then bytes that hold a value of either."""
    vocab, d = b.limits.vocab_size, b.spec.d_model
    assert d * LARGEST_ROW * LARGEST_INT4 * LARGEST_MULTIPLIER <= LARGEST_SUM  # the widest spec: docs/numerics.md
    name = f"draft_head_int4_{d}x{vocab}"
    tile = matmul_tile(b, name, vocab, d, exact=True, block_k=2 * INT4_GROUP)
    shape = (-(-vocab // tile.block_n), tile.k_padded // tile.block_k, 2 + INT4_GROUP, tile.block_n)
    kernel = panel_kernel(b, "draft_head_int4", name, vocab, d, tile, GROUP=INT4_GROUP)
    return _logits(b, kernel, rows, row_scale, shape, "int4", "uint8")


def _logits(
    b: Builder, kernel: str, rows: str, row_scale: str, shape: tuple[int, ...], layout: str, dtype: str
) -> Launch:
    """The launch, its panels [panels, ...] of `shape`, and the scales of the head's rows."""
    vocab = b.limits.vocab_size
    sources = (Source(head_weight(b), (vocab, b.spec.d_model), "bf16"),)
    head = b.buffer("draft_head", shape, dtype, Role.WEIGHT, layout=f"{layout}_panel", sources=sources)
    scale = b.buffer("draft_head_scale", (vocab,), "fp32", Role.WEIGHT, layout=f"{layout}_scale", sources=sources)
    return launch(
        kernel,
        (shape[0], b.target.row_blocks),
        LAYER,
        f"logits [rows, {vocab}] fp32",
        x=rows,
        x_scale=row_scale,
        w=head,
        w_scale=scale,
        y="logits",
        rows="rows",
    )

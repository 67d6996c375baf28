"""The MTP module as drafter: one row behind the target, then once per further draft. See docs/architecture.md."""

from __future__ import annotations

from codegen.lower.builder import Builder, launch
from codegen.lower.common import matmul, matmul_name, matmul_tile
from codegen.lower.draft_head import draft_head
from codegen.lower.layer import lower_layer
from codegen.lower.sampling import SAMPLING, sampling_constants
from codegen.lower.target_model import ring_constants, row_constants
from codegen.plan import Launch
from dsl.spec import MTPSpec


def _module(b: Builder, mtp: MTPSpec) -> list[Launch]:
    """The module over rows_per_slot rows of each slot: its residual stream, `stream`, enters as the hidden state."""
    d = b.spec.d_model
    embedding_norm = b.vector("mtp_embedding_norm", "mtp.embedding_norm.weight", d)
    hidden_norm = b.vector("mtp_hidden_norm", "mtp.hidden_norm.weight", d)
    tile = matmul_tile(b, matmul_name(d, 2 * d), d, 2 * d)
    proj = b.panel("mtp_proj", (("mtp.proj.weight", d),), 2 * d, tile)
    pair = b.scratch("mtp_pair", 2 * d, "bf16")
    order = {name: i * d for i, name in enumerate(mtp.concat)}
    read = b.kernel(
        "drafter_input",
        "drafter_input",
        EMBEDDING_AT=order["embedding"],
        HIDDEN_AT=order["hidden"],
        EPS=b.spec.norm_eps,
        **row_constants(b),
    )
    return [
        launch(
            read,
            ("rows",),
            "mtp",
            f"{pair} [rows, {2 * d}] bf16",
            row_slot="row_slot",
            row_token="row_token",
            embed="embed",
            x="stream",
            embedding_norm=embedding_norm,
            hidden_norm=hidden_norm,
            pair=pair,
        ),
        matmul(b, pair, proj, "stream", d, 2 * d, layer="mtp"),
        *lower_layer(b, "mtp.layer", b.spec.layers[mtp.layer], "stream", f"mtp {mtp.layer}"),
    ]


def _norm(b: Builder, mtp: MTPSpec) -> str:
    return b.vector("mtp_norm", "mtp.norm.weight", b.spec.d_model) if mtp.post_norm == "own" else "final_norm"


def lower_drafter(b: Builder) -> None:
    """Sections of the drafter, for verify steps and prefill; nothing without an MTP module."""
    mtp = b.spec.mtp
    if mtp is None:
        return
    d = b.spec.d_model
    b.scratch("draft_hidden", d, "fp32")
    rows = b.kernel("drafter_rows", "drafter_rows", MAX_ROWS=b.limits.max_rows, **ring_constants(b))
    prefill_rows = b.kernel("drafter_rows_prefill", "drafter_rows_prefill", **ring_constants(b))
    select = b.kernel("drafter_select", "drafter_select", **row_constants(b))
    sample = b.kernel("draft_sample", "draft_sample", **sampling_constants(b))
    following = b.kernel("drafter_next_row", "drafter_next_row", MAX_ROWS=b.limits.max_rows)
    row_names = (
        "slot_idx",
        "num_accepted",
        "committed_len",
        "out_tokens",
        "hidden_ring",
        "row_slot",
        "row_pos",
        "row_token",
        "row_first",
        "row_count",
        "x",
        "rows_per_slot",
    )
    prefill_names = (
        "slot_idx",
        "committed_len",
        "row_first",
        "row_seat",
        "hidden_ring",
        "x",
        "row_slot",
        "row_pos",
        "draft_hidden",
    )
    next_names = (
        "slot_idx",
        "committed_len",
        "tokens",
        "row_slot",
        "row_pos",
        "row_token",
        "row_first",
        "row_count",
        "draft_index",
    )
    b.section(
        "drafter",
        "The MTP module over rows_per_slot rows of each slot; `stream` enters as hidden states and leaves as its own.",
        ("stream", "bucket", "rows", "rows_per_slot"),
        _module(b, mtp),
    )
    b.section(
        "draft_rows",
        "Rows of the drafter over the accepted tokens.",
        ("bucket", "rows_per_slot"),
        [launch(rows, ("rows",), "mtp", f"x [rows, {d}] fp32", *row_names)],
    )
    b.section(
        "draft_select",
        "The last accepted drafter row of each slot.",
        ("bucket", "rows_per_slot"),
        [
            launch(
                select,
                ("bucket",),
                "mtp",
                f"draft_hidden [bucket, {d}] fp32",
                slot_idx="slot_idx",
                num_accepted="num_accepted",
                x="x",
                draft_hidden="draft_hidden",
                rows_per_slot="rows_per_slot",
            )
        ],
    )
    b.section(
        "draft_token",
        "Sample draft number draft_index of each slot from the drafter's hidden state.",
        ("bucket", "draft_index"),
        [
            *draft_head(b, mtp, _norm(b, mtp)),
            launch(
                sample,
                ("bucket",),
                "mtp head",
                "tokens [slots, max_rows] int32",
                *("slot_idx", "committed_len", *SAMPLING, "draft_index"),
            ),
        ],
    )
    b.section(
        "draft_next",
        "Rows of the drafter over the draft it just proposed.",
        ("bucket", "draft_index"),
        [launch(following, ("bucket",), "mtp", "row_* [bucket] int32", *next_names)],
    )
    b.section(
        "prefill_draft_rows",
        "Rows of the drafter in a prefill chunk, one behind the target.",
        ("rows",),
        [
            launch(
                prefill_rows,
                ("rows",),
                "mtp",
                f"draft_hidden [rows, {d}] fp32",
                *prefill_names,
            )
        ],
    )

"""The target model's sections. See docs/architecture.md, "The protocol of one step"."""

from __future__ import annotations

from codegen.lower import mamba2
from codegen.lower.builder import Builder, block_d, launch
from codegen.lower.common import matmul, matmul_name, matmul_tile, rms_norm
from codegen.lower.layer import lower_layer
from codegen.lower.sampling import SAMPLING, declare_sampling, sampling_constants, text_size
from codegen.plan import CheckpointPart, Launch, Role, Source
from dsl.spec import Mamba2Spec


def declare_protocol(b: Builder) -> None:
    """Buffers of slots, rows and the residual stream."""
    limits, d = b.limits, b.spec.d_model
    slots, rows = limits.max_slots, b.max_rows
    for name in (
        "committed_len",
        "state_len",
        "limit_len",
        "num_accepted",
        "row_first",
        "row_count",
        "emit_checkpoint",
    ):
        b.buffer(name, (slots,), "int32", Role.PROTOCOL)
    for name in ("slot_idx", "emit_position", "restore_checkpoint", "page_from", "page_to"):
        b.buffer(name, (slots,), "int32", Role.PROTOCOL, fill="pad")
    b.buffer("tokens", (slots, limits.max_rows), "int32", Role.PROTOCOL)
    b.buffer("out_tokens", (slots, limits.max_rows), "int32", Role.PROTOCOL)
    b.buffer("stop_tokens", (slots, limits.max_stop_tokens), "int32", Role.PROTOCOL, fill="pad")
    b.buffer("page_table", (slots, limits.pages_per_slot), "int32", Role.PROTOCOL)
    declare_sampling(b)
    for name in ("row_slot", "row_seat", "row_checkpoint"):
        b.buffer(name, (rows,), "int32", Role.PROTOCOL, fill="pad")
    for name in ("row_pos", "row_token", "targets"):
        b.buffer(name, (rows,), "int32", Role.PROTOCOL)
    b.scratch("x", d, "fp32")
    b.scratch("h", d, "bf16")
    b.buffer("logits", (slots * limits.max_rows, limits.vocab_size), "fp32", Role.SCRATCH)
    b.buffer("hidden_ring", (slots, limits.ring, d), "fp32", Role.RING)
    b.buffer("checkpoint_hidden", (limits.checkpoint_slots, d), "fp32", Role.CHECKPOINT)
    b.checkpoint_part(CheckpointPart("hidden", "hidden_ring", "checkpoint_hidden"))
    vocab = limits.vocab_size
    b.buffer("embed", (vocab, d), "bf16", Role.WEIGHT, sources=(Source("embed.weight", (vocab, d), "bf16"),))
    b.panel("lm_head", ((head_weight(b), vocab),), d, matmul_tile(b, matmul_name(vocab, d), vocab, d))
    b.vector("final_norm", "final_norm.weight", d)


def head_weight(b: Builder) -> str:
    """The tensor [V, d] that the head is made of."""
    return "embed.weight" if b.spec.tie_embeddings else "lm_head.weight"


def row_constants(b: Builder) -> dict[str, int]:
    """Constants of the kernels that move rows of the residual stream."""
    return {"D": b.spec.d_model, "BLOCK_D": block_d(b.spec.d_model)}


def ring_constants(b: Builder) -> dict[str, int]:
    """Constants of the kernels that touch the hidden ring."""
    return {**row_constants(b), "RING": b.limits.ring}


def _layers(b: Builder, prefill: bool) -> list[Launch]:
    launches: list[Launch] = []
    for i, name in enumerate(b.spec.pattern):
        launches += lower_layer(b, f"layers.{i}", b.spec.layers[name], "x", f"layers.{i} {name}", prefill)
    return launches


def _embed(b: Builder) -> Launch:
    embed = b.kernel("embed_rows", "embed_rows", **row_constants(b))
    note = f"x [rows, {b.spec.d_model}] fp32"
    return launch(embed, ("rows",), "embed", note, row_slot="row_slot", row_token="row_token", embed="embed", x="x")


def _logits(b: Builder) -> list[Launch]:
    return [
        rms_norm(b, "x", "final_norm", "h", layer="head"),
        matmul(b, "h", "lm_head", "logits", b.limits.vocab_size, b.spec.d_model, layer="head"),
    ]


def _head(b: Builder) -> list[Launch]:
    sample = b.kernel("sample", "sample", **sampling_constants(b))
    return [
        *_logits(b),
        launch(
            sample,
            ("rows",),
            "head",
            "targets [rows] int32",
            *("row_slot", "row_pos", "committed_len", "masked", *SAMPLING, "targets"),
        ),
    ]


def _emit_hidden(b: Builder) -> Launch:
    emit = b.kernel("emit_hidden", "emit_hidden", **ring_constants(b))
    names = (
        "slot_idx",
        "state_len",
        "committed_len",
        "emit_position",
        "emit_checkpoint",
        "hidden_ring",
        "checkpoint_hidden",
    )
    return launch(emit, ("bucket",), "commit", "checkpoint_hidden when due", *names)


def lower_verify(b: Builder) -> None:
    """Sections `verify` and `accept`."""
    rows = b.kernel("step_rows", "step_rows", MAX_ROWS=b.limits.max_rows)
    store = b.kernel("hidden_store", "hidden_store", **ring_constants(b))
    accept = b.kernel(
        "accept_drafts",
        "accept_drafts",
        MAX_ROWS=b.limits.max_rows,
        MAX_STOP=b.limits.max_stop_tokens,
        VOCAB=b.limits.vocab_size,
        TEXT=text_size(b),
    )
    row_names = (
        "slot_idx",
        "committed_len",
        "tokens",
        "row_slot",
        "row_pos",
        "row_token",
        "row_first",
        "row_count",
        "rows_per_slot",
    )
    launches = [
        launch(rows, ("bucket",), "rows", "row_* [rows] int32", *row_names),
        _emit_hidden(b),
        _embed(b),
        *_layers(b, prefill=False),
        launch(
            store,
            ("rows",),
            "head",
            "hidden_ring",
            row_slot="row_slot",
            row_pos="row_pos",
            x="x",
            hidden_ring="hidden_ring",
        ),
        *_head(b),
    ]
    b.section(
        "verify",
        "Commit what was accepted, run all layers over rows_per_slot tokens of each slot, sample targets.",
        ("bucket", "rows_per_slot"),
        launches,
    )
    names = (
        "slot_idx",
        "targets",
        "tokens",
        "stop_tokens",
        "limit_len",
        "out_tokens",
        "num_accepted",
        "committed_len",
        "state_len",
        "counted",
        "token_counts",
        "slot_text",
        "rows_per_slot",
    )
    b.section(
        "accept",
        "Accept the drafts that equal their targets; advance every slot.",
        ("bucket", "rows_per_slot"),
        [launch(accept, ("bucket",), "accept", "num_accepted [slots] int32", *names)],
    )


def lower_prefill(b: Builder) -> None:
    """Sections `prefill` and `prefill_end`: the drafter's share runs between them."""
    hidden = b.kernel("prefill_hidden", "prefill_hidden", **ring_constants(b))
    advance = b.kernel("prefill_advance", "prefill_advance")
    names = (
        "slot_idx",
        "committed_len",
        "row_first",
        "row_count",
        "row_seat",
        "row_checkpoint",
        "x",
        "hidden_ring",
        "checkpoint_hidden",
    )
    b.section(
        "prefill",
        "Run a chunk of each slot through all layers, committing their states.",
        ("bucket", "rows"),
        [_embed(b), *_layers(b, prefill=True)],
    )
    b.section(
        "prefill_end",
        "Keep the hidden states that outlive the chunk; commit it.",
        ("bucket", "rows"),
        [
            launch(hidden, ("rows",), "commit", "hidden_ring, checkpoint_hidden", *names),
            launch(
                advance,
                ("bucket",),
                "commit",
                "committed_len, state_len",
                slot_idx="slot_idx",
                row_count="row_count",
                committed_len="committed_len",
                state_len="state_len",
            ),
        ],
    )


def lower_begin(b: Builder) -> None:
    """Section `begin`: the first token of a slot, from the hidden state of its last committed token."""
    rows = b.kernel("begin_rows", "begin_rows", **ring_constants(b))
    accept = b.kernel(
        "begin_accept",
        "begin_accept",
        MAX_ROWS=b.limits.max_rows,
        VOCAB=b.limits.vocab_size,
        TEXT=text_size(b),
    )
    names = ("slot_idx", "committed_len", "hidden_ring", "row_slot", "row_pos", "x")
    b.section(
        "begin",
        "Sample the first token of each slot from its last hidden state.",
        ("bucket",),
        [
            launch(rows, ("bucket",), "rows", f"x [bucket, {b.spec.d_model}] fp32", *names),
            *_head(b),
            launch(
                accept,
                ("bucket",),
                "accept",
                "tokens, out_tokens, num_accepted",
                *("slot_idx", "targets", "tokens", "out_tokens", "num_accepted", "committed_len", "counted"),
                *("token_counts", "slot_text"),
            ),
        ],
    )


def lower_save(b: Builder) -> None:
    """Section `save`: commit without verifying, for slots that finish with a checkpoint due."""
    rows = b.kernel("save_rows", "save_rows")
    advance = b.kernel("save_advance", "save_advance")
    launches = [launch(rows, ("bucket",), "rows", "row_count = 0", row_count="row_count"), _emit_hidden(b)]
    for i, layer in enumerate(b.spec.pattern_layers):
        if isinstance(layer.mixer, Mamba2Spec):
            names = mamba2.declare(b, f"layers.{i}", layer.mixer)
            launches += mamba2.commit(b, names, layer.mixer, f"layers.{i} {b.spec.pattern[i]}")
    launches.append(
        launch(
            advance,
            ("bucket",),
            "commit",
            "state_len",
            slot_idx="slot_idx",
            committed_len="committed_len",
            state_len="state_len",
        )
    )
    b.section("save", "Commit what was accepted, with no new rows.", ("bucket", "rows_per_slot"), launches)


def lower_score(b: Builder) -> None:
    """Section `score`: once more the logits that a token was chosen from, in at most max_slots * max_rows rows."""
    rows = b.kernel("score_rows", "score_rows", **ring_constants(b))
    names = ("row_slot", "row_pos", "hidden_ring", "x")
    b.section(
        "score",
        "Logits of the hidden states at row_pos of row_slot that the ring still holds; only scratch changes.",
        ("rows",),
        [launch(rows, ("rows",), "rows", f"x [rows, {b.spec.d_model}] fp32", *names), *_logits(b)],
    )

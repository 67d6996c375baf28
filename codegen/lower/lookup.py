"""Prompt lookup as drafter: for models without an MTP module, and for text that repeats itself."""

from __future__ import annotations

from codegen.lower.builder import Builder, launch
from codegen.lower.sampling import text_size
from codegen.tunables import Tunable, among

NGRAM = 3  # tokens of the longest match: longer ones are rarer
BLOCK_T = 256  # tokens compared at once


def lower_lookup(b: Builder) -> None:
    """Section `lookup`; nothing where a step has no room for drafts. Source: arXiv 2304.04487 (input as reference)."""
    if not b.limits.max_drafts:
        return
    blocks = among(BLOCK_T, (64, 128, 256, 512, 1024))
    chosen = b.choose(
        "lookup_drafts", Tunable("BLOCK_T", BLOCK_T, blocks, changes_bits=False), *b.target.warps(changes_bits=False)
    )
    kernel = b.kernel(
        "lookup_drafts",
        "lookup_drafts",
        TEXT=text_size(b),
        MAX_ROWS=b.limits.max_rows,
        NGRAM=NGRAM,
        BLOCK_T=chosen["BLOCK_T"],
    )
    names = ("slot_idx", "committed_len", "slot_text", "tokens", "num_drafts")
    b.section(
        "lookup",
        "num_drafts drafts of each slot out of its own text.",
        ("bucket", "num_drafts"),
        [launch(kernel, ("bucket",), "lookup", "tokens [slots, max_rows] int32", *names)],
    )

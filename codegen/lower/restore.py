"""Section `restore`: a checkpoint back into a slot, in one replay instead of a copy per buffer."""

from __future__ import annotations

from codegen.lower.builder import Builder, launch
from codegen.lower.layer import restore_layer
from codegen.lower.target_model import ring_constants


def lower_restore(b: Builder) -> None:
    """Of every layer and of the MTP module. The host has set the slots' lengths to the checkpoints' positions."""
    kernel = b.kernel("restore_hidden", "restore_hidden", **ring_constants(b))
    names = ("slot_idx", "committed_len", "restore_checkpoint", "checkpoint_hidden", "hidden_ring")
    launches = [launch(kernel, ("bucket",), "head", "hidden_ring", *names)]
    for i, name in enumerate(b.spec.pattern):
        launches += restore_layer(b, f"layers.{i}", b.spec.layers[name], f"layers.{i} {name}")
    if b.spec.mtp is not None:
        layer = b.spec.mtp.layer
        launches += restore_layer(b, "mtp.layer", b.spec.layers[layer], f"mtp {layer}")
    doc = "Copy checkpoint restore_checkpoint of each slot into it, and page page_from to page_to, its own."
    b.section("restore", doc, ("bucket",), launches)

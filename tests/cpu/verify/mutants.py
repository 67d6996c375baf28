"""Faults, planted in a built package or in the runtime, and what verify must say of each."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from runtime.checkpoints.cache import PrefixCache
from runtime.checkpoints.checkpoint import Checkpoint
from runtime.emission import Emitter
from runtime.executor import Executor, Phase

Plant = Callable[[Path, pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutant:
    """A fault. check: the property that must fail; layer, buffer: what its first finding must name.

    in_text: whether answers differ too, so that comparing them would do.
    """

    name: str
    plant: Plant
    check: str
    layer: str
    buffer: str
    in_text: bool = True


def copy_package(package: Path, folder: Path) -> Path:
    """A copy whose kernel cache is the original's: only what a fault changes is compiled again."""
    shutil.copytree(package, folder, ignore=shutil.ignore_patterns("cache", "__pycache__"))
    (folder / "cache").symlink_to(package / "cache")
    return folder


def edit(package: Path, pattern: str, *changes: tuple[str, str]) -> None:
    """Replace text, which must be there, once in the one file of the package that matches; its hash is made right."""
    (file,) = package.glob(pattern)
    text = file.read_text()
    for old, new in changes:
        assert old in text, f"{file.name} no longer holds {old!r}"
        text = text.replace(old, new, 1)
    file.write_text(text)
    manifest = package / "manifest.json"
    content = json.loads(manifest.read_text())
    content["files"][file.relative_to(package).as_posix()] = hashlib.sha256(text.encode()).hexdigest()
    manifest.write_text(json.dumps(content))


def stale_temperature(package: Path, _: pytest.MonkeyPatch) -> None:
    """The sampling launch of a step reads a copy of `temperature` that was made when the step was recorded."""
    copy = "\n\nCOPIES = []\n\n\ndef copied(tensor):\n    COPIES.append(tensor.clone())\n    return COPIES[-1]\n\n\n"
    edit(
        package,
        "cpu/step.py",
        ("\n\ndef row_tile", copy + "def row_tile"),
        ("temperature=b.temperature", "temperature=copied(b.temperature)"),
    )


def padded_with_zero(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty seats of a bucket carry slot 0."""
    row = Executor.slot_row
    pad = {-1: 0}
    monkeypatch.setattr(
        Executor, "slot_row", lambda self, slots: type(row(self, slots))("i", [pad.get(s, s) for s in row(self, slots)])
    )


def hidden_of_the_row_before(package: Path, _: pytest.MonkeyPatch) -> None:
    """The drafter pairs the token at i + 1 with the hidden state of i - 1."""
    edit(package, "cpu/kernels/drafter_rows.py", ("(position & (RING - 1))", "((position - 1) & (RING - 1))"))


def conv_ring_by_cursor(package: Path, _: pytest.MonkeyPatch) -> None:
    """The conv's ring goes on where the rows of the step before ended, accepted or not."""
    edit(
        package,
        "cpu/kernels/mamba2_conv_step_*.py",
        (
            "    for t in range(",
            "    folded = tl.load(state_len + slot)\n"
            "    cursor = tl.where(folded == start, start, folded + rows_per_slot)\n"
            "    for t in range(",
        ),
        ("conv_append(raw, here, ", "conv_append(raw, cursor + t, "),
    )


def emission_a_token_late(package: Path, _: pytest.MonkeyPatch) -> None:
    """The state written to a checkpoint holds the token after it, if that was accepted."""
    edit(
        package,
        "cpu/kernels/mamba2_scan_step_*.py",
        ("(emits, emit, folded)", "(emits, tl.minimum(emit + 1, start), folded)"),
    )


def graph_key_without_drafts(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step graph is looked up by its bucket alone."""
    _shorten_key(monkeypatch, 2)


def graph_key_without_next_drafts(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step graph is looked up by its bucket and the drafts that it verifies, not by those that it makes."""
    _shorten_key(monkeypatch, 3)


def _shorten_key(monkeypatch: pytest.MonkeyPatch, fields: int) -> None:
    graph = Executor.graph

    def lookup(self: Executor, phase: Phase, size: int, *drafts: int, **options: int) -> object:
        wanted = (phase, size, *drafts)[:fields]
        known = next((made for key, made in self.graphs.items() if key[:fields] == wanted), None)
        return known or graph(self, phase, size, *drafts, **options)

    monkeypatch.setattr(Executor, "graph", lookup)


def answers_without_an_end(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is due of a finished answer is saved, but not its end."""
    monkeypatch.setattr(Emitter, "finish", Emitter.flush)


def junctions_not_found(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts that leave a known text leave no checkpoint there."""
    monkeypatch.setattr(PrefixCache, "junction", lambda *_: None)


def restored_from_another_row(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restore reads the row before the checkpoint's own."""
    restore = Executor.restore

    def wrong(self: Executor, slot: int, checkpoint: Checkpoint, *pages: object) -> None:
        restore(self, slot, replace(checkpoint, index=max(0, checkpoint.index - 1)), *pages)

    monkeypatch.setattr(Executor, "restore", wrong)


MUTANTS = (
    Mutant("stale-buffer", stale_temperature, "replay", "head", "targets"),
    Mutant("padding-id-0", padded_with_zero, "padding", "layers.0 mamba", "layers_0_conv_ring"),
    Mutant("mtp-pairing", hidden_of_the_row_before, "reference-drafts", "mtp drafter", "mtp_layer_k_cache"),
    Mutant("conv-not-rolled-back", conv_ring_by_cursor, "drafts-3", "layers.0 mamba", "layers_0_conv_ring"),
    Mutant(
        "late-emission",
        emission_a_token_late,
        "checkpoints",
        "layers.0 mamba",
        "layers_0_checkpoint_state",
        in_text=False,
    ),
    Mutant("no-answer-end", answers_without_an_end, "checkpoints", "", "", in_text=False),
    Mutant("no-junction", junctions_not_found, "checkpoints", "", "", in_text=False),
    Mutant("another-row", restored_from_another_row, "resumed", "layers.0 mamba", "layers_0_conv_ring"),
    Mutant("key-without-drafts", graph_key_without_drafts, "drafts-changing", "accept", "tokens"),
    Mutant(
        "key-without-next-drafts",
        graph_key_without_next_drafts,
        "same-drafts-changing",
        "accept",
        "tokens",
        in_text=False,
    ),
)

"""Hostile checkpoint archives: how a good one is changed, and the code of the refusal."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

from runtime.checkpoints import files
from tests.hostile.weights import Change, joined, on_header, split

DAMAGED = "checkpoint-damaged"


def resealed(change: Callable[[dict[str, Any]], Any]) -> Change:
    """A changed header whose checksum was made to match."""

    def apply(data: bytes) -> bytes:
        header, body = split(data)
        change(header)
        header["__metadata__"].pop("sha256", None)
        header["__metadata__"]["sha256"] = hashlib.sha256(files._canonical(header)).hexdigest()
        return joined(files._canonical(header), body)

    return apply


def manifest(change: Callable[[dict[str, Any]], Any]) -> Change:
    """A changed list of what the archive holds, sealed."""

    def edit(header: dict[str, Any]) -> None:
        listed = json.loads(header["__metadata__"]["manifest"])
        change(listed)
        header["__metadata__"]["manifest"] = json.dumps(listed)

    return resealed(edit)


def meta(**fields: Any) -> Change:
    """Changed metadata, sealed."""
    return resealed(lambda header: header["__metadata__"].update(fields))


CHECKPOINTS: dict[str, tuple[Change, str]] = {
    "empty": (lambda data: b"", DAMAGED),
    "a header of 2**63 bytes": (lambda data: (1 << 63).to_bytes(8, "little") + data[8:], DAMAGED),
    "cut by a byte": (lambda data: data[:-1], DAMAGED),
    "a byte too many": (lambda data: data + b"\0", DAMAGED),
    "a bit flipped in a tensor": (lambda data: data[:-1] + bytes([data[-1] ^ 1]), DAMAGED),
    "a header of brackets": (lambda data: joined(b"[" * 100_000, b""), DAMAGED),
    "a header that is not sealed": (on_header(lambda h: h["__metadata__"].update(model="x")), DAMAGED),
    "weights": (lambda data: joined({"a": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}, b""), DAMAGED),
    "another format": (meta(stepforge_checkpoints="2"), "checkpoint-format"),
    "another build": (meta(stamp="x"), "checkpoint-foreign"),
    "another model, which clears the screen": (meta(model="\x1b[2J"), "checkpoint-foreign"),
    "another kind": (meta(kind="page"), DAMAGED),
    "metadata that is a number": (meta(more=1), DAMAGED),
    "a page that is not there": (manifest(lambda m: m["images"][0][2].append(99)), DAMAGED),
    "a page below zero": (manifest(lambda m: m["images"][0][2].append(-1)), DAMAGED),
    "a position below zero": (manifest(lambda m: m["images"][0].__setitem__(0, -4)), DAMAGED),
    "a position of 2**40": (manifest(lambda m: m["images"][0].__setitem__(0, 1 << 40)), "checkpoint-foreign"),
    "a digest that is no digest": (manifest(lambda m: m["images"][0].__setitem__(1, "xyz")), DAMAGED),
    "a list of brackets": (meta(manifest="[" * 100_000), DAMAGED),
    "a tensor of another shape": (
        resealed(lambda h: h["tokens"].update(shape=[1, *h["tokens"]["shape"]])),
        "checkpoint-foreign",
    ),
}

"""What may lie where `python -m codegen build` is to write: how it gets there, and the code of the refusal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.hostile import places

HASH = "0" * 64


def holding(name: str, content: str) -> Callable[[Path], None]:
    """A folder with one file."""

    def make(output: Path) -> None:
        output.mkdir()
        (output / name).write_text(content)

    return make


def recording(**fields: object) -> Callable[[Path], None]:
    """A folder with a manifest."""
    return holding("manifest.json", json.dumps({"format": 1, "generator": "0.1.0", "files": {}} | fields))


def place(name: str, make: places.Make) -> Callable[[Path], None]:
    """A folder in which something lies that is no file."""

    def apply(output: Path) -> None:
        output.mkdir()
        make(output / name)

    return apply


def below_a_file(output: Path) -> None:
    """A file where a parent of the output would be."""
    output.parent.rmdir()
    output.parent.write_text("")


REFUSED, NOT_WRITTEN = "build-output", "build-not-written"
OUTPUTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "somebody's folder": (holding("thesis.txt", "keep"), REFUSED),
    "a file": (lambda output: output.write_text("keep") and None, REFUSED),
    "a fifo": (places.fifo, REFUSED),
    "a device": (places.full, REFUSED),
    "a link to itself": (places.loop, NOT_WRITTEN),
    "a file as a parent": (below_a_file, NOT_WRITTEN),
    "a manifest that is a fifo": (place("manifest.json", places.fifo), REFUSED),
    "a manifest that is endless": (place("manifest.json", places.zeros), REFUSED),
    "a manifest that links to itself": (place("manifest.json", places.loop), REFUSED),
    "a manifest that is a folder": (place("manifest.json", places.folder), REFUSED),
    "a manifest of something else": (holding("manifest.json", '{"name": "pwa"}'), REFUSED),
    "a manifest of brackets": (holding("manifest.json", "[" * 100_000), REFUSED),
    "a manifest whose files are a list": (recording(files=[]), REFUSED),
    "a manifest whose hash is a number": (recording(files={"a": 1}), REFUSED),
    "a plan that is a link": (place("cpu", lambda path: path.symlink_to("/tmp")), REFUSED),
}

"""A manifest is untrusted: whatever is in it, the answer is one error of the runtime's own."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime.errors import PackageDamaged, RuntimeStateError
from runtime.manifest import MANIFEST
from runtime.package import open_package
from runtime.tokenizer import ByteTokenizer

DAMAGE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no folder": lambda m: m["targets"]["cpu"].pop("folder"),
    "folder that climbs": lambda m: m["targets"]["cpu"].update(folder="../cpu"),
    "folder that is no text": lambda m: m["targets"]["cpu"].update(folder=3),
    "no numerics hash": lambda m: m["targets"]["cpu"].pop("numerics_sha256"),
    "targets that are a list": lambda m: m.update(targets=["cpu"]),
    "files that are a list": lambda m: m.update(files=[]),
    "a file outside": lambda m: m["files"].update({"../../etc/passwd": "0"}),
    "an absolute file": lambda m: m["files"].update({"/etc/passwd": "0"}),
    "a plan that is not listed": lambda m: m["files"].pop("cpu/plan.json"),
    "a format that is no number": lambda m: m.update(format="1"),
    "no name": lambda m: m.pop("name"),
    "a wrong hash": lambda m: m["files"].update({"cpu/step.py": "0" * 64}),
}


@pytest.fixture
def manifest(package) -> tuple[Path, dict[str, Any]]:
    return package.path, json.loads((package.path / MANIFEST).read_text())


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_manifest_is_one_clear_error(manifest, tmp_path: Path, name: str) -> None:
    path, data = manifest
    copied = tmp_path / "package"
    copied.mkdir()
    for entry in path.iterdir():
        (copied / entry.name).symlink_to(entry)
    (copied / MANIFEST).unlink()
    data = copy.deepcopy(data)
    DAMAGE[name](data)
    (copied / MANIFEST).write_text(json.dumps(data))
    with pytest.raises(PackageDamaged):
        open_package(copied)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"null", b"\xff\xfe", b"{", b"[" * 100_000, b'{"format": 1}', b'{"format": true}']
)
def test_what_is_no_manifest_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / MANIFEST).write_bytes(content)
    with pytest.raises(PackageDamaged):
        open_package(tmp_path)


def test_bytes_of_a_command_line_come_back() -> None:
    tokenizer = ByteTokenizer(["bos"])
    assert tokenizer.encode(b"a\xff".decode("utf-8", "surrogateescape")) == [256, 97, 255]
    with pytest.raises(RuntimeStateError, match="UTF-8"):
        tokenizer.encode("\ud800")

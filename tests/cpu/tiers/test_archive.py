"""One file with many checkpoints: all of them, to the bit, each page once; or one named error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from runtime.checkpoints import files
from runtime.checkpoints.archive import load_archive, save_archive
from runtime.errors import (
    BadOption,
    CheckpointArchiveNotFound,
    CheckpointFileDamaged,
    CheckpointFileError,
    CheckpointNotWritten,
)
from tests.cpu.tiers.images import LAYOUT, LAYOUTS, assert_exact, image_of, key
from tests.cpu.tiers.test_files import interesting_offsets, resealed

IMAGES = [image_of(range(length)) for length in (5, 11, 30)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_archive(tmp_path / "archive", IMAGES, LAYOUT)
    return tmp_path / "archive"


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_is_loaded_is_what_was_saved(tmp_path: Path, name: str) -> None:
    layout = LAYOUTS[name]
    images = [image_of(range(start, start + length), layout) for start, length in ((0, 1), (0, 8), (0, 30), (5, 9))]
    report = save_archive(tmp_path / "archive", [*images, images[1]], layout)
    assert (report.path, report.images) == (tmp_path / "archive", 4)
    assert report.bytes == (tmp_path / "archive").stat().st_size
    loaded = load_archive(str(tmp_path / "archive"), layout)
    assert [key(image) for image in loaded] == [key(image) for image in images]
    for image in loaded:
        assert_exact(image, layout)
    assert (tmp_path / "archive").stat().st_mode & 0o077 == 0


def test_pages_are_saved_and_loaded_once(path: Path) -> None:
    loaded = load_archive(path, LAYOUT)
    pages = {id(page) for image in loaded for page in image.pages}
    distinct = {page.key for image in IMAGES for page in image.pages}
    assert len(pages) == len(distinct) < sum(len(image.pages) for image in IMAGES)
    assert save_archive(path, loaded, LAYOUT).pages == len(distinct)


def test_an_archive_of_nothing(tmp_path: Path) -> None:
    assert save_archive(tmp_path / "archive", [], LAYOUT).images == 0
    assert load_archive(tmp_path / "archive", LAYOUT) == []


def test_the_same_images_give_the_same_bytes(path: Path) -> None:
    first = path.read_bytes()
    save_archive(path, load_archive(path, LAYOUT), LAYOUT)
    assert path.read_bytes() == first


def test_an_image_of_another_build_is_not_saved(path: Path) -> None:
    first = path.read_bytes()
    with pytest.raises(CheckpointNotWritten, match="other names, shapes or dtypes"):
        save_archive(path, [*IMAGES, image_of(range(5), LAYOUTS["attention only"])], LAYOUT)
    assert path.read_bytes() == first


def test_a_header_too_large_to_be_read_is_not_written(path: Path, monkeypatch: Any) -> None:
    first = path.read_bytes()
    monkeypatch.setattr(files, "HEADER_LIMIT", 1000)
    with pytest.raises(CheckpointNotWritten, match="at most 1000 fit"):
        save_archive(path, IMAGES, LAYOUT)
    assert path.read_bytes() == first and len(list(path.parent.iterdir())) == 1


def test_damage_anywhere_is_noticed(path: Path) -> None:
    data = path.read_bytes()
    for end in interesting_offsets(data):
        path.write_bytes(data[:end])
        with pytest.raises(CheckpointFileDamaged, match="archive"):
            load_archive(path, LAYOUT)
    for offset in range(0, len(data), 3):
        path.write_bytes(data[:offset] + bytes([data[offset] ^ 1 << offset % 8]) + data[offset + 1 :])
        with pytest.raises(CheckpointFileError, match="archive"):
            load_archive(path, LAYOUT)


def changed(change: Any) -> Any:
    def header(h: dict[str, Any]) -> None:
        manifest = json.loads(h["__metadata__"]["manifest"])
        change(manifest)
        h["__metadata__"]["manifest"] = json.dumps(manifest)

    return header


@pytest.mark.parametrize(
    "change",
    [
        changed(lambda m: m.clear()),
        changed(lambda m: m["images"][0].pop()),
        changed(lambda m: m["images"][0].__setitem__(0, 6)),
        changed(lambda m: m["images"][0].__setitem__(0, -5)),
        changed(lambda m: m["images"][0].__setitem__(0, 1 << 70)),
        changed(lambda m: m["images"][0].__setitem__(1, "zz")),
        changed(lambda m: m["images"][0].__setitem__(1, "00" * 16)),
        changed(lambda m: m["images"][0].__setitem__(2, [0])),
        changed(lambda m: m["images"][0].__setitem__(2, [0, 1 << 40])),
        changed(lambda m: m["images"][0].__setitem__(2, [True, -1])),
        changed(lambda m: m["images"][0].__setitem__(2, 3)),
        changed(lambda m: m["images"].reverse()),
        changed(lambda m: m["pages"].reverse()),
        changed(lambda m: m["pages"].pop()),
        changed(lambda m: m.update(images=[m["images"]] * 1000)),
        lambda h: h["__metadata__"].update(manifest="[" * 10_000),
        lambda h: h["__metadata__"].pop("manifest"),
    ],
)
def test_a_manifest_that_was_sealed_again_is_still_checked(path: Path, change: Any) -> None:
    path.write_bytes(resealed(path.read_bytes(), change))
    with pytest.raises(CheckpointFileError, match="archive"):
        load_archive(path, LAYOUT)


def test_what_is_no_archive(tmp_path: Path, path: Path) -> None:
    with pytest.raises(CheckpointArchiveNotFound, match="nothing"):
        load_archive(tmp_path / "nothing", LAYOUT)
    for wrong in (tmp_path, path / "below"):
        with pytest.raises(CheckpointFileDamaged):
            load_archive(wrong, LAYOUT)
    for name in (None, 5, "", "a\0"):
        with pytest.raises(BadOption):
            load_archive(name, LAYOUT)
    save_file(dict(IMAGES[0].parts), tmp_path / "weights", metadata={"format": "pt"})
    with pytest.raises(CheckpointFileDamaged, match="something else"):
        load_archive(tmp_path / "weights", LAYOUT)
    (tmp_path / "link").symlink_to(path)
    assert len(load_archive(tmp_path / "link", LAYOUT)) == 3
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(CheckpointFileDamaged, match="symbolic links"):
        load_archive(tmp_path / "loop", LAYOUT)

"""Checkpoint files: what was saved, to the bit, or one named error; never a wrong image."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from runtime.checkpoints import files
from runtime.checkpoints.archive import load_archive, save_archive
from runtime.checkpoints.files import file_name, read_checkpoint, read_page, write_checkpoint, write_page
from runtime.checkpoints.image import CheckpointImage
from runtime.errors import CheckpointFileDamaged, CheckpointFileError, CheckpointFileForeign, CheckpointFileFormat
from tests.cpu.tiers.images import LAYOUT, LAYOUTS, assert_exact, image_of, key

IMAGE = image_of(range(11))
NO_HEADERS = (
    *(b"", b"{", b"[]", b"null", b"{}", b"[" * 100_000, b"\xff"),
    *(b'{"__metadata__":[]}', b'{"__metadata__":{"format":"pt"}}'),
)
FOREIGN = {
    "stamp": replace(LAYOUT, stamp=LAYOUT.stamp.replace("3.6.0", "3.7.0")),
    "model": replace(LAYOUT, model="other"),
    "drafting": replace(LAYOUT, drafting=False),
    "names, shapes": replace(LAYOUT, parts=LAYOUT.parts | {"state": ((2, 3, 6), "fp32")}),
    "dtypes": replace(LAYOUT, parts=LAYOUT.parts | {"conv": ((3, 7), "fp32")}),
}


def write_all(folder: Path, image: CheckpointImage = IMAGE, layout: Any = LAYOUT) -> Path:
    """A checkpoint's file and, in a folder beside it, those of its pages."""
    (folder / "pages").mkdir(exist_ok=True)
    shared = [page for page in image.pages if page.key[0] > 0]
    needs = {page.key: write_page(folder / "pages" / file_name(page.key), page, layout) for page in shared}
    path = folder / file_name(key(image))
    write_checkpoint(path, image, layout, needs)
    return path


def read_all(folder: Path, image: CheckpointImage = IMAGE, layout: Any = LAYOUT) -> CheckpointImage:
    found, needs = read_checkpoint(folder / file_name(key(image)), layout, key(image))
    pages = [read_page(folder / "pages" / file_name(page), layout, page, sha256) for page, sha256 in needs.items()]
    return replace(found, pages=(*pages, *found.pages))


def header_of(data: bytes) -> dict[str, Any]:
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])


def resealed(data: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """A file whose header was changed by somebody who knows how to compute its checksum."""
    header = header_of(data)
    change(header)
    header["__metadata__"].pop("sha256", None)
    header["__metadata__"]["sha256"] = hashlib.sha256(files._canonical(header)).hexdigest()
    raw = files._canonical(header)
    return len(raw).to_bytes(8, "little") + raw + data[8 + int.from_bytes(data[:8], "little") :]


def interesting_offsets(data: bytes) -> list[int]:
    """Around the ends of the length, the header, and each tensor."""
    start = 8 + int.from_bytes(data[:8], "little")
    ends = [entry["data_offsets"][1] for name, entry in header_of(data).items() if name != "__metadata__"]
    marks = [0, 8, start // 2, start, *(start + end for end in ends)]
    return sorted({mark + more for mark in marks for more in (-1, 0, 1) if 0 <= mark + more < len(data)})


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("length", [1, 4, 5, 8, 9, 30])
def test_what_is_read_is_what_was_written(tmp_path: Path, name: str, length: int) -> None:
    image = image_of(range(length), LAYOUTS[name])
    write_all(tmp_path, image, LAYOUTS[name])
    assert_exact(read_all(tmp_path, image, LAYOUTS[name]), LAYOUTS[name])
    assert {path.suffix for path in tmp_path.rglob("*-*")} == {".safetensors"}


def test_files_are_safetensors_and_the_same_from_every_writer(tmp_path: Path) -> None:
    path = write_all(tmp_path)
    with safe_open(path, framework="pt") as file:
        assert file.get_tensor("tokens").tolist() == list(IMAGE.tokens)
        assert torch.equal(file.get_tensor("part.state").view(torch.int32), IMAGE.parts["state"].view(torch.int32))
        assert file.metadata()["stepforge_checkpoints"] == files.FORMAT
    first = path.read_bytes()
    assert write_all(tmp_path).read_bytes() == first


def test_views_of_a_larger_tensor_are_saved_as_they_are_seen(tmp_path: Path) -> None:
    wide = {name: torch.stack([part, part], dim=-1)[..., 0] for name, part in IMAGE.parts.items()}
    assert not wide["state"].is_contiguous()
    write_all(tmp_path, replace(IMAGE, parts=wide))
    assert_exact(read_all(tmp_path))


def test_a_file_cut_short_or_with_something_after_it_is_damaged(tmp_path: Path) -> None:
    path = write_all(tmp_path)
    for victim in (path, next((tmp_path / "pages").glob("5-*"))):
        data = victim.read_bytes()
        for end in interesting_offsets(data):
            victim.write_bytes(data[:end])
            with pytest.raises(CheckpointFileDamaged, match=victim.name):
                read_all(tmp_path)
        victim.write_bytes(data + b"\0")
        with pytest.raises(CheckpointFileDamaged, match=victim.name):
            read_all(tmp_path)
        victim.write_bytes(data)


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = write_all(tmp_path)
    for victim in (path, next((tmp_path / "pages").glob("5-*"))):
        data = victim.read_bytes()
        for offset in range(len(data)):
            victim.write_bytes(data[:offset] + bytes([data[offset] ^ 1 << offset % 8]) + data[offset + 1 :])
            with pytest.raises(CheckpointFileError, match=victim.name):
                read_all(tmp_path)
        victim.write_bytes(data)


@pytest.mark.parametrize("what", FOREIGN)
def test_a_file_of_another_build_is_refused(tmp_path: Path, what: str) -> None:
    write_all(tmp_path)
    with pytest.raises(CheckpointFileForeign, match=what):
        read_all(tmp_path, layout=FOREIGN[what])
    save_archive(tmp_path / "archive", [IMAGE], LAYOUT)
    with pytest.raises(CheckpointFileForeign, match=what):
        load_archive(tmp_path / "archive", FOREIGN[what])


def test_both_stamps_are_shown_shortened(tmp_path: Path) -> None:
    write_all(tmp_path)
    with pytest.raises(CheckpointFileForeign) as caught:
        read_all(tmp_path, layout=FOREIGN["stamp"])
    stamp = "stamp is 0123456789ab 89abcdef0123 triton 3.6.0, this engine's is 0123456789ab 89abcdef0123 triton 3.7.0"
    assert stamp in str(caught.value)


@pytest.mark.parametrize("version", ["0", "2", "\x1b[31m"])
def test_another_format_is_named(tmp_path: Path, version: str) -> None:
    path = write_all(tmp_path)
    path.write_bytes(resealed(path.read_bytes(), lambda h: h["__metadata__"].update(stepforge_checkpoints=version)))
    with pytest.raises(CheckpointFileFormat, match=r"has checkpoint format .*, this runtime reads 1") as caught:
        read_all(tmp_path)
    assert str(caught.value).isprintable()


def test_a_file_that_was_renamed_is_refused(tmp_path: Path) -> None:
    path, other = write_all(tmp_path), image_of(range(1, 12))
    path.rename(tmp_path / file_name(key(other)))
    with pytest.raises(CheckpointFileDamaged, match="not what its name says, but 11-"):
        read_all(tmp_path, other)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda h: h["__metadata__"].update(kind="page"), "no checkpoint file"),
        (lambda h: h["__metadata__"].pop("pages"), "other pages"),
        (lambda h: h["__metadata__"].update(pages="x"), "list of pages"),
        (lambda h: h["__metadata__"].update(position="12"), "not what its name says"),
        (lambda h: h["__metadata__"].pop("data_sha256"), "checksum"),
        (lambda h: h["__metadata__"].update(model=["toy"]), "checksum"),
        (lambda h: h["tokens"].update(shape=[1 << 60]), "names, shapes"),
        (lambda h: h["tokens"].update(data_offsets=[0, 1 << 62]), "names, shapes"),
        (lambda h: h.update(more={}), "names, shapes"),
        (lambda h: h.pop("tokens"), "names, shapes"),
    ],
)
def test_a_header_that_was_sealed_again_is_still_checked(tmp_path: Path, change: Any, match: str) -> None:
    path = write_all(tmp_path)
    path.write_bytes(resealed(path.read_bytes(), change))
    with pytest.raises(CheckpointFileError, match=match):
        read_all(tmp_path)


def test_a_header_is_written_in_one_way_only(tmp_path: Path) -> None:
    path = write_all(tmp_path)
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    path.write_bytes((size + 8).to_bytes(8, "little") + data[8 : 8 + size] + b" " * 8 + data[8 + size :])
    with pytest.raises(CheckpointFileDamaged, match="its header does not have its checksum"):
        read_all(tmp_path)


def test_the_digest_is_computed_again_from_the_tokens(tmp_path: Path) -> None:
    image, other = image_of([1, 2, 3]), image_of([1, 2, 4])
    write_checkpoint(tmp_path / file_name(key(image)), replace(image, tokens=other.tokens), LAYOUT, {})
    with pytest.raises(CheckpointFileDamaged, match="its tokens do not have its digest"):
        read_all(tmp_path, image)


@pytest.mark.parametrize("header", NO_HEADERS, ids=lambda header: repr(header[:20]))
def test_what_is_no_header_is_damaged(tmp_path: Path, header: bytes) -> None:
    path = write_all(tmp_path)
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(CheckpointFileDamaged, match=path.name):
        read_all(tmp_path)


@pytest.mark.parametrize("size", [files.HEADER_LIMIT + 1, 1 << 40, (1 << 64) - 1])
def test_an_absurd_header_is_not_read(tmp_path: Path, size: int) -> None:
    path = write_all(tmp_path)
    with path.open("r+b") as file:
        file.write(size.to_bytes(8, "little"))
        file.truncate(1 << 33)
    with pytest.raises(CheckpointFileDamaged, match=f"claims {size} bytes"):
        read_all(tmp_path)


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    path = write_all(tmp_path)
    real = path.rename(tmp_path / "elsewhere")
    path.symlink_to(real)
    with pytest.raises(CheckpointFileDamaged, match="cannot be read"):
        read_all(tmp_path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(CheckpointFileDamaged, match="not a regular file"):
        read_all(tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(CheckpointFileDamaged, match="cannot be read"):
        read_all(tmp_path)


def test_a_page_of_another_text_does_not_pass_for_this_one(tmp_path: Path) -> None:
    write_all(tmp_path)
    page = IMAGE.pages[0]
    wrong = replace(page, tensors={name: torch.zeros_like(tensor) for name, tensor in page.tensors.items()})
    write_page(tmp_path / "pages" / file_name(page.key), wrong, LAYOUT)
    with pytest.raises(CheckpointFileDamaged, match=rf"{file_name(page.key)}.*contents"):
        read_all(tmp_path)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    write_all(folder)
    save_archive(folder / "archive", [IMAGE, image_of(range(6))], LAYOUT)
    return folder


@given(data=st.data())
def test_no_mutation_of_bytes_gives_a_wrong_image(written: Path, data: st.DataObject) -> None:
    victim = data.draw(st.sampled_from(sorted(path for path in written.rglob("*") if path.is_file())))
    good = victim.read_bytes()
    try:
        victim.write_bytes(data.draw(mutations(good)))
        outcomes = [_outcome(lambda: [read_all(written)]), _outcome(lambda: load_archive(written / "archive", LAYOUT))]
        assert victim.read_bytes() == good or CheckpointFileError in outcomes
    finally:
        victim.write_bytes(good)


def _outcome(read: Callable[[], list[CheckpointImage]]) -> type | None:
    try:
        for image in read():
            assert_exact(image)
    except CheckpointFileError:
        return CheckpointFileError
    return None


@st.composite
def mutations(draw: st.DrawFn, good: bytes) -> bytes:
    """Bytes replaced, inserted, left out or repeated; the whole replaced by anything."""
    bad = bytearray(good)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(bad)))
        end = draw(st.integers(start, min(len(bad), start + 40)))
        bad[start:end] = draw(st.one_of(st.binary(max_size=40), st.just(bytes(bad[start:end]) * 2)))
    return draw(st.sampled_from([bytes(bad), draw(st.binary(max_size=64)), bytes(bad)]))

"""One file with many checkpoints, each page in it once: to take along, where a directory is to share."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from torch import Tensor

from runtime.checkpoints.files import (
    Contents,
    Key,
    Table,
    damaged,
    opened,
    place,
    read_data,
    read_header,
    reason,
    sync_folder,
    tokens_tensor,
    write_contents,
)
from runtime.checkpoints.image import CheckpointImage, ImageLayout, PageImage, PageKey, image_fault
from runtime.errors import CheckpointArchiveNotFound, CheckpointNotWritten
from runtime.whole_file import sweep_partials

NO_MANIFEST = "its manifest cannot be read"


@dataclass(frozen=True)
class ArchiveReport:
    """What `save_archive` wrote. pages: distinct ones; bytes: of the file."""

    path: Path
    images: int
    pages: int
    bytes: int


@dataclass(frozen=True)
class _Manifest:
    """What an archive holds, in order. images: key and the numbers of its pages."""

    images: tuple[tuple[Key, tuple[int, ...]], ...]
    pages: tuple[PageKey, ...]

    def table(self, layout: ImageLayout) -> Table:
        """All tokens after one another; parts by image; pages by page."""
        tokens = sum(position for (position, _), _ in self.images)
        parts = {f"part.{n}": ((len(self.images), *shape), dtype) for n, (shape, dtype) in layout.parts.items()}
        pages = {f"page.{n}": ((len(self.pages), *shape), dtype) for n, (shape, dtype) in layout.page.items()}
        return {"tokens": ((tokens,), "int32")} | parts | pages

    def text(self) -> str:
        """As JSON."""
        images = [[*_readable(key), list(pages)] for key, pages in self.images]
        return json.dumps({"images": images, "pages": [_readable(key) for key in self.pages]}, separators=(",", ":"))


def save_archive(path: str | Path, images: Iterable[CheckpointImage], layout: ImageLayout) -> ArchiveReport:
    """Write the distinct `images` into one file, which replaces what is there. Raises CheckpointNotWritten."""
    path = place(path, "path")
    unique = list({(image.position, image.digest): image for image in images}.values())
    fault = next((fault for image in unique if (fault := image_fault(image, layout)) is not None), None)
    if fault is not None or _in_the_way(path):
        raise CheckpointNotWritten(path=path, detail=fault or "it is not a regular file")
    pages = {page.key: page for image in unique for page in image.pages}
    manifest = _manifest_of(unique, list(pages))
    contents = Contents("archive", {"manifest": manifest.text()}, manifest.table(layout), _rows(unique, pages, layout))
    try:
        sweep_partials(path.parent)
        write_contents(path, contents, layout)
        sync_folder(path.parent)
        return ArchiveReport(path, len(unique), len(pages), path.stat().st_size)
    except OSError as error:
        raise CheckpointNotWritten(path=path, detail=reason(error)) from error


def load_archive(path: str | Path, layout: ImageLayout) -> list[CheckpointImage]:
    """All checkpoints of an archive; the whole file is verified first. Images share the tensors of their pages.

    Raises CheckpointFileDamaged, -Foreign, -Format or CheckpointArchiveNotFound.
    """
    path = place(path, "path")
    try:
        with opened(Path(os.path.realpath(path))) as stream:
            header = read_header(stream, path, layout, "archive")
            manifest = _manifest(path, header.meta.get("manifest", ""))
            tensors = read_data(stream, header, manifest.table(layout))
    except FileNotFoundError as error:
        raise CheckpointArchiveNotFound(path=path) from error
    images = _images(manifest, tensors, layout)
    fault = next((fault for image in images if (fault := image_fault(image, layout)) is not None), None)
    if fault is not None:
        damaged(path, fault)
    return images


def _in_the_way(path: Path) -> bool:
    """Whether there is something that is no file to be replaced: a link, a folder, a device."""
    try:
        return not stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def _manifest_of(images: list[CheckpointImage], pages: list[PageKey]) -> _Manifest:
    numbers = {key: number for number, key in enumerate(pages)}
    listed = (((i.position, i.digest), tuple(numbers[page.key] for page in i.pages)) for i in images)
    return _Manifest(tuple(listed), tuple(pages))


def _rows(
    images: list[CheckpointImage], pages: Mapping[PageKey, PageImage], layout: ImageLayout
) -> dict[str, list[Tensor]]:
    rows = {"tokens": [tokens_tensor(image.tokens) for image in images]}
    rows |= {f"part.{name}": [image.parts[name] for image in images] for name in layout.parts}
    return rows | {f"page.{name}": [page.tensors[name] for page in pages.values()] for name in layout.page}


def _images(manifest: _Manifest, tensors: Mapping[str, Tensor], layout: ImageLayout) -> list[CheckpointImage]:
    pages = [
        PageImage(key, {name: tensors[f"page.{name}"][number] for name in layout.page})
        for number, key in enumerate(manifest.pages)
    ]
    ends = accumulate(position for (position, _), _ in manifest.images)
    return [
        CheckpointImage(
            position,
            tuple(tensors["tokens"][end - position : end].tolist()),
            digest,
            {name: tensors[f"part.{name}"][row] for name in layout.parts},
            tuple(pages[number] for number in numbers),
        )
        for row, (((position, digest), numbers), end) in enumerate(zip(manifest.images, ends, strict=True))
    ]


def _readable(key: Key) -> list[int | str]:
    return [key[0], key[1].hex()]


def _manifest(path: Path, text: str) -> _Manifest:
    """The manifest, read strictly. Raises CheckpointFileDamaged."""
    try:
        data = json.loads(text)
        pages = tuple(_key(n, digest) for n, digest in data["pages"])
        images = tuple(
            (_key(position, digest), tuple(_number(page, len(pages)) for page in numbers))
            for position, digest, numbers in data["images"]
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        damaged(path, NO_MANIFEST)
    if any(position < 1 for (position, _), _ in images):
        damaged(path, NO_MANIFEST)
    return _Manifest(images, pages)


def _key(n: Any, digest: Any) -> Key:
    if type(n) is not int or not isinstance(digest, str):
        raise TypeError("no key")
    return n, bytes.fromhex(digest)


def _number(page: Any, count: int) -> int:
    if type(page) is not int or not 0 <= page < count:
        raise ValueError("no page")
    return page

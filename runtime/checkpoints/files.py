"""Checkpoint files: safetensors, written whole or not at all, and verified before anything of them is returned."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from runtime.checkpoints.image import TORCH_DTYPES, CheckpointImage, ImageLayout, PageImage, PageKey, Shape
from runtime.checkpoints.retention import prefix_digests, shared_pages
from runtime.errors import (
    BadOption,
    CheckpointFileDamaged,
    CheckpointFileForeign,
    CheckpointFileFormat,
    CheckpointNotWritten,
)
from runtime.plan import DTYPE_BYTES
from runtime.whole_file import put_file

FORMAT = "1"
FORMAT_KEY = "stepforge_checkpoints"
METADATA = "__metadata__"
HEADER_LIMIT = 16 << 20
CHUNK = 4 << 20
FILE_DTYPES = {"bf16": "BF16", "fp32": "F32", "int32": "I32"}
VIEWS = {**TORCH_DTYPES, "int32": torch.int32}
NAME = re.compile(r"([1-9]\d{0,8})-([0-9a-f]{32})\.safetensors", re.ASCII)
NEED = re.compile(r"([1-9]\d{0,8})-([0-9a-f]{32}):([0-9a-f]{64})", re.ASCII)
NOT_OURS = "its tensors have other names, shapes or dtypes than this build's"

Key = tuple[int, bytes]
Table = Mapping[str, tuple[Shape, str]]


@dataclass(frozen=True)
class Contents:
    """What a file is to hold. more: metadata of its kind; rows: the tensors that each one of `table` is made of."""

    kind: str
    more: Mapping[str, str]
    table: Table
    rows: Mapping[str, Sequence[Tensor]]


@dataclass(frozen=True)
class Header:
    """The header of a file of this build, whose checksum holds. raw: as it lies in the file."""

    path: Path
    raw: bytes
    meta: Mapping[str, str]


# Checkpoints and pages


def file_name(key: Key) -> str:
    """File of a checkpoint at (position, digest), or of a shared page (n, digest)."""
    return f"{key[0]}-{key[1].hex()}.safetensors"


def key_of(name: str) -> Key | None:
    """The key whose file has this name, if one has."""
    match = NAME.fullmatch(name)
    return (int(match[1]), bytes.fromhex(match[2])) if match else None


def write_checkpoint(path: Path, image: CheckpointImage, layout: ImageLayout, needs: Mapping[PageKey, str]) -> None:
    """Everything of a checkpoint but its shared pages. needs: key -> sha256 of their contents. Raises OSError."""
    key = (image.position, image.digest)
    rows = {"tokens": tokens_tensor(image.tokens)} | {f"part.{name}": t for name, t in image.parts.items()}
    for page in image.pages[len(needs) :]:
        rows |= {f"own.{name}": tensor for name, tensor in page.tensors.items()}
    listed = " ".join(f"{n}-{digest.hex()}:{sha256}" for (n, digest), sha256 in needs.items())
    more = _identity(key) | {"pages": listed}
    table = _checkpoint_table(layout, image.position)
    write_contents(path, Contents("checkpoint", more, table, {name: [t] for name, t in rows.items()}), layout)


def write_page(path: Path, page: PageImage, layout: ImageLayout) -> str:
    """A shared page; returns the sha256 of its contents. Raises OSError."""
    rows = {f"page.{name}": [tensor] for name, tensor in page.tensors.items()}
    return write_contents(path, Contents("page", _identity(page.key), _page_table(layout), rows), layout)


def page_sha256(page: PageImage, layout: ImageLayout) -> str:
    """What `write_page` would return."""
    return _sha256([_bytes(page.tensors[name.removeprefix("page.")]) for name in _ordered(_page_table(layout))])


def read_checkpoint(path: Path, layout: ImageLayout, key: Key) -> tuple[CheckpointImage, dict[PageKey, str]]:
    """The checkpoint without its shared pages, and those: key -> sha256 of the contents.

    Raises CheckpointFileDamaged, -Foreign or -Format, and FileNotFoundError if there is no such file.
    """
    with opened(path) as stream:
        header = read_header(stream, path, layout, "checkpoint")
        _check_key(header, key)
        tensors = read_data(stream, header, _checkpoint_table(layout, key[0]))
    tokens, needs = tuple(tensors["tokens"].tolist()), _needs(header)
    if prefix_digests(tokens, [key[0]]) != [key]:
        damaged(path, "its tokens do not have its digest")
    keys = layout.page_keys(tokens, key[0])
    if tuple(needs) != keys[: len(keys) - _owns_page(layout, key[0])]:
        damaged(path, "it names other pages than its tokens need")
    own = [PageImage(page, _named(tensors, "own.")) for page in keys[len(needs) :]]
    return CheckpointImage(key[0], tokens, key[1], _named(tensors, "part."), tuple(own)), needs


def read_needs(path: Path, layout: ImageLayout, key: Key) -> dict[PageKey, str]:
    """The shared pages of a checkpoint, from the header alone. Raises as `read_checkpoint` does."""
    with opened(path) as stream:
        header = read_header(stream, path, layout, "checkpoint")
    _check_key(header, key)
    return _needs(header)


def read_page(path: Path, layout: ImageLayout, key: PageKey, sha256: str) -> PageImage:
    """A shared page whose contents have this sha256. Raises as `read_checkpoint` does."""
    with opened(path) as stream:
        header = read_header(stream, path, layout, "page")
        _check_key(header, key)
        tensors = read_data(stream, header, _page_table(layout))
    if header.meta["data_sha256"] != sha256:
        damaged(path, "its contents are not those that the checkpoint was saved with")
    return PageImage(key, _named(tensors, "page."))


def _identity(key: Key) -> dict[str, str]:
    return {"position": str(key[0]), "digest": key[1].hex()}


def _check_key(header: Header, key: Key) -> None:
    """A file is what its name says."""
    found = {name: header.meta.get(name) for name in ("position", "digest")}
    if found != _identity(key):
        damaged(header.path, f"it is not what its name says, but {_shown(found['position'])}-{_shown(found['digest'])}")


def _needs(header: Header) -> dict[PageKey, str]:
    matches = [NEED.fullmatch(word) for word in header.meta.get("pages", "").split()]
    if not all(matches):
        damaged(header.path, "its list of pages cannot be read")
    return {(int(match[1]), bytes.fromhex(match[2])): match[3] for match in matches if match}


def _owns_page(layout: ImageLayout, position: int) -> bool:
    """Whether the last page of a checkpoint is its own."""
    return layout.num_pages(position) > shared_pages(position, layout.page_size, layout.drafting)


def _checkpoint_table(layout: ImageLayout, position: int) -> Table:
    own = layout.page if _owns_page(layout, position) else {}
    parts = {f"part.{name}": part for name, part in layout.parts.items()}
    return {"tokens": ((position,), "int32")} | parts | {f"own.{name}": page for name, page in own.items()}


def _page_table(layout: ImageLayout) -> Table:
    return {f"page.{name}": page for name, page in layout.page.items()}


def _named(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def tokens_tensor(tokens: Sequence[int]) -> Tensor:
    """Token ids as int32."""
    return torch.from_numpy(np.array(tokens, dtype=np.int32))


# One file: 8 bytes of header length, the header as canonical JSON, the tensors


def write_contents(path: Path, contents: Contents, layout: ImageLayout) -> str:
    """Write a file atomically; the caller syncs the folder. Returns the sha256 of its tensors. Raises OSError."""
    data = [_bytes(tensor) for name in _ordered(contents.table) for tensor in contents.rows[name]]
    sha256 = _sha256(data)
    meta = build_meta(layout) | {"kind": contents.kind, "data_sha256": sha256, **contents.more}
    sealed = meta | {"sha256": _sha256([_header(contents.table, meta)])}
    header = _header(contents.table, sealed)
    if len(header) > HEADER_LIMIT:
        raise CheckpointNotWritten(path=path, detail=f"a header of {len(header)} bytes, at most {HEADER_LIMIT} fit")
    put_file(path, [len(header).to_bytes(8, "little"), header, *data])
    return sha256


def build_meta(layout: ImageLayout) -> dict[str, str]:
    """What a file says of the build that it belongs to."""
    drafting = "on" if layout.drafting else "off"
    return {FORMAT_KEY: FORMAT, "model": layout.model, "stamp": layout.stamp, "drafting": drafting}


def read_header(stream: BufferedReader, path: Path, layout: ImageLayout, kind: str) -> Header:
    """Read and verify the header. Raises CheckpointFileDamaged, -Format or -Foreign."""
    size = int.from_bytes(_exactly(stream, path, 8), "little")
    if size > HEADER_LIMIT:
        damaged(path, f"its header claims {size} bytes, at most {HEADER_LIMIT} are read")
    raw = _exactly(stream, path, size)
    try:
        header = Header(path, raw, _verified_meta(path, raw))
    except (ValueError, TypeError, AttributeError, RecursionError):
        damaged(path, "it has no safetensors header")
    if header.meta.get("kind") != kind:
        damaged(path, f"it is no {kind} file")
    _check_build(header, layout)
    return header


def _verified_meta(path: Path, raw: bytes) -> dict[str, str]:
    """The metadata of a header: format first, so that later ones are told apart from damage; then the checksum."""
    header: dict[str, Any] = json.loads(raw)
    meta: dict[str, Any] = header.get(METADATA, {})
    found = meta.get(FORMAT_KEY)
    if found is None:
        damaged(path, "it is a safetensors file of something else")
    if found != FORMAT:
        raise CheckpointFileFormat(path=path, found=_shown(found), known=FORMAT)
    unsealed = header | {METADATA: {name: value for name, value in meta.items() if name != "sha256"}}
    sealed = meta.get("sha256") == _sha256([_canonical(unsealed)])
    if not sealed or _canonical(header) != raw or not all(isinstance(value, str) for value in meta.values()):
        damaged(path, "its header does not have its checksum")
    return meta


def read_data(stream: BufferedReader, header: Header, table: Table) -> dict[str, Tensor]:
    """Read the tensors, which must be exactly those of `table`. Raises CheckpointFileForeign or -Damaged."""
    path, total = header.path, _size(table)
    if _header(table, header.meta) != header.raw:
        raise CheckpointFileForeign(path=path, detail=NOT_OURS)
    left = os.fstat(stream.fileno()).st_size - stream.tell()
    if left != total:
        damaged(path, f"it has {left} bytes of tensors instead of {total}")
    data, sha256 = _room(path, total), hashlib.sha256()
    for start in range(0, total, CHUNK):
        part = data[start : start + CHUNK].numpy()
        if stream.readinto(part) != len(part):
            damaged(path, "it is cut short")
        sha256.update(part)
    if sha256.hexdigest() != header.meta.get("data_sha256"):
        damaged(path, "its tensors do not have their checksum")
    return _tensors(data, table)


def _tensors(data: Tensor, table: Table) -> dict[str, Tensor]:
    tensors, offset = {}, 0
    for name, (shape, dtype) in _ordered(table).items():
        size = prod(shape) * DTYPE_BYTES[dtype]
        tensors[name] = data[offset : offset + size].view(VIEWS[dtype]).view(shape)
        offset += size
    return tensors


def _header(table: Table, meta: Mapping[str, str]) -> bytes:
    header: dict[str, Any] = {METADATA: dict(meta)}
    offset = 0
    for name, (shape, dtype) in _ordered(table).items():
        end = offset + prod(shape) * DTYPE_BYTES[dtype]
        header[name] = {"dtype": FILE_DTYPES[dtype], "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    return _canonical(header)


def _canonical(header: Mapping[str, Any]) -> bytes:
    """The one way in which a header is written, padded so that the tensors are aligned."""
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)


def _ordered(table: Table) -> Table:
    """Order of the tensors in the file: wide dtypes first, so that each one is aligned."""
    return dict(sorted(table.items(), key=lambda item: (-DTYPE_BYTES[item[1][1]], item[0])))


def _size(table: Table) -> int:
    return sum(prod(shape) * DTYPE_BYTES[dtype] for shape, dtype in table.values())


def _bytes(tensor: Tensor) -> memoryview:
    return memoryview(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())


def _sha256(chunks: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def _exactly(stream: BufferedReader, path: Path, size: int) -> bytes:
    found = stream.read(size)
    if len(found) != size:
        damaged(path, "it is cut short")
    return found


def _room(path: Path, size: int) -> Tensor:
    try:
        return torch.empty(size, dtype=torch.uint8)
    except RuntimeError:
        damaged(path, f"its tensors need {size} bytes of memory")


def _check_build(header: Header, layout: ImageLayout) -> None:
    for name, wanted in build_meta(layout).items():
        found = header.meta.get(name)
        if found != wanted:
            detail = f"its {name} is {_shown(found)}, this engine's is {_shown(wanted)}"
            raise CheckpointFileForeign(path=header.path, detail=detail)


def _shown(text: object) -> str:
    """Something from a file, as an error may show it: words cut to 12 characters, no control characters."""
    return " ".join(ascii(word)[1:-1] for word in (w[:12] for w in str(text)[:200].split()))


def place(path: object, option: str) -> Path:
    """An absolute path. Raises BadOption if it can be none."""
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path) or not _encodes(os.fsdecode(path)):
        raise BadOption(option=option, value=path, allowed="the path of a file or folder")
    return Path(os.fsdecode(path)).absolute()


def _encodes(path: str) -> bool:
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


def damaged(path: Path, detail: str) -> NoReturn:
    """Raise CheckpointFileDamaged."""
    raise CheckpointFileDamaged(path=path, detail=detail)


def reason(error: OSError) -> str:
    """An OSError without the path, which our errors say themselves."""
    return error.strerror or str(error)


# Files and folders


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """A regular file, never through a link, opened for reading. Raises CheckpointFileDamaged or FileNotFoundError."""
    try:
        with open(path, "rb", opener=_open_regular) as stream:
            yield stream
    except FileNotFoundError:
        raise
    except OSError as error:
        damaged(path, f"it cannot be read ({reason(error)})")


def _open_regular(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return descriptor


def sync_folder(folder: Path) -> None:
    """Make names in `folder` last through a power cut. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

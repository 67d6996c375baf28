"""Weights files: every tensor checked against the plan before one is read. Only safetensors, never pickle."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from runtime.errors import (
    BadOption,
    WeightsChanging,
    WeightsDtype,
    WeightsForeign,
    WeightsMissing,
    WeightsNotFound,
    WeightsShape,
    WeightsUnreadable,
)
from runtime.files import opened_regular
from runtime.known_digests import KnownDigests, identity
from runtime.plan import Buffer, Plan, Source
from runtime.safetensors_header import read_layout

NAMES_SHOWN = 6
NAME_SHOWN = 120  # characters
FILE_DTYPES = {"BF16": "bf16", "F32": "fp32"}
READ_DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32}
TORCH_DTYPES = {torch.bfloat16: "bf16", torch.float32: "fp32"}


class Weights(Protocol):
    """Named tensors. `label` names them in errors; `sha256` identifies their contents."""

    label: str

    @property
    def sha256(self) -> str:
        """Hash of the contents."""

    def confirmed_sha256(self) -> str:
        """The same of what is there now, even if it was remembered."""

    def names(self) -> Iterable[str]:
        """All tensor names."""

    def describe(self, name: str) -> tuple[tuple[int, ...], str]:
        """Shape and dtype of a tensor, without reading it."""

    def tensor(self, name: str) -> Tensor:
        """A tensor's contents, on the CPU; for reading."""

    def release(self) -> None:
        """Let go of the memory of what was read. Tensors stay valid."""

    def check_unchanged(self) -> None:
        """Raise WeightsChanging if what was read since may be something else than what the hash stands for."""


class WeightsFile:
    """A memory-mapped safetensors file. Raises WeightsNotFound or WeightsUnreadable.

    digests: where the hash of a file that has not changed since is found; without, it is read for it.
    """

    def __init__(self, path: str | Path, digests: KnownDigests | None = None) -> None:
        self.label, self._digests = str(path), digests
        self._sha256, self._confirmed = "", False
        try:
            with opened_regular(path) as stream:
                self._stored = read_layout(stream)
                self._map = mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ)
                self._file = _Descriptor(os.dup(stream.fileno()))
                self._opened = self._times()
        except OSError as error:
            hint = "" if error.errno == errno.ENOENT else f" ({error.strerror})"
            raise WeightsNotFound(path=path, hint=hint) from None
        except ValueError as error:
            raise WeightsUnreadable(path=path, detail=error) from error

    @property
    def sha256(self) -> str:
        """Hash of the file: what is remembered of it, or what is there. Raises WeightsNotFound if it cannot be read."""
        if not self._sha256:
            known = None if self._digests is None else self._digests.get(self._identity())
            self._sha256 = known or self.confirmed_sha256()
        return self._sha256

    def confirmed_sha256(self) -> str:
        """Hash of what is there now, which is remembered. Raises WeightsNotFound or WeightsChanging."""
        if self._confirmed:
            return self._sha256
        before = self._identity()
        try:
            with open(os.dup(self._file.number), "rb") as stream:
                stream.seek(0)
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            raise WeightsNotFound(path=self.label, hint=f" ({error.strerror})") from None
        self.check_unchanged()
        if self._digests is not None and before == self._identity():
            self._digests.put(before, digest)
        self._sha256, self._confirmed = self._sha256 or digest, (self._sha256 or digest) == digest
        return digest

    def check_unchanged(self) -> None:
        """Raise WeightsChanging if the file was written to since it was opened."""
        if self._opened != self._times():
            raise WeightsChanging(path=self.label)

    def _times(self) -> tuple[int, ...]:
        found = os.fstat(self._file.number)
        return found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def _identity(self) -> str | None:
        return identity("weights", [("", os.fstat(self._file.number))])

    def names(self) -> Iterable[str]:
        """All tensor names."""
        return self._stored

    def describe(self, name: str) -> tuple[tuple[int, ...], str]:
        """Shape and dtype of a tensor, from the header."""
        stored = self._stored[name]
        return stored.shape, FILE_DTYPES.get(stored.dtype, stored.dtype)

    def tensor(self, name: str) -> Tensor:
        """A tensor over the mapped file: for reading, of a dtype of FILE_DTYPES."""
        stored = self._stored[name]
        dtype = READ_DTYPES[stored.dtype]
        if stored.begin == stored.stop:
            return torch.empty(stored.shape, dtype=dtype)
        content = memoryview(self._map)[stored.begin : stored.stop]
        if stored.begin % dtype.itemsize:  # a header may have any length
            return torch.frombuffer(bytearray(content), dtype=dtype).view(stored.shape)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            return torch.frombuffer(content, dtype=dtype).view(stored.shape)

    def release(self) -> None:
        """Pages of the file that were read are no longer resident here; the system may keep them as it likes."""
        self._map.madvise(mmap.MADV_DONTNEED)


class _Descriptor:
    """A file descriptor, closed with its last user."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


class WeightsInMemory:
    """Tensors that a program already holds, e.g. random ones in a test. Raises BadOption if they are none."""

    label = "weights in memory"

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = {_name(name): _dense(name, tensor) for name, tensor in tensors.items()}
        digest = hashlib.sha256()
        for name in sorted(self._tensors):
            content = self._tensors[name].cpu().contiguous().view(-1).view(torch.uint8)
            digest.update(name.encode(errors="surrogatepass") + b"\0" + content.numpy().tobytes())
        self.sha256 = digest.hexdigest()

    def names(self) -> Iterable[str]:
        """All tensor names."""
        return self._tensors

    def describe(self, name: str) -> tuple[tuple[int, ...], str]:
        """Shape and dtype of a tensor."""
        tensor = self._tensors[name]
        return tuple(tensor.shape), TORCH_DTYPES.get(tensor.dtype, str(tensor.dtype))

    def tensor(self, name: str) -> Tensor:
        """The tensor."""
        return self._tensors[name]

    def confirmed_sha256(self) -> str:
        """Hash of the contents."""
        return self.sha256

    def check_unchanged(self) -> None:
        """Nothing: nobody could tell. Whoever hands tensors over leaves them alone."""

    def release(self) -> None:
        """Nothing: the memory is the caller's."""


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise BadOption(option="a name in weights", value=name, allowed="text")
    return name


def _dense(name: object, tensor: object) -> Tensor:
    """A tensor whose contents can be read as they lie in memory."""
    if not isinstance(tensor, Tensor):
        raise BadOption(option=f"weights[{name!r}]", value=tensor, allowed="a tensor")
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
        kind = f"a tensor on {tensor.device}, {tensor.layout}, {tensor.dtype}"
        raise BadOption(option=f"weights[{name!r}]", value=kind, allowed="a dense tensor with contents")
    return tensor.detach().resolve_conj().resolve_neg()


def open_weights(weights: str | Path | Mapping[str, Tensor], digests: KnownDigests | None = None) -> Weights:
    """Weights from a file path or from tensors by name. digests: of files. Raises BadOption if it is neither."""
    if isinstance(weights, Mapping):
        return WeightsInMemory(weights)
    if not isinstance(weights, (str, os.PathLike)):
        raise BadOption(option="weights", value=weights, allowed="the path of a file, or tensors by name")
    return WeightsFile(weights, digests)


def check_weights(plan: Plan, weights: Weights) -> None:
    """Names, shapes and dtypes must be exactly those of the plan. Raises WeightsMissing, -Foreign, -Shape or -Dtype."""
    wanted = {source.tensor: source for buffer in plan.buffers.values() for source in buffer.sources}
    present = set(weights.names())
    missing, foreign = sorted(set(wanted) - present), sorted(present - set(wanted))
    if missing:
        raise WeightsMissing(path=weights.label, model=plan.name, count=len(missing), names=_shown(missing))
    if foreign:
        raise WeightsForeign(path=weights.label, model=plan.name, count=len(foreign), names=_shown(foreign))
    for source in wanted.values():
        _check_source(plan, weights, source)


def _check_source(plan: Plan, weights: Weights, source: Source) -> None:
    shape, dtype = weights.describe(source.tensor)
    where = {"path": weights.label, "name": source.tensor, "model": plan.name}
    if shape != source.shape:
        raise WeightsShape(**where, found=list(shape), wanted=list(source.shape))
    if dtype != source.dtype:
        raise WeightsDtype(**where, found=dtype, wanted=source.dtype)


def read_sources(weights: Weights, buffer: Buffer) -> list[Tensor]:
    """The tensors that a buffer is made of, in order."""
    return [weights.tensor(source.tensor) for source in buffer.sources]


def _shown(names: list[str]) -> str:
    more = len(names) - NAMES_SHOWN
    shown = [name if len(name) <= NAME_SHOWN else f"{name[:NAME_SHOWN]}..." for name in names[:NAMES_SHOWN]]
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")

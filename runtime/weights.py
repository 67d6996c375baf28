"""Weights files: every tensor checked against the plan before one is read. Only safetensors, never pickle."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from runtime.errors import (
    BadOption,
    WeightsDtype,
    WeightsForeign,
    WeightsMissing,
    WeightsNotFound,
    WeightsShape,
    WeightsUnreadable,
)
from runtime.files import opened_regular
from runtime.plan import Buffer, Plan, Source
from runtime.safetensors_header import check_layout

NAMES_SHOWN = 6
NAME_SHOWN = 120  # characters
FILE_DTYPES = {"BF16": "bf16", "F32": "fp32"}
TORCH_DTYPES = {torch.bfloat16: "bf16", torch.float32: "fp32"}


class Weights(Protocol):
    """Named tensors. `label` names them in errors; `sha256` identifies their contents."""

    label: str
    sha256: str

    def names(self) -> Iterable[str]:
        """All tensor names."""

    def describe(self, name: str) -> tuple[tuple[int, ...], str]:
        """Shape and dtype of a tensor, without reading it."""

    def tensor(self, name: str) -> Tensor:
        """A tensor's contents, on the CPU."""


class WeightsFile:
    """A memory-mapped safetensors file. Raises WeightsNotFound or WeightsUnreadable."""

    def __init__(self, path: str | Path) -> None:
        self.label = str(path)
        try:
            with opened_regular(path) as stream:
                check_layout(stream)
                self._file: Any = safe_open(str(path), framework="pt")
                self._names = set(self._file.keys())  # type: ignore[no-untyped-call]
                stream.seek(0)
                self.sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            hint = "" if error.errno == errno.ENOENT else f" ({error.strerror})"
            raise WeightsNotFound(path=path, hint=hint) from None
        except (SafetensorError, ValueError) as error:
            raise WeightsUnreadable(path=path, detail=error) from error

    def names(self) -> Iterable[str]:
        """All tensor names."""
        return self._names

    def describe(self, name: str) -> tuple[tuple[int, ...], str]:
        """Shape and dtype of a tensor, from the header."""
        part = self._file.get_slice(name)
        dtype = str(part.get_dtype())
        return tuple(part.get_shape()), FILE_DTYPES.get(dtype, dtype)

    def tensor(self, name: str) -> Tensor:
        """A tensor over the mapped file."""
        tensor: Tensor = self._file.get_tensor(name)
        return tensor


class WeightsInMemory:
    """Tensors that a program already holds, e.g. random ones in a test. Raises BadOption if they are none."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.label = "weights in memory"
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


def open_weights(weights: str | Path | Mapping[str, Tensor]) -> Weights:
    """Weights from a file path or from tensors by name. Raises BadOption if it is neither."""
    if isinstance(weights, Mapping):
        return WeightsInMemory(weights)
    if not isinstance(weights, (str, os.PathLike)):
        raise BadOption(option="weights", value=weights, allowed="the path of a file, or tensors by name")
    return WeightsFile(weights)


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

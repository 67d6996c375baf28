"""A checkpoint as tensors that belong to nobody's slot: what moves between the device pool, the host pool and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from runtime.checkpoints.retention import prefix_digests, shared_pages
from runtime.plan import DTYPE_BYTES, Plan

PageKey = tuple[int, bytes]
Shape = tuple[int, ...]
TORCH_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(frozen=True)
class ImageLayout:
    """What every checkpoint of an engine consists of.

    parts: (shape, dtype) of a row of each checkpoint buffer; page: of one page of each KV buffer, by buffer name;
    drafting: whether the drafter's KV is among them; stamp: numerics, weights and compiler that made the bits.
    """

    model: str
    stamp: str
    drafting: bool
    page_size: int
    parts: Mapping[str, tuple[Shape, str]]
    page: Mapping[str, tuple[Shape, str]]

    @property
    def row_bytes(self) -> int:
        """Bytes of the parts of one checkpoint."""
        return _bytes(self.parts)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all KV buffers."""
        return _bytes(self.page)

    def num_pages(self, position: int) -> int:
        """Pages that hold the KV entries < position."""
        return -(-position // self.page_size) if self.page else 0

    def page_keys(self, tokens: Sequence[int], position: int) -> tuple[PageKey, ...]:
        """Identity of the contents of each page of a checkpoint at `position`: equal keys mean equal live bits.

        A page that resuming slots share is (n, digest of tokens[:n]), n being the tokens its entries depend on; the
        one after it, which they copy, is the checkpoint's own: (-position, digest of tokens[:position]).
        """
        shared, lag = shared_pages(position, self.page_size, self.drafting), int(self.drafting)
        ends = [(page + 1) * self.page_size + lag for page in range(shared)]
        keys: list[PageKey] = list(prefix_digests(tokens, ends)) if self.page else []
        if self.num_pages(position) > shared:
            [(_, digest)] = prefix_digests(tokens, [position])
            keys.append((-position, digest))
        return tuple(keys)


@dataclass(frozen=True)
class PageImage:
    """One page of every KV buffer, by buffer name."""

    key: PageKey
    tensors: Mapping[str, Tensor]


@dataclass(frozen=True)
class CheckpointImage:
    """A checkpoint at `position`. tokens: the first `position` ones; parts: rows by checkpoint buffer; pages: in order.

    Entries of the last page that the prefix does not determine are zero.
    """

    position: int
    tokens: tuple[int, ...]
    digest: bytes
    parts: Mapping[str, Tensor]
    pages: tuple[PageImage, ...]

    @property
    def bytes(self) -> int:
        """Bytes of parts and pages."""
        tensors = [*self.parts.values(), *(t for page in self.pages for t in page.tensors.values())]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def image_layout(plan: Plan, stamp: str, drafting: bool) -> ImageLayout:
    """The layout of a plan's checkpoints."""
    parts = [plan.buffers[part.checkpoint] for part in plan.checkpoint_parts]
    unused = () if drafting else drafter_caches(plan)
    caches = [plan.buffers[name] for name in plan.kv_buffers if name not in unused]
    return ImageLayout(
        model=plan.name,
        stamp=stamp,
        drafting=drafting,
        page_size=plan.limits.page_size,
        parts={buffer.name: (buffer.shape[1:], buffer.dtype) for buffer in parts},
        page={buffer.name: (buffer.shape[1:], buffer.dtype) for buffer in caches},
    )


def drafter_caches(plan: Plan) -> Sequence[str]:
    """The KV buffers that the MTP module writes."""
    written = {name for launch in plan.sections.get("drafter", ()) for name in launch.args.values()}
    return [name for name in plan.kv_buffers if name in written]


def _bytes(tensors: Mapping[str, tuple[Shape, str]]) -> int:
    return sum(prod(shape) * DTYPE_BYTES[dtype] for shape, dtype in tensors.values())


def image_fault(image: CheckpointImage, layout: ImageLayout) -> str | None:
    """What makes `image` no checkpoint of `layout`: tokens, digest, parts or pages; None if nothing does."""
    if image.position != len(image.tokens):
        return f"{len(image.tokens)} tokens at position {image.position}"
    if prefix_digests(image.tokens, [image.position]) != [(image.position, image.digest)]:
        return "its tokens do not have its digest"
    if tuple(page.key for page in image.pages) != layout.page_keys(image.tokens, image.position):
        return "its pages are not those of its tokens"
    if not _matches(image.parts, layout.parts):
        return "its parts have other names, shapes or dtypes"
    if not all(_matches(page.tensors, layout.page) for page in image.pages):
        return "its pages have other names, shapes or dtypes"
    return None


def _matches(tensors: Mapping[str, Tensor], wanted: Mapping[str, tuple[Shape, str]]) -> bool:
    found = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
    return found == {name: (tuple(shape), TORCH_DTYPES[dtype]) for name, (shape, dtype) in wanted.items()}

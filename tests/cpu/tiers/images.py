"""Checkpoint images whose every bit is a function of their tokens, so that what is read back can be checked exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np
import torch
from torch import Tensor

from runtime.checkpoints.image import TORCH_DTYPES, CheckpointImage, ImageLayout, PageImage, Shape
from runtime.checkpoints.retention import prefix_digests
from runtime.plan import DTYPE_BYTES

LAYOUT = ImageLayout(
    model="toy",
    stamp="0123456789abcdef0123 89abcdef0123456789ab triton 3.6.0",
    drafting=True,
    page_size=4,
    parts={"state": ((2, 3, 5), "fp32"), "conv": ((3, 7), "bf16"), "hidden": ((11,), "bf16")},
    page={"k": ((2, 4, 3), "bf16"), "v": ((2, 4, 3), "bf16"), "mtp_k": ((4, 2), "fp32")},
)
LAYOUTS = {
    "drafting": LAYOUT,
    "no drafter": replace(LAYOUT, drafting=False),
    "no attention": replace(LAYOUT, page={}, drafting=False),
    "attention only": replace(LAYOUT, parts={}),
}


def image_of(tokens: Sequence[int], layout: ImageLayout = LAYOUT) -> CheckpointImage:
    """The checkpoint after all of `tokens`."""
    tokens = tuple(tokens)
    [(position, digest)] = prefix_digests(tokens, [len(tokens)])
    pages = (
        PageImage(key, {name: _bits(f"{name} {key}", *page) for name, page in layout.page.items()})
        for key in layout.page_keys(tokens, position)
    )
    parts = {name: _bits(f"{name} {position} {digest!r}", *part) for name, part in layout.parts.items()}
    return CheckpointImage(position, tokens, digest, parts, tuple(pages))


def key(image: CheckpointImage) -> tuple[int, bytes]:
    return image.position, image.digest


def assert_exact(image: CheckpointImage | None, layout: ImageLayout = LAYOUT) -> None:
    """`image` is, to the bit, the one of its tokens."""
    assert image is not None
    wanted = image_of(image.tokens, layout)
    assert (image.position, image.digest) == (wanted.position, wanted.digest)
    assert [page.key for page in image.pages] == [page.key for page in wanted.pages]
    _assert_same(image.parts, wanted.parts)
    for page, other in zip(image.pages, wanted.pages, strict=True):
        _assert_same(page.tensors, other.tensors)


def _assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape
        assert torch.equal(found[name].contiguous().view(torch.uint8), tensor.view(torch.uint8)), name


def _bits(seed: str, shape: Shape, dtype: str) -> Tensor:
    generator = np.random.default_rng(list(seed.encode()))
    data = generator.integers(0, 256, prod(shape) * DTYPE_BYTES[dtype], dtype=np.uint8)
    return torch.from_numpy(data).view(TORCH_DTYPES[dtype]).view(shape)

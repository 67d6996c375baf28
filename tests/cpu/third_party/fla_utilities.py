"""flash-linear-attention: the building blocks under its chunked kernels."""

from __future__ import annotations

import torch
from fla.ops.utils.cumsum import chunk_global_cumsum, chunk_local_cumsum
from fla.ops.utils.logsumexp import logsumexp_fwd
from fla.ops.utils.matmul import addmm, matmul
from fla.ops.utils.pooling import mean_pooling
from fla.ops.utils.softmax import softmax_fwd
from fla.ops.utils.solve_tril import solve_tril

from tests.cpu.third_party.check import Case

B, T, H, D = 2, 128, 3, 64


def _local_cumsum(g, reverse=False):
    chunks = g.unflatten(1, (-1, 64))
    return (chunks.flip(2).cumsum(2).flip(2) if reverse else chunks.cumsum(2)).flatten(1, 2)


def _inverse(A):
    blocks = A.unflatten(1, (-1, 64)).transpose(2, 3)  # [B, T / 64, H, 64, 64]
    return torch.linalg.inv(blocks + torch.eye(64)).transpose(2, 3).flatten(1, 2)


def _strictly_lower():
    rows = torch.arange(T) % 64
    return {"A": torch.randn(B, T, H, 64) / 8 * (rows[:, None] > torch.arange(64))[:, None]}


def _case(name, inputs, kernel, reference, **options) -> Case:
    return Case(name, "fla", inputs, kernel, reference, **{"backward": False} | options)


CASES = [
    _case(
        "chunk_local_cumsum", lambda: {"g": torch.randn(B, T, H)}, lambda g: chunk_local_cumsum(g, 64), _local_cumsum
    ),
    _case(
        "chunk_local_cumsum_reverse", lambda: {"g": torch.randn(B, T, H, D)},
        lambda g: chunk_local_cumsum(g, 64, reverse=True), lambda g: _local_cumsum(g, reverse=True),
    ),
    _case("chunk_global_cumsum", lambda: {"s": torch.randn(B, T, H, D)}, chunk_global_cumsum, lambda s: s.cumsum(1)),
    _case("solve_tril", _strictly_lower, solve_tril, _inverse),
    _case(
        "mean_pooling", lambda: {"x": torch.randn(B, T, H, D)}, lambda x: mean_pooling(x, 32),
        lambda x: x.unflatten(1, (-1, 32)).mean(2), backward=True,
    ),
    _case("softmax", lambda: {"x": torch.randn(T, 300)}, softmax_fwd, lambda x: x.softmax(-1)),
    _case("logsumexp", lambda: {"x": torch.randn(T, 300)}, logsumexp_fwd, lambda x: x.logsumexp(-1)),
    _case("matmul", lambda: {"a": torch.randn(70, 90), "b": torch.randn(90, 50)}, matmul, lambda a, b: a @ b),
    _case(
        "addmm", lambda: {"x": torch.randn(70, 50), "a": torch.randn(70, 90), "b": torch.randn(90, 50)}, addmm,
        lambda x, a, b: torch.addmm(x, a, b),
    ),
]  # fmt: skip

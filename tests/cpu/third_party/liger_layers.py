"""liger-kernel: norms, activations, position embeddings."""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from liger_kernel.ops import (
    LigerDyTFunction,
    LigerEmbeddingFunction,
    LigerFusedAddRMSNormFunction,
    LigerGELUMulFunction,
    LigerGroupNormFunction,
    LigerLayerNormFunction,
    LigerPolyNormFunction,
    LigerReLUSquaredFunction,
    LigerRMSNormFunction,
    LigerRopeFunction,
    LigerSiLUMulFunction,
    LigerSoftmaxFunction,
    LigerSparsemaxFunction,
)

from tests.cpu.third_party.check import Case, Inputs

# The backward of dyt reads the number of processors, its grid, for `cuda`, `xpu` and `npu` alone. As `npu` it asks
# Triton's driver, and nothing else depends on the answer.
sys.modules["liger_kernel.ops.dyt"].infer_device = lambda: "npu"

ROWS, D = 50, 192
EPS = 1e-6


def _normed() -> Inputs:
    return {"x": torch.randn(2, ROWS, D), "weight": torch.randn(D)}


def _rms(x, weight):
    return F.rms_norm(x, x.shape[-1:], weight, EPS)


def _add_rms(x, residual, weight):
    return _rms(x + residual, weight), x + residual


def _ab() -> Inputs:
    return {"a": torch.randn(ROWS, D), "b": torch.randn(ROWS, D)}


def _rope_inputs() -> Inputs:
    angles = torch.randn(1, ROWS, 32).repeat(1, 1, 2)
    return {
        "q": torch.randn(2, 4, ROWS, 64), "k": torch.randn(2, 2, ROWS, 64), "cos": angles.cos(), "sin": angles.sin(),
    }  # fmt: skip


def _rotate(x, cos, sin):
    low, high = x.chunk(2, -1)
    return x * cos[:, None] + torch.cat([-high, low], -1) * sin[:, None]


def _rope(q, k, cos, sin):
    return _rotate(q, cos, sin), _rotate(k, cos, sin)


def _poly(x, weight, bias):
    powers = (F.rms_norm(x**p, x.shape[-1:], None, EPS) for p in (3, 2, 1))
    return sum(w * y for w, y in zip(weight, powers, strict=True)) + bias


def _sparsemax(x):
    z = x.sort(-1, descending=True).values
    ranks = torch.arange(1, x.shape[-1] + 1)
    size = (1 + ranks * z > z.cumsum(-1)).sum(-1, keepdim=True)
    threshold = (z.cumsum(-1).gather(-1, size - 1) - 1) / size
    return F.relu(x - threshold)


def _case(name, inputs, kernel, reference, **options) -> Case:
    return Case(name, "liger_kernel", inputs, kernel, reference, **options)


def _rms_case(dtype: torch.dtype) -> Case:
    def kernel(x, weight):
        return LigerRMSNormFunction.apply(x, weight, EPS, 0.0, "llama", False)

    return _case("rms_norm", _normed, kernel, _rms, dtype=dtype)


def _swiglu_case(dtype: torch.dtype) -> Case:
    return _case(
        "swiglu", _ab, lambda a, b: LigerSiLUMulFunction.apply(a, b), lambda a, b: F.silu(a) * b, dtype=dtype
    )  # fmt: skip


CASES = [
    _rms_case(torch.float32),
    _rms_case(torch.bfloat16),
    _rms_case(torch.float16),
    _case(
        "fused_add_rms_norm", lambda: _normed() | {"residual": torch.randn(2, ROWS, D)},
        lambda x, weight, residual: LigerFusedAddRMSNormFunction.apply(x, residual, weight, EPS), _add_rms,
    ),
    _case(
        "layer_norm", lambda: _normed() | {"bias": torch.randn(D)},
        lambda x, weight, bias: LigerLayerNormFunction.apply(x, weight, bias, EPS),
        lambda x, weight, bias: F.layer_norm(x, x.shape[-1:], weight, bias, EPS),
    ),
    _case(
        "group_norm", lambda: {"x": torch.randn(3, 12, 80), "weight": torch.randn(12), "bias": torch.randn(12)},
        lambda x, weight, bias: LigerGroupNormFunction.apply(x, weight, bias, 12, 4, EPS),
        lambda x, weight, bias: F.group_norm(x, 4, weight, bias, EPS),
    ),
    _case(
        "poly_norm", lambda: {"x": torch.randn(ROWS, D), "weight": torch.randn(3), "bias": torch.randn(())},
        lambda x, weight, bias: LigerPolyNormFunction.apply(x, weight, bias, EPS, False), _poly,
    ),
    _case(
        "dyt", lambda: {"x": torch.randn(ROWS, D), "alpha": torch.randn(1), "gamma": torch.randn(D),
                        "beta": torch.randn(D)},
        lambda x, alpha, gamma, beta: LigerDyTFunction.apply(x, alpha, gamma, beta),
        lambda x, alpha, gamma, beta: gamma * torch.tanh(alpha * x) + beta,
    ),
    _swiglu_case(torch.float32),
    _swiglu_case(torch.bfloat16),
    _swiglu_case(torch.float16),
    _case("geglu", _ab, lambda a, b: LigerGELUMulFunction.apply(a, b),
          lambda a, b: F.gelu(a, approximate="tanh") * b),
    _case("relu_squared", lambda: {"x": torch.randn(ROWS, D)}, lambda x: LigerReLUSquaredFunction.apply(x),
          lambda x: F.relu(x).square()),
    _case("softmax", lambda: {"x": torch.randn(ROWS, 1000)}, lambda x: LigerSoftmaxFunction.apply(x),
          lambda x: x.softmax(-1)),
    _case("sparsemax", lambda: {"x": torch.randn(ROWS, 100)}, lambda x: LigerSparsemaxFunction.apply(x, -1),
          _sparsemax),
    _case("rope", _rope_inputs, lambda **x: LigerRopeFunction.apply(*x.values()), _rope,
          fixed=frozenset({"cos", "sin"})),
    _case(
        "embedding", lambda: {"table": torch.randn(100, D), "indices": torch.randint(0, 100, (4, ROWS))},
        lambda table, indices: LigerEmbeddingFunction.apply(table, indices),
        lambda table, indices: F.embedding(indices, table),
    ),
]  # fmt: skip

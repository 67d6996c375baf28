"""flash-linear-attention: norms, convolutions, activations, rotary embedding, losses."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from fla.modules.activations import swiglu, swish
from fla.modules.activations.ops import logsigmoid
from fla.modules.causal_conv1d import causal_conv1d, causal_conv1d_update
from fla.modules.fused_cross_entropy.ops import cross_entropy_loss
from fla.modules.fused_kl_div.ops import fused_kl_div_loss
from fla.modules.fused_linear_cross_entropy.ops import fused_linear_cross_entropy_loss
from fla.modules.norm.fused_norm_gate import layer_norm_gated, rms_norm_gated
from fla.modules.norm.l2norm import l2norm
from fla.modules.norm.layernorm import group_norm, layer_norm, rms_norm
from fla.modules.norm.layernorm_gated import rmsnorm_fn
from fla.modules.rotary.ops import rotary_embedding, rotary_embedding_ref
from fla.modules.token_shift import token_shift, token_shift_ref

from tests.cpu.third_party.check import Case, Inputs

ROWS, D = 50, 192
EPS = 1e-5


def _normed() -> Inputs:
    return {"x": torch.randn(2, ROWS, D), "weight": torch.randn(D), "bias": torch.randn(D)}


def _gated() -> Inputs:
    return _normed() | {"g": torch.randn(2, ROWS, D)}


def _rms(x, weight, bias):
    return F.rms_norm(x, x.shape[-1:], weight, EPS) + bias


def _layer(x, weight, bias):
    return F.layer_norm(x, x.shape[-1:], weight, bias, EPS)


def _l2(x):
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + EPS)


def _groups(x, weight, bias):
    return F.group_norm(x.reshape(-1, D), 4, weight, bias, EPS).view_as(x)


def _convolution() -> Inputs:
    return {"x": torch.randn(2, ROWS, D), "weight": torch.randn(D, 4), "bias": torch.randn(D)}


def _convolve(x, weight, bias):
    y = F.conv1d(x.transpose(1, 2), weight[:, None], bias, padding=3, groups=D)
    return F.silu(y[..., :ROWS]).transpose(1, 2)


def _convolution_step() -> Inputs:
    return {
        "x": torch.randn(3, 1, D), "cache": torch.randn(3, D, 4), "weight": torch.randn(D, 4), "bias": torch.randn(D),
    }  # fmt: skip


def _convolve_step(x, cache, weight, bias):
    window = torch.cat([cache[..., 1:], x.transpose(1, 2)], -1)
    return F.silu((window * weight).sum(-1) + bias)[:, None], window


def _rotated() -> Inputs:
    angles = torch.randn(ROWS, 32)
    return {"x": torch.randn(2, ROWS, 4, 64), "cos": angles.cos(), "sin": angles.sin()}


def _classified() -> Inputs:
    target = torch.randint(0, 1000, (ROWS,))
    target[::7] = -100
    return {"logits": torch.randn(ROWS, 1000) * 3, "target": target}


def _projected() -> Inputs:
    return {"x": torch.randn(ROWS, D), "target": torch.randint(0, 1000, (ROWS,)), "weight": torch.randn(1000, D) / 8}


def _distilled() -> Inputs:
    shapes = {"x": (ROWS, D), "target_x": (ROWS, D), "weight": (1000, D), "target_weight": (1000, D)}
    return {name: torch.randn(shape) / (8 if "weight" in name else 1) for name, shape in shapes.items()}


def _divergence(x, target_x, weight, target_weight):
    return F.kl_div(
        F.log_softmax(x @ weight.T, -1), F.softmax(target_x @ target_weight.T, -1), reduction="batchmean"
    )  # fmt: skip


def _xy() -> Inputs:
    return {"x": torch.randn(ROWS, D), "y": torch.randn(ROWS, D)}


def _x() -> Inputs:
    return {"x": torch.randn(2, ROWS, D)}


def _case(name, inputs, kernel, reference, **options) -> Case:
    return Case(name, "fla", inputs, kernel, reference, **options)


CASES = [
    _case("rms_norm", _normed, lambda **x: rms_norm(**x, eps=EPS), _rms),
    _case("rms_norm", _normed, lambda **x: rms_norm(**x, eps=EPS), _rms, dtype=torch.bfloat16),
    _case("layer_norm", _normed, lambda **x: layer_norm(**x, eps=EPS), _layer),
    _case("group_norm", _normed, lambda **x: group_norm(**x, eps=EPS, num_groups=4), _groups),
    _case("l2norm", _x, lambda x: l2norm(x, eps=EPS), _l2),
    _case(
        "rms_norm_gated", _gated, lambda **x: rms_norm_gated(**x, eps=EPS),
        lambda x, weight, bias, g: _rms(x, weight, bias) * F.silu(g),
    ),
    _case(
        "rms_norm_gated", _gated, lambda **x: rms_norm_gated(**x, eps=EPS),
        lambda x, weight, bias, g: _rms(x, weight, bias) * F.silu(g), dtype=torch.bfloat16,
    ),
    _case(
        "layer_norm_gated", _gated, lambda **x: layer_norm_gated(**x, eps=EPS),
        lambda x, weight, bias, g: _layer(x, weight, bias) * F.silu(g),
    ),
    _case(
        "grouped_rms_norm_gated", _gated,
        lambda x, weight, bias, g: rmsnorm_fn(x, weight, bias, z=g, eps=EPS, norm_before_gate=False),
        lambda x, weight, bias, g: _rms(x * F.silu(g), weight, bias),
    ),
    _case("causal_conv1d", _convolution, lambda **x: causal_conv1d(**x, activation="silu")[0], _convolve),
    _case(
        "causal_conv1d", _convolution, lambda **x: causal_conv1d(**x, activation="silu")[0], _convolve,
        dtype=torch.bfloat16,
    ),
    _case(
        "causal_conv1d_update", _convolution_step, lambda **x: causal_conv1d_update(**x, activation="silu"),
        _convolve_step, backward=False,
    ),
    _case("token_shift", _x, token_shift, token_shift_ref),
    _case("rotary_embedding", _rotated, rotary_embedding, rotary_embedding_ref, fixed=frozenset({"cos", "sin"})),
    _case("swish", _x, lambda x: swish(x), lambda x: F.silu(x)),
    _case("logsigmoid", _x, lambda x: logsigmoid(x, 2.0), lambda x: F.logsigmoid(x) / 2),
    _case("swiglu", _xy, lambda x, y: swiglu(x, y), lambda x, y: F.silu(x) * y),
    _case("swiglu", _xy, lambda x, y: swiglu(x, y), lambda x, y: F.silu(x) * y, dtype=torch.bfloat16),
    _case(
        "fused_cross_entropy", _classified, lambda **x: cross_entropy_loss(**x)[0],
        lambda logits, target: F.cross_entropy(logits, target, reduction="none"),
    ),
    _case(
        "fused_linear_cross_entropy", _projected, lambda **x: fused_linear_cross_entropy_loss(**x),
        lambda x, target, weight: F.cross_entropy(x @ weight.T, target),
    ),
    _case(
        "fused_kl_div", _distilled, fused_kl_div_loss, _divergence, fixed=frozenset({"target_x", "target_weight"}),
    ),
]  # fmt: skip

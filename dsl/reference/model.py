"""The whole model: embedding, the layers of the pattern, final norm, head. Sequential, from position 0, no caches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dsl.reference.attention import attention
from dsl.reference.gated_mlp import gated_mlp
from dsl.reference.mamba2 import Scan, mamba2
from dsl.reference.norm import rms_norm
from dsl.spec import LayerSpec, Mamba2Spec, ModelSpec

Weights = Mapping[str, Tensor]


class Output(NamedTuple):
    """logits [B, T, V] and the hidden states [B, T, d] before the final norm."""

    logits: Tensor
    hidden: Tensor


def scoped(weights: Weights, prefix: str) -> dict[str, Tensor]:
    """The weights whose names start with `prefix.`, under the rest of their names."""
    return {name[len(prefix) + 1 :]: value for name, value in weights.items() if name.startswith(prefix + ".")}


def embed(weights: Weights, tokens: Tensor) -> Tensor:
    """Embedding rows of tokens [...] -> [..., d]: the start of the residual stream."""
    return F.embedding(tokens, weights["embed.weight"])


def head_weight(spec: ModelSpec, weights: Weights) -> Tensor:
    """The matrix [V, d] of the head."""
    return weights["embed.weight" if spec.tie_embeddings else "lm_head.weight"]


def head(spec: ModelSpec, weights: Weights, normed: Tensor) -> Tensor:
    """Logits [..., V] of normed hidden states [..., d]."""
    return F.linear(normed, head_weight(spec, weights))


def feed_forward(layer: LayerSpec, weights: Weights, hidden: Tensor, norm_eps: float) -> Tensor:
    """Add the feed-forward of a layer, if it has one, to the residual stream [..., d]."""
    if layer.feed_forward is None:
        return hidden
    normed = rms_norm(hidden, weights["feed_forward_norm.weight"], norm_eps)
    return hidden + gated_mlp(scoped(weights, "feed_forward"), normed)


def run_layer(layer: LayerSpec, weights: Weights, hidden: Tensor, norm_eps: float, scan: Scan) -> Tensor:
    """One layer over the residual stream [B, T, d] of positions 0 .. T-1. weights: names without `layers.i.`."""
    normed = rms_norm(hidden, weights["norm.weight"], norm_eps)
    mixer, mixer_weights = layer.mixer, scoped(weights, "mixer")
    if isinstance(mixer, Mamba2Spec):
        mixed = mamba2(mixer, mixer_weights, normed, norm_eps, scan)
    else:
        mixed = attention(mixer, mixer_weights, normed, torch.arange(hidden.shape[1]))
    return feed_forward(layer, weights, hidden + mixed, norm_eps)


def forward(spec: ModelSpec, weights: Weights, tokens: Tensor, scan: Scan = "recurrent") -> Output:
    """Run a spec over tokens [B, T] from position 0, in the dtype of the weights.

    Row i of the logits predicts the token of position i + 1.
    """
    hidden = embed(weights, tokens)
    for i, layer in enumerate(spec.pattern_layers):
        hidden = run_layer(layer, scoped(weights, f"layers.{i}"), hidden, spec.norm_eps, scan)
    logits = head(spec, weights, rms_norm(hidden, weights["final_norm.weight"], spec.norm_eps))
    return Output(logits, hidden)

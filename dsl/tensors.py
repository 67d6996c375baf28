"""Names, shapes and stored dtypes of a spec's weights, as plain data."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

from dsl.layers import AttentionSpec, GatedMLPSpec, LayerSpec, Mamba2Spec

if TYPE_CHECKING:
    from dsl.spec import ModelSpec


class WeightShape(NamedTuple):
    """Shape and stored dtype of one weight: bf16 for matrices and embeddings, fp32 for vectors and the convolution."""

    shape: tuple[int, ...]
    dtype: Literal["bf16", "fp32"]


Shapes = dict[str, WeightShape]


def matrix(rows: int, columns: int) -> WeightShape:
    """A row-major [out, in] matrix."""
    return WeightShape((rows, columns), "bf16")


def vector(*shape: int) -> WeightShape:
    """A vector, or the taps of the convolution."""
    return WeightShape(shape, "fp32")


def under(prefix: str, shapes: Shapes) -> Shapes:
    """The same weights with `prefix.` before their names."""
    return {f"{prefix}.{name}": value for name, value in shapes.items()}


def mamba2_shapes(mixer: Mamba2Spec, d: int) -> Shapes:
    """Weights of a Mamba-2 mixer."""
    heads = vector(mixer.num_heads)
    return {
        "in_proj.weight": matrix(mixer.in_proj_dim, d),
        "conv.weight": vector(mixer.conv_dim, mixer.conv_width),
        "conv.bias": vector(mixer.conv_dim),
        "A_log": heads,
        "D": heads,
        "dt_bias": heads,
        "norm.weight": vector(mixer.d_inner),
        "out_proj.weight": matrix(d, mixer.d_inner),
    }


def attention_shapes(mixer: AttentionSpec, d: int) -> Shapes:
    """Weights of an attention mixer."""
    return {
        "q_proj.weight": matrix(mixer.q_dim, d),
        "k_proj.weight": matrix(mixer.kv_dim, d),
        "v_proj.weight": matrix(mixer.kv_dim, d),
        "o_proj.weight": matrix(d, mixer.q_dim),
    }


def gated_mlp_shapes(mlp: GatedMLPSpec, d: int) -> Shapes:
    """Weights of a gated MLP."""
    return {
        "gate_proj.weight": matrix(mlp.hidden_size, d),
        "up_proj.weight": matrix(mlp.hidden_size, d),
        "down_proj.weight": matrix(d, mlp.hidden_size),
    }


def layer_shapes(layer: LayerSpec, d: int) -> Shapes:
    """Weights of one layer, under their names within it."""
    mixer = layer.mixer
    shapes: Shapes = {"norm.weight": vector(d)}
    shapes |= under("mixer", mamba2_shapes(mixer, d) if isinstance(mixer, Mamba2Spec) else attention_shapes(mixer, d))
    if layer.feed_forward is not None:
        shapes["feed_forward_norm.weight"] = vector(d)
        shapes |= under("feed_forward", gated_mlp_shapes(layer.feed_forward, d))
    return shapes


def mtp_shapes(spec: ModelSpec) -> Shapes:
    """Weights of the MTP module; none without one."""
    if spec.mtp is None:
        return {}
    d = spec.d_model
    shapes: Shapes = {
        "mtp.embedding_norm.weight": vector(d),
        "mtp.hidden_norm.weight": vector(d),
        "mtp.proj.weight": matrix(d, 2 * d),
    }
    shapes |= under("mtp.layer", layer_shapes(spec.layers[spec.mtp.layer], d))
    if spec.mtp.post_norm == "own":
        shapes["mtp.norm.weight"] = vector(d)
    return shapes


def weight_shapes(spec: ModelSpec) -> Shapes:
    """Every weight of a spec: name -> (shape, dtype), in the order of the model."""
    V, d = spec.vocab_size, spec.d_model
    shapes: Shapes = {"embed.weight": matrix(V, d)}
    for i, layer in enumerate(spec.pattern_layers):
        shapes |= under(f"layers.{i}", layer_shapes(layer, d))
    shapes["final_norm.weight"] = vector(d)
    if not spec.tie_embeddings:
        shapes["lm_head.weight"] = matrix(V, d)
    return shapes | mtp_shapes(spec)


def num_parameters(spec: ModelSpec) -> int:
    """Number of scalars in all weights."""
    return sum(math.prod(shape) for shape, _ in weight_shapes(spec).values())

"""Token by token: an eager decoder with caches.

`EagerDecoder` is what a step costs in plain PyTorch: one call per token, caches updated in place, no graph.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dsl.reference.model import Output, Weights, embed, scoped
from dsl.reference.norm import gated_rms_norm, rms_norm
from dsl.reference.rope import rope
from dsl.reference.sampling import choose
from dsl.spec import AttentionSpec, LayerSpec, Mamba2Spec, ModelSpec


@dataclass
class Mamba2Cache:
    """Raw conv inputs of the last W - 1 tokens and the recurrent state; both updated in place."""

    conv_inputs: Tensor  # [B, W-1, C], oldest first
    S: Tensor  # [B, H, P, N]


@dataclass
class AttentionCache:
    """Keys and values of all positions so far, in buffers for `max_context` positions; updated in place."""

    k: Tensor  # [B, HKV, max_context, D]
    v: Tensor  # [B, HKV, max_context, D]


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """Product x @ weight^T in the dtype of the weight, back in the dtype of x."""
    return F.linear(x.to(weight.dtype), weight).to(x.dtype)


class EagerDecoder:
    """A spec run one token at a time for B sequences of equal length, from position 0.

    weights: as `expected_tensors`; matrices are used in `matmul_dtype`, all else in `dtype` (fp32 or fp64).
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: Weights,
        batch: int,
        max_context: int,
        dtype: torch.dtype = torch.float32,
        matmul_dtype: torch.dtype | None = None,
    ) -> None:
        """Empty caches; matmul_dtype defaults to dtype."""

        def convert(name: str, value: Tensor) -> Tensor:
            is_matrix = value.ndim == 2 and not name.endswith("conv.weight")
            return value.to(matmul_dtype or dtype) if is_matrix else value.to(dtype)

        self.spec, self.batch, self.max_context, self.dtype = spec, batch, max_context, dtype
        self.weights = {name: convert(name, value) for name, value in weights.items()}
        self.layer_weights = [scoped(self.weights, f"layers.{i}") for i in range(len(spec.pattern))]
        self.mixer_weights = [scoped(weights, "mixer") for weights in self.layer_weights]
        self.caches = [self.empty_cache(layer) for layer in spec.pattern_layers]
        self.length = 0

    def empty_cache(self, layer: LayerSpec) -> Mamba2Cache | AttentionCache:
        """The cache of a layer before the first token."""
        mixer = layer.mixer
        if isinstance(mixer, Mamba2Spec):
            sizes = (self.batch, mixer.num_heads, mixer.head_dim, mixer.state_size)
            conv_inputs = torch.zeros(self.batch, mixer.conv_width - 1, mixer.conv_dim, dtype=self.dtype)
            return Mamba2Cache(conv_inputs, torch.zeros(sizes, dtype=self.dtype))
        sizes = (self.batch, mixer.num_kv_heads, self.max_context, mixer.head_dim)
        return AttentionCache(torch.zeros(sizes, dtype=self.dtype), torch.zeros(sizes, dtype=self.dtype))

    @torch.no_grad()
    def step(self, tokens: Tensor) -> Output:
        """Process the next token of every sequence. tokens: [B]. Returns logits [B, V] and hidden [B, d]."""
        if self.length == self.max_context:
            raise IndexError(f"the caches hold {self.max_context} tokens")
        eps = self.spec.norm_eps
        hidden = embed(self.weights, tokens).to(self.dtype)
        for i, (layer, weights) in enumerate(zip(self.spec.pattern_layers, self.layer_weights, strict=True)):
            hidden = hidden + self.mix(i, layer, rms_norm(hidden, weights["norm.weight"], eps))
            if layer.feed_forward is not None:
                hidden = hidden + gated_mlp_step(weights, rms_norm(hidden, weights["feed_forward_norm.weight"], eps))
        self.length += 1
        head = self.weights["embed.weight" if self.spec.tie_embeddings else "lm_head.weight"]
        return Output(linear(rms_norm(hidden, self.weights["final_norm.weight"], eps), head), hidden)

    def mix(self, i: int, layer: LayerSpec, normed: Tensor) -> Tensor:
        """The mixer of layer i on one row per sequence [B, d]."""
        mixer, weights, cache = layer.mixer, self.mixer_weights[i], self.caches[i]
        if isinstance(mixer, Mamba2Spec):
            assert isinstance(cache, Mamba2Cache)
            return mamba2_step(mixer, weights, cache, normed, self.spec.norm_eps)
        assert isinstance(cache, AttentionCache)
        return attention_step(mixer, weights, cache, normed, self.length)


def gated_mlp_step(weights: Weights, x: Tensor) -> Tensor:
    """The feed-forward of `gated_mlp` on [B, d]."""
    gate = F.silu(linear(x, weights["feed_forward.gate_proj.weight"]))
    return linear(gate * linear(x, weights["feed_forward.up_proj.weight"]), weights["feed_forward.down_proj.weight"])


def mamba2_step(mixer: Mamba2Spec, weights: Weights, cache: Mamba2Cache, x: Tensor, eps: float) -> Tensor:
    """One token through a Mamba-2 mixer (the recurrence of `mamba2.scan_recurrent`). x: [B, d]."""
    H, G, N = mixer.num_heads, mixer.num_groups, mixer.state_size
    z, xBC, dt = linear(x, weights["in_proj.weight"]).split([mixer.d_inner, mixer.conv_dim, H], dim=-1)
    window = torch.cat([cache.conv_inputs, xBC[:, None]], dim=1)  # [B, W, C]
    cache.conv_inputs.copy_(window[:, 1:])
    xBC = F.silu((window * weights["conv.weight"].T).sum(1) + weights["conv.bias"])
    x, B, C = xBC.split([mixer.d_inner, G * N, G * N], dim=-1)
    x = x.unflatten(-1, (H, -1))
    B, C = (value.unflatten(-1, (G, N)).repeat_interleave(H // G, dim=1) for value in (B, C))
    dt = F.softplus(dt + weights["dt_bias"]).clamp(*mixer.dt_limit)
    decay = torch.exp(dt * -weights["A_log"].exp())
    cache.S.mul_(decay[..., None, None]).add_((dt[..., None] * x)[..., None] * B[:, :, None, :])
    y = (cache.S @ C[..., None]).squeeze(-1) + weights["D"][:, None] * x
    gated = gated_rms_norm(y.flatten(-2), z, weights["norm.weight"], eps, mixer.norm_groups)
    return linear(gated, weights["out_proj.weight"])


def attention_step(mixer: AttentionSpec, weights: Weights, cache: AttentionCache, x: Tensor, position: int) -> Tensor:
    """One token at a position through an attention mixer. x: [B, d]."""
    q, k, v = (
        linear(x, weights[f"{name}_proj.weight"]).unflatten(-1, (1, -1, mixer.head_dim))  # [B, 1, H, D]
        for name in ("q", "k", "v")
    )
    at = torch.tensor([position])
    cache.k[:, :, position] = rope(k, at, mixer.rope.theta)[:, 0]
    cache.v[:, :, position] = v[:, 0]
    q = rope(q, at, mixer.rope.theta).transpose(1, 2)
    keys, values = cache.k[:, :, : position + 1], cache.v[:, :, : position + 1]
    y = F.scaled_dot_product_attention(q, keys, values, enable_gqa=True)
    return linear(y.transpose(1, 2).flatten(-3), weights["o_proj.weight"])


def generate(decoder: EagerDecoder, prompts: Tensor, count: int, temperature: float, seeds: Tensor) -> Tensor:
    """Prompts and `count` sampled tokens each. prompts: [B, n] from position 0; seeds: [B]. Returns [B, n + count].

    Sequences do not stop at special tokens.
    """
    tokens = prompts
    for position in range(prompts.shape[1] + count - 1):
        logits = decoder.step(tokens[:, position]).logits
        if position + 1 == tokens.shape[1]:
            sampled = choose(logits, temperature, seeds, position + 1)
            tokens = torch.cat([tokens, sampled[:, None]], dim=1)
    return tokens

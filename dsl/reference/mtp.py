"""The MTP module: predicts token i + 2 from the hidden state of position i and the embedding of token i + 1.

Chained: depth 1 reads the target's hidden states; depth k > 1 continues the chain that started at row i on the
module's own hidden state, at position i + k - 1, with token i + k, and predicts token i + k + 1.
Source of the module: arXiv 2412.19437, section 2.2 (here one module is applied at every depth).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from dsl.reference.attention import project_qkv
from dsl.reference.draft_head import int4_head, int8_head
from dsl.reference.model import Weights, embed, feed_forward, head, head_weight, scoped
from dsl.reference.norm import rms_norm
from dsl.spec import AttentionSpec, ModelSpec


def combine(spec: ModelSpec, weights: Weights, hidden: Tensor, tokens: Tensor) -> Tensor:
    """Input of the module's layer: the projection of the two normed inputs, concatenated in the order of the spec.

    hidden: [B, T, d]. tokens: [B, T], one position ahead of hidden. Returns [B, T, d].
    """
    assert spec.mtp is not None
    inputs = {
        "embedding": rms_norm(embed(weights, tokens), weights["mtp.embedding_norm.weight"], spec.norm_eps),
        "hidden": rms_norm(hidden, weights["mtp.hidden_norm.weight"], spec.norm_eps),
    }
    return F.linear(torch.cat([inputs[name] for name in spec.mtp.concat], dim=-1), weights["mtp.proj.weight"])


def draft_logits(spec: ModelSpec, weights: Weights, hidden: Tensor) -> Tensor:
    """Logits [B, T, V] of the module's own hidden states [B, T, d]."""
    assert spec.mtp is not None
    name = "mtp.norm.weight" if spec.mtp.post_norm == "own" else "final_norm.weight"
    normed = rms_norm(hidden, weights[name], spec.norm_eps)
    if spec.mtp.draft_head == "bf16":
        return head(spec, weights, normed)
    rounded = {"int8": int8_head, "int4": int4_head}[spec.mtp.draft_head]
    return rounded(normed, head_weight(spec, weights)).to(hidden.dtype)


def attend_chain(q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """Attention of row i of the deepest depth over depth-1 rows 0 .. i and row i of every deeper depth.

    q: [B, HQ, T, D]. keys, values: one [B, HKV, T, D] per depth. Returns [B, HQ, T, D].
    """
    if len(keys) == 1:
        return F.scaled_dot_product_attention(q, keys[0], values[0], is_causal=True, enable_gqa=True)
    share = q.shape[1] // keys[0].shape[1]
    keys, values = ([x.repeat_interleave(share, dim=1) for x in xs] for xs in (keys, values))
    T = q.shape[2]
    scores = (q @ keys[0].mT).masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), float("-inf"))
    chain = [(q * k).sum(-1, keepdim=True) for k in keys[1:]]
    weight = torch.softmax(torch.cat([scores, *chain], dim=-1) * q.shape[-1] ** -0.5, dim=-1)
    own = [weight[..., T + i, None] * v for i, v in enumerate(values[1:])]
    return weight[..., :T] @ values[0] + sum(own)


def forward(spec: ModelSpec, weights: Weights, hidden: Tensor, tokens: Tensor, depth: int = 1) -> list[Tensor]:
    """Logits of every depth 1 .. depth, teacher-forced: every chain reads the given tokens.

    hidden: [B, R, d], hidden states of the target (before its final norm) at positions 0 .. R-1.
    tokens: [B, T], from position 0.
    Returns one [B, min(R, T - k), V] per depth k: row i predicts token i + k + 1.
    """
    layer = spec.mtp_layer
    assert layer is not None and isinstance(layer.mixer, AttentionSpec)
    layer_weights = scoped(weights, "mtp.layer")
    mixer_weights = scoped(layer_weights, "mixer")
    keys: list[Tensor] = []
    values: list[Tensor] = []
    logits = []
    for k in range(1, depth + 1):
        rows = min(hidden.shape[1], tokens.shape[1] - k)
        x = combine(spec, weights, hidden[:, :rows], tokens[:, k : k + rows])
        normed = rms_norm(x, layer_weights["norm.weight"], spec.norm_eps)
        q, key, value = project_qkv(layer.mixer, mixer_weights, normed, torch.arange(k - 1, k - 1 + rows))
        keys, values = ([*(x[:, :, :rows] for x in xs), new] for xs, new in ((keys, key), (values, value)))
        mixed = attend_chain(q, keys, values).transpose(1, 2).flatten(-2)
        hidden = feed_forward(layer, layer_weights, x + F.linear(mixed, mixer_weights["o_proj.weight"]), spec.norm_eps)
        logits.append(draft_logits(spec, weights, hidden))
    return logits

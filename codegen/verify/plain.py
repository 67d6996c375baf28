"""What the reference says of a text: in fp32, and as plain PyTorch computes it with bf16 matmuls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from dsl import ModelSpec
from dsl.reference import mtp
from dsl.reference.attention import project_qkv
from dsl.reference.decode import EagerDecoder
from dsl.reference.model import Output, embed, forward, run_layer, scoped
from dsl.reference.norm import rms_norm
from dsl.spec import AttentionSpec, Mamba2Spec

Weights = Mapping[str, Tensor]
Named = tuple[str, str]  # (weights prefix of a layer, "conv", "k", "v" or "hidden")


@dataclass(frozen=True)
class Chain:
    """One chain of drafts. position: of the newest token known; drafts: proposals for the positions after it."""

    position: int
    drafts: tuple[int, ...]


class Plain:
    """The reference over one text. tokens: [n], from position 0."""

    def __init__(self, spec: ModelSpec, weights: Weights, tokens: list[int]) -> None:
        self.spec = spec
        self.tokens = torch.tensor([tokens])
        self.exact = {name: value.float() for name, value in weights.items()}
        self.bf16 = {name: value.to(torch.bfloat16) for name, value in weights.items()}

    @cached_property
    def target(self) -> Output:
        """Logits [1, n, V] and hidden states [1, n, d] in fp32."""
        with torch.no_grad():
            return forward(self.spec, self.exact, self.tokens)

    @cached_property
    def target_bf16(self) -> Output:
        """The same from PyTorch with bf16 matmuls, fp32 residuals and states."""
        n = self.tokens.shape[1]
        decoder = EagerDecoder(self.spec, self.exact, 1, n, torch.float32, torch.bfloat16)
        rows = [decoder.step(self.tokens[:, i]) for i in range(n)]
        return Output(torch.stack([row.logits for row in rows], 1), torch.stack([row.hidden for row in rows], 1))

    def chains(self, chains: list[Chain], exact: bool) -> list[Tensor]:
        """Drafter logits of every chain, [drafts, V] each: each depth reads the drafts before it.

        exact: in fp32; otherwise from PyTorch in bf16, on hidden states of PyTorch in bf16.
        """
        weights = self.exact if exact else self.bf16
        hidden = self.target.hidden if exact else self.target_bf16.hidden.to(torch.bfloat16)
        depth = max(len(chain.drafts) for chain in chains)
        length = max(chain.position for chain in chains) + 1
        texts = torch.zeros((len(chains), length + depth), dtype=torch.int64)
        texts[:, :length] = self.tokens[:, :length]
        for row, chain in zip(texts, chains, strict=True):
            after = chain.position + 1
            row[after : after + len(chain.drafts)] = torch.tensor(chain.drafts, dtype=torch.int64)
        states = hidden[:, : length - 1].expand(len(chains), -1, -1)
        with torch.no_grad():
            logits = mtp.forward(self.spec, weights, states, texts, depth=depth)
        return [
            torch.stack([logits[k][i, chain.position - 1].float() for k in range(len(chain.drafts))])
            for i, chain in enumerate(chains)
        ]

    def layers(self, exact: bool = True) -> dict[Named, Tensor]:
        """What buffers hold of every position, [n, ...], in execution order: conv inputs, keys, values, hidden states.

        exact: in fp32, otherwise in bf16 throughout.
        """
        weights, found = self.exact if exact else self.bf16, dict[Named, Tensor]()
        positions = torch.arange(self.tokens.shape[1])
        with torch.no_grad():
            hidden = embed(weights, self.tokens)
            for i, layer in enumerate(self.spec.pattern_layers):
                prefix = f"layers.{i}"
                mine = scoped(weights, prefix)
                normed = rms_norm(hidden, mine["norm.weight"], self.spec.norm_eps)
                found |= _inputs(prefix, layer.mixer, scoped(mine, "mixer"), normed, positions)
                hidden = run_layer(layer, mine, hidden, self.spec.norm_eps, "recurrent")
            found[("", "hidden")] = hidden[0].float()
            if self.spec.mtp_layer is not None:
                x = mtp.combine(self.spec, weights, hidden[:, :-1], self.tokens[:, 1:])
                mine = scoped(weights, "mtp.layer")
                normed = rms_norm(x, mine["norm.weight"], self.spec.norm_eps)
                mixer = self.spec.mtp_layer.mixer
                found |= _inputs("mtp.layer", mixer, scoped(mine, "mixer"), normed, positions[:-1])
        return found


def _inputs(
    prefix: str, mixer: Mamba2Spec | AttentionSpec, weights: Weights, normed: Tensor, positions: Tensor
) -> dict[Named, Tensor]:
    """Raw conv inputs [n, C], or keys and values [n, KV, D], of a mixer's normed input [1, n, d]."""
    if isinstance(mixer, Mamba2Spec):
        raw = torch.nn.functional.linear(normed, weights["in_proj.weight"])
        return {(prefix, "window"): raw[0, :, mixer.d_inner : mixer.d_inner + mixer.conv_dim].float()}
    _, k, v = project_qkv(mixer, weights, normed, positions)
    return {(prefix, "k"): k[0].transpose(0, 1).float(), (prefix, "v"): v[0].transpose(0, 1).float()}

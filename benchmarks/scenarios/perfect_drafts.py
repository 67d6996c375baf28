"""Weights whose drafts are always right, for any spec with an MTP module and a head of its own.

Every layer computes and every weight is read, but what a layer adds is small beside the embedding that the residual
stream starts from, so the last hidden state still names the token it belongs to. Row successor(t) of the head is the
embedding of t: the most likely token after t is successor(t), a permutation that is one long cycle, so that no answer
repeats itself. The MTP module passes the embedding of the token it reads through its projection and finds the same
successor.
"""

from __future__ import annotations

import torch
from torch import Tensor

from runtime.plan import Plan
from runtime.random_weights import random_weights

BRANCHES = ("out_proj.weight", "o_proj.weight", "down_proj.weight")  # what a layer adds to the residual stream
BRANCH_SCALE = 0.02  # embeddings have deviation 1, branches about 1 before it
FIRST_TOKEN = 3  # smaller ids may be specials; they follow themselves


def perfect_drafts(plan: Plan, concat: tuple[str, str], seed: int = 0) -> dict[str, Tensor]:
    """Every tensor of the weights file. concat: the spec's order of the projection's two inputs.

    Raises ValueError if the plan has no MTP module or no head of its own.
    """
    weights = random_weights(plan, seed)
    if not {"lm_head.weight", "mtp.proj.weight"} <= weights.keys():
        raise ValueError(f"{plan.name} must have an MTP module and `tie_embeddings: false`")
    generator = torch.Generator().manual_seed(seed + 1)
    embedding = torch.randn(weights["embed.weight"].shape, generator=generator).bfloat16()
    vocab, width = embedding.shape
    head = torch.empty_like(embedding)
    head[successors(vocab, generator)] = embedding
    weights |= {"embed.weight": embedding, "lm_head.weight": head, "mtp.proj.weight": _passing(concat, width)}
    for name, tensor in weights.items():
        if name.endswith(BRANCHES):
            tensor *= BRANCH_SCALE
        elif name.endswith("norm.weight") and ".mixer." not in name:
            tensor.fill_(1.0)
    return weights


def successors(vocab: int, generator: torch.Generator) -> Tensor:
    """[vocab] int64: the token after each. Ordinary tokens form one cycle in random order."""
    following = torch.arange(vocab)
    order = torch.randperm(vocab - FIRST_TOKEN, generator=generator) + FIRST_TOKEN
    following[order] = order.roll(-1)
    return following


def _passing(concat: tuple[str, str], width: int) -> Tensor:
    """[d, 2d] bf16: the embedding unchanged, nothing of the hidden state."""
    parts = {"embedding": torch.eye(width), "hidden": torch.zeros(width, width)}
    return torch.cat([parts[name] for name in concat], dim=1).bfloat16()

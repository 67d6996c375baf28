"""Drafts of a spec's MTP module, without caches, and how many of them a target accepts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dsl.reference import mtp
from dsl.reference.model import Weights, forward
from dsl.reference.sampling import choose
from dsl.spec import ModelSpec


@torch.no_grad()
def draft(spec: ModelSpec, weights: Weights, tokens: Tensor, count: int, temperature: float, seeds: Tensor) -> Tensor:
    """The drafts that follow known tokens, of which the last is not yet processed by the target. Without caches.

    tokens: [B, n], n >= 2, from position 0 (the target has run on the first n - 1). seeds: [B]. Returns [B, count]:
    proposals for positions n .. n + count - 1, chosen with the noise the target will use there.
    """
    hidden = forward(spec, weights, tokens[:, :-1]).hidden
    known = tokens.shape[1]
    for k in range(1, count + 1):
        logits = mtp.forward(spec, weights, hidden, tokens, depth=k)[-1][:, -1]
        drafted = choose(logits, temperature, seeds, known + k - 1)
        tokens = torch.cat([tokens, drafted[:, None]], dim=1)
    return tokens[:, known:]


@dataclass(frozen=True)
class Acceptance:
    """What a number of drafts per step achieves. num_accepting[k - 1]: steps that accept at least k drafts."""

    num_steps: int
    num_tokens: int
    num_accepting: tuple[int, ...]

    @property
    def tokens_per_step(self) -> float:
        """Accepted drafts and one bonus token, on average."""
        return self.num_tokens / self.num_steps

    @property
    def per_position(self) -> tuple[float, ...]:
        """Of the steps that reach draft k (all before it accepted), the fraction that accepts it."""
        reached = (self.num_steps, *self.num_accepting)
        return tuple(accepted / max(before, 1) for before, accepted in zip(reached, self.num_accepting, strict=False))


@torch.no_grad()
def draft_matches(
    spec: ModelSpec, weights: Weights, tokens: Tensor, max_drafts: int, temperature: float, seeds: Tensor
) -> Tensor:
    """Which drafts a target that emits exactly `tokens` would accept. tokens: [B, n]; seeds: [B].

    Returns bool [B, n - max_drafts - 1, max_drafts]: entry (i, k) tells whether, drafting from the hidden state of
    position i and token i + 1, drafts 0 .. k all equal tokens i + 2 .. i + 2 + k. Chains read the given tokens: as
    long as drafts are accepted, that is what they drafted.
    """
    hidden = forward(spec, weights, tokens, scan="chunked").hidden
    rows = tokens.shape[1] - max_drafts - 1
    matches = []
    for k, logits in enumerate(mtp.forward(spec, weights, hidden, tokens, depth=max_drafts), start=1):
        positions = torch.arange(rows) + k + 1
        drafted = choose(logits[:, :rows], temperature, seeds[:, None], positions)
        matches.append(drafted == tokens[:, positions])
    return torch.stack(matches, dim=-1).long().cumprod(-1).bool()


def measure_acceptance(matches: Tensor, start: int) -> Acceptance:
    """Walk every sequence step by step, as an engine with `max_drafts` drafts would, from the first sampled token on.

    matches: as of `draft_matches`. start: length of the prompts; the first step drafts from position start - 1.
    """
    max_drafts = matches.shape[-1]
    accepted_counts = matches.sum(-1)
    steps = []
    for row in accepted_counts.tolist():
        position = start - 1
        while position < len(row):
            steps.append(row[position])
            position += row[position] + 1
    accepting = tuple(sum(step >= k for step in steps) for k in range(1, max_drafts + 1))
    return Acceptance(len(steps), sum(steps) + len(steps), accepting)

"""The drafting module in its vectorised form against a row-by-row one; what drafts a target accepts."""

import numpy as np
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st

from dsl.reference import drafting, model, mtp
from dsl.reference.model import scoped
from dsl.reference.norm import rms_norm
from dsl.reference.rope import rope
from dsl.reference.weights import random_weights
from tests.strategies import specs

SEEDS = st.integers(0, 3)


def setup(spec, seed, length, batch=2):
    weights = {name: value.double() for name, value in random_weights(spec, seed).items()}
    tokens = torch.randint(spec.vocab_size, (batch, length), generator=torch.Generator().manual_seed(seed))
    return weights, tokens


def module_row(spec, weights, hidden, token, position, cache):
    """One row of the module for one sequence, appending its key and value to `cache`. Returns (hidden, logits)."""
    layer, w = spec.mtp_layer, scoped(weights, "mtp.layer")
    embedding = rms_norm(weights["embed.weight"][token], weights["mtp.embedding_norm.weight"], spec.norm_eps)
    normed = rms_norm(hidden, weights["mtp.hidden_norm.weight"], spec.norm_eps)
    pair = [embedding, normed] if spec.mtp.concat[0] == "embedding" else [normed, embedding]
    x = weights["mtp.proj.weight"] @ torch.cat(pair)
    row = rms_norm(x, w["norm.weight"], spec.norm_eps)
    D = layer.mixer.head_dim
    q, k, v = ((w[f"mixer.{name}_proj.weight"] @ row).view(1, -1, D) for name in "qkv")
    at = torch.tensor([position])
    cache.append((rope(k, at, layer.mixer.rope.theta)[0], v[0]))
    heads = []
    for h, head in enumerate(rope(q, at, layer.mixer.rope.theta)[0]):
        share = h // (layer.mixer.num_heads // layer.mixer.num_kv_heads)
        keys, values = (torch.stack([entry[i][share] for entry in cache]) for i in (0, 1))
        heads.append(torch.softmax(keys @ head / D**0.5, dim=0) @ values)
    x = x + w["mixer.o_proj.weight"] @ torch.cat(heads)
    if layer.feed_forward is not None:
        row = rms_norm(x, w["feed_forward_norm.weight"], spec.norm_eps)
        gate = F.silu(w["feed_forward.gate_proj.weight"] @ row)
        x = x + w["feed_forward.down_proj.weight"] @ (gate * (w["feed_forward.up_proj.weight"] @ row))
    norm = weights["mtp.norm.weight" if spec.mtp.post_norm == "own" else "final_norm.weight"]
    head = weights["embed.weight" if spec.tie_embeddings else "lm_head.weight"]
    normed = rms_norm(x, norm, spec.norm_eps)
    by_rows = {"bf16": lambda head, normed: head @ normed, "int8": int8_logits_row, "int4": int4_logits_row}
    return x, by_rows[spec.mtp.draft_head](head, normed)


def int8_row(values):
    """One row as Python integers and a scale, in fp32 arithmetic."""
    values = values.float().numpy()
    top = max(np.abs(values).max(), np.float32(1e-30))
    return [int(np.floor(value * (np.float32(127) / top) + np.float32(0.5))) for value in values], top / np.float32(127)


def int8_logits_row(head, normed):
    """Logits [V] of one row, output by output."""
    row, scale = int8_row(normed)
    logits = []
    for weights, weight_scale in map(int8_row, head):
        assert all(-127 <= value <= 127 for value in (*row, *weights))
        total = sum(a * b for a, b in zip(row, weights, strict=True))
        logits.append(np.float32(total) * scale * weight_scale)
    return torch.tensor(logits, dtype=torch.float64)


def halves_up(value, largest):
    """A number of fp32 to the nearest whole one, cut to -largest .. largest."""
    return max(-largest, min(largest, int(np.floor(value + np.float32(0.5)))))


def int4_logits_row(head, normed):
    """Logits [V] of one row with a head in groups, output by output, in fp32 arithmetic and Python integers."""
    row, scale = int8_row(normed)
    logits = []
    for weights in head:
        values = weights.float().numpy()
        top = max(np.abs(values).max(), np.float32(1e-30))
        weight_scale, total = top / np.float32(490), 0
        for first in range(0, len(values), 64):
            group = values[first : first + 64]
            multiplier = max(1, halves_up(np.abs(group).max() * (np.float32(63) / top), 63))
            step = np.float32(multiplier) * weight_scale
            total += multiplier * sum(halves_up(w / step, 7) * x for w, x in zip(group, row[first:], strict=False))
        logits.append(np.float32(total) * scale * weight_scale)
    return torch.tensor(logits, dtype=torch.float64)


@given(specs(with_mtp=True), SEEDS)
def test_chains_match_row_by_row(spec, seed):
    length, depth = 9, 4
    weights, tokens = setup(spec, seed, length)
    hidden = model.forward(spec, weights, tokens).hidden
    logits = mtp.forward(spec, weights, hidden, tokens, depth)
    assert [tuple(rows.shape) for rows in logits] == [(2, length - k, spec.vocab_size) for k in range(1, depth + 1)]
    committed = []
    for i in range(length - 1):
        own, drafted = module_row(spec, weights, hidden[1, i], tokens[1, i + 1], i, committed)
        torch.testing.assert_close(logits[0][1, i], drafted, rtol=1e-9, atol=1e-9)
        chain = list(committed)
        for k in range(2, min(depth, length - 1 - i) + 1):
            own, drafted = module_row(spec, weights, own, tokens[1, i + k], i + k - 1, chain)
            torch.testing.assert_close(logits[k - 1][1, i], drafted, rtol=1e-9, atol=1e-9)


@given(specs(with_mtp=True), SEEDS, st.sampled_from([0.0, 0.8]))
def test_matches_are_those_of_the_drafter(spec, seed, temperature):
    count, length = 3, 8
    weights, tokens = setup(spec, seed, length)
    seeds = torch.tensor([seed, seed + 9])
    matches = drafting.draft_matches(spec, weights, tokens, count, temperature, seeds)
    assert matches.shape == (2, length - count - 1, count)
    for known in range(2, length - count + 1):
        drafts = drafting.draft(spec, weights, tokens[:, :known], count, temperature, seeds)
        accepted = (drafts == tokens[:, known : known + count]).long().cumprod(-1).bool()
        assert torch.equal(matches[:, known - 2], accepted)


@given(specs(with_mtp=True), SEEDS)
def test_own_drafts_are_matches(spec, seed):
    assume(spec.engine.max_drafts > 0)
    weights, tokens = setup(spec, seed, 5)
    seeds = torch.tensor([1, 2])
    drafts = drafting.draft(spec, weights, tokens, spec.engine.max_drafts, 0.8, seeds)
    sequence = torch.cat([tokens, drafts], dim=1)
    matches = drafting.draft_matches(spec, weights, sequence, spec.engine.max_drafts, 0.8, seeds)
    assert matches[:, -1].all()


def test_acceptance_walks_like_an_engine():
    accepted = torch.tensor([[0, 0, 2, 9, 9, 0, 1], [9, 9, 1, 9, 2, 9, 9]])
    matches = accepted[..., None] > torch.arange(2)
    found = drafting.measure_acceptance(matches, start=3)
    # first row: positions 2 (2 drafts), 5 (0), 6 (1); second row: positions 2 (1), 4 (2)
    assert found == drafting.Acceptance(num_steps=5, num_tokens=11, num_accepting=(4, 2))
    assert found.tokens_per_step == 2.2
    assert found.per_position == (4 / 5, 2 / 4)

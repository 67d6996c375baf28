"""The eager decoder with caches computes what the model without caches does."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsl.reference import decode, model
from dsl.reference.sampling import choose
from dsl.reference.weights import expected_tensors, random_weights
from tests.strategies import specs


@given(specs(), st.integers(1, 24), st.integers(0, 3))
def test_steps_match_the_model(spec, length, seed):
    weights = random_weights(spec, seed)
    tokens = torch.randint(spec.vocab_size, (3, length), generator=torch.Generator().manual_seed(seed))
    decoder = decode.EagerDecoder(spec, weights, batch=3, max_context=length, dtype=torch.float64)
    steps = [decoder.step(tokens[:, i]) for i in range(length)]
    expected = model.forward(spec, {name: value.double() for name, value in weights.items()}, tokens)
    torch.testing.assert_close(torch.stack([s.logits for s in steps], 1), expected.logits, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(torch.stack([s.hidden for s in steps], 1), expected.hidden, rtol=1e-9, atol=1e-9)
    with pytest.raises(IndexError):
        decoder.step(tokens[:, 0])


@given(specs(), st.integers(0, 3), st.sampled_from([0.0, 0.8]))
def test_generate_samples_from_the_model(spec, seed, temperature):
    weights = random_weights(spec, seed)
    prompts = torch.randint(spec.vocab_size, (2, 3), generator=torch.Generator().manual_seed(seed))
    seeds = torch.tensor([seed, 100])
    decoder = decode.EagerDecoder(spec, weights, batch=2, max_context=10, dtype=torch.float64)
    tokens = decode.generate(decoder, prompts, 6, temperature, seeds)
    assert tokens.shape == (2, 9)
    logits = model.forward(spec, {name: value.double() for name, value in weights.items()}, tokens).logits
    positions = torch.arange(3, 9)
    expected = choose(logits[:, 2:-1], temperature, seeds[:, None], positions)
    assert torch.equal(tokens[:, 3:], expected)
    assert torch.equal(tokens[:, :3], prompts)


@given(specs())
def test_bf16_matmuls_stay_near(spec):
    weights = random_weights(spec, 0)
    tokens = torch.randint(spec.vocab_size, (1, 8), generator=torch.Generator().manual_seed(0))
    outputs = []
    for dtype in (torch.float32, torch.bfloat16):
        decoder = decode.EagerDecoder(spec, weights, batch=1, max_context=8, matmul_dtype=dtype)
        outputs.append(torch.stack([decoder.step(tokens[:, i]).logits for i in range(8)]))
    # bf16 keeps 8 bits; errors of a few layers of it, in units of the logits' deviation
    error = (outputs[0] - outputs[1]).square().mean().sqrt() / outputs[0].std()
    assert error < 0.2


@given(specs(), st.integers(0, 3))
def test_random_weights_fit_and_vary(spec, seed):
    weights = random_weights(spec, seed)
    expected = expected_tensors(spec)
    assert {name: (tuple(value.shape), value.dtype) for name, value in weights.items()} == expected
    again, other = random_weights(spec, seed), random_weights(spec, seed + 1)
    assert all(torch.equal(value, again[name]) for name, value in weights.items())
    assert not torch.equal(weights["embed.weight"], other["embed.weight"])
    logits = model.forward(spec, {k: v.float() for k, v in weights.items()}, torch.arange(40)[None]).logits
    assert 0.5 < logits.std() < 8.0

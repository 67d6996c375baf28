"""The two forms of Mamba-2 agree with each other in fp64, whatever the spec, the length and the decays."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsl.reference import model
from dsl.reference.mamba2 import causal_conv, scan_chunked, scan_recurrent
from dsl.reference.weights import random_weights
from tests.strategies import specs

LENGTHS = st.sampled_from([1, 2, 63, 64, 65, 130])


@given(specs(), LENGTHS, st.integers(0, 3))
def test_models_agree(spec, length, seed):
    weights = {name: value.double() for name, value in random_weights(spec, seed).items()}
    tokens = torch.randint(spec.vocab_size, (2, length), generator=torch.Generator().manual_seed(seed))
    recurrent = model.forward(spec, weights, tokens, scan="recurrent")
    chunked = model.forward(spec, weights, tokens, scan="chunked")
    torch.testing.assert_close(chunked.logits, recurrent.logits, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(chunked.hidden, recurrent.hidden, rtol=1e-9, atol=1e-9)


def scan_inputs(length, H, P, G, N, dt_scale, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    dt = torch.rand((2, length, H), generator=generator, dtype=torch.float64) * dt_scale
    A = -1 - 15 * torch.rand(H, generator=generator, dtype=torch.float64)
    return normal(2, length, H, P), dt, A, normal(2, length, G, N), normal(2, length, G, N)


@given(
    LENGTHS,
    st.sampled_from([(1, 1), (3, 1), (3, 3), (6, 2)]),
    st.integers(1, 70),
    st.sampled_from([0.0, 1e-4, 0.1, 50.0]),
)
def test_scans_agree(length, heads, chunk, dt_scale):
    H, G = heads
    x, dt, A, B, C = scan_inputs(length, H, 5, G, 7, dt_scale)
    repeated = [value.repeat_interleave(H // G, dim=2) for value in (B, C)]
    torch.testing.assert_close(
        scan_chunked(x, dt, A, B, C, chunk), scan_recurrent(x, dt, A, *repeated), rtol=1e-10, atol=1e-10
    )


def test_strong_decays_stay_finite_in_fp32():
    x, dt, A, B, C = (value.float() for value in scan_inputs(300, 4, 3, 1, 5, dt_scale=1e4))
    dt = dt + 100
    y = scan_chunked(x, dt, A, B, C)
    assert torch.isfinite(y).all()
    expected = (dt[..., None] * x) * (B * C).sum(-1, keepdim=True)
    # after such decays only the token's own record is left
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-2)


def test_recurrence_by_hand():
    x = torch.tensor([[[[1.0]], [[2.0]]]], dtype=torch.float64)  # [1, 2, 1, 1]
    dt = torch.tensor([[[0.5], [0.25]]], dtype=torch.float64)
    B = C = torch.tensor([[[[1.0, 3.0]], [[2.0, -1.0]]]], dtype=torch.float64)
    y = scan_recurrent(x, dt, torch.tensor([-2.0], dtype=torch.float64), B, C)
    decay = torch.exp(torch.tensor(-0.5, dtype=torch.float64))
    # S_1 = 0.5 * [1, 3]; S_2 = decay * S_1 + 0.5 * [2, -1]
    second = decay * 0.5 * (1 * 2 + 3 * -1) + 0.5 * (2 * 2 + 1)
    torch.testing.assert_close(y.flatten(), torch.stack([torch.tensor(5.0, dtype=torch.float64), second]))


@pytest.mark.parametrize("width", [2, 3, 4, 8])
def test_convolution_matches_conv1d(width):
    generator = torch.Generator().manual_seed(width)
    x = torch.randn(2, 11, 6, generator=generator, dtype=torch.float64)
    weight, bias = torch.randn(6, width, generator=generator).double(), torch.randn(6, generator=generator).double()
    expected = torch.nn.functional.conv1d(x.mT, weight[:, None], bias, padding=width - 1, groups=6)[..., :11].mT
    torch.testing.assert_close(causal_conv(x, weight, bias), expected)


@given(specs(), st.integers(1, 40), st.integers(0, 3))
def test_a_row_depends_only_on_its_prefix(spec, length, seed):
    weights = {name: value.double() for name, value in random_weights(spec, seed).items()}
    tokens = torch.randint(spec.vocab_size, (1, 41), generator=torch.Generator().manual_seed(seed))
    whole, part = (model.forward(spec, weights, tokens[:, :n]) for n in (41, length))
    torch.testing.assert_close(part.logits, whole.logits[:, :length], rtol=1e-10, atol=1e-10)

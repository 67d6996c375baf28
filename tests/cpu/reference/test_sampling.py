"""Noise from published vectors and an independent implementation; the choice follows the distribution."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsl.reference.sampling import choose, gumbel, lowest_argmax, philox

# Known answers of Random123, kat_vectors: philox 4x32, 10 rounds: counter, key, result.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text):
    return [int(word, 16) for word in text.split()]


def signed(value):
    """The int64 with these 64 bits."""
    return torch.tensor(value - (1 << 64) if value >= 1 << 63 else value)


def numpy_philox(key, counter):
    """Philox-4x32-10 in Python integers, round by round as in the paper's figure."""
    (k0, k1), (c0, c1, c2, c3) = key, counter
    for _ in range(10):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & 0xFFFFFFFF, (a >> 32) ^ c3 ^ k1, a & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN_ANSWERS)
def test_known_answers(counter, key, result):
    low, high = words(key)
    drawn = philox(signed(low | high << 32), *(torch.tensor(word) for word in words(counter)))
    assert [int(word) for word in drawn] == words(result)
    assert list(numpy_philox((low, high), words(counter))) == words(result)


WORDS = st.integers(0, (1 << 32) - 1)


@given(st.integers(0, (1 << 64) - 1), WORDS, WORDS, WORDS, WORDS)
def test_matches_python_integers(seed, c0, c1, c2, c3):
    drawn = philox(signed(seed), *(torch.tensor(word) for word in (c0, c1, c2, c3)))
    assert tuple(int(word) for word in drawn) == numpy_philox((seed & 0xFFFFFFFF, seed >> 32), (c0, c1, c2, c3))


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, (1 << 31) - 1))
def test_noise_is_that_of_the_first_word(seed, position):
    key = (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF)
    bits = np.array([numpy_philox(key, (token, position, 0, 0))[0] >> 9 for token in range(5)])
    u = torch.tensor((bits + 0.5) / 2**23, dtype=torch.float32)
    assert ((u > 0) & (u < 1)).all()
    assert torch.equal(gumbel(seed, position, 5), -torch.log(-torch.log(u)))


def test_the_ends_of_the_uniform_are_inside():
    bits = torch.tensor([0, (1 << 23) - 1])
    u = (bits.float() + 0.5) * 2.0**-23
    assert u.tolist() == [2.0**-24, 1 - 2.0**-24]
    assert torch.isfinite(-torch.log(-torch.log(u))).all()


def test_rows_have_the_noise_of_their_own_seed_and_position():
    logits = torch.randn(2, 3, 11, generator=torch.Generator().manual_seed(0))
    seeds, positions = torch.tensor([5, -7]), torch.tensor([10, 11, 12])
    chosen = choose(logits, 0.7, seeds[:, None], positions)
    for i in range(2):
        for j in range(3):
            assert chosen[i, j] == choose(logits[i, j], 0.7, int(seeds[i]), int(positions[j]))


def test_choices_follow_the_distribution():
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0, -3.0])
    count = 20_000
    chosen = choose(logits.expand(count, -1), 0.8, 1234, torch.arange(count))
    expected = torch.softmax(logits / 0.8, dim=-1) * count
    observed = torch.bincount(chosen, minlength=5)
    # chi-square with 4 degrees of freedom: above 20 with probability 5e-4, and the draw is fixed
    assert ((observed - expected).square() / expected).sum() < 20


def test_close_distributions_choose_alike():
    generator = torch.Generator().manual_seed(0)
    target = 2 * torch.randn(4000, 50, generator=generator)
    draft = target + 0.1 * torch.randn(4000, 50, generator=generator)
    positions = torch.arange(4000)
    shared = (choose(target, 1.0, 3, positions) == choose(draft, 1.0, 3, positions)).float().mean()
    foreign = (choose(target, 1.0, 3, positions) == choose(draft, 1.0, 4, positions)).float().mean()
    assert shared > 0.9 > 0.4 > foreign


@given(st.lists(st.sampled_from([0.0, 1.0, -1.0, float("-inf")]), min_size=1, max_size=300))
def test_ties_go_to_the_lowest_id(scores):
    if max(scores) == float("-inf"):
        scores[-1] = 0.0
    assert lowest_argmax(torch.tensor(scores)) == scores.index(max(scores))
    assert choose(torch.tensor(scores), 0.0, 1, 2) == scores.index(max(scores))

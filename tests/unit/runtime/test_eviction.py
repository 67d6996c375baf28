"""Who goes first: what saves least, per byte that it frees and per use of others since its own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.checkpoints.cache import PrefixCache
from runtime.checkpoints.checkpoint import Reason
from runtime.checkpoints.eviction import Worth, worth
from runtime.checkpoints.pages import PagePool
from runtime.checkpoints.retention import prefix_digests

counts = st.integers(1, 10_000)


@given(counts, counts, counts, st.integers(2, 50))
def test_worth_is_tokens_per_byte_and_age(tokens: int, size: int, age: int, factor: int) -> None:
    here = worth(Worth(tokens, size, age))
    assert here * size * age == pytest.approx(tokens)
    assert worth(Worth(tokens * factor, size, age)) > here
    assert worth(Worth(tokens, size * factor, age)) < here
    assert worth(Worth(tokens, size, age * factor)) < here
    assert worth(Worth(0, size, age)) == 0


def filled(lengths: dict[str, int], rows: int = 8, page_bytes: int = 0) -> PrefixCache:
    """Checkpoints of one text per letter, at the lengths given, each a use."""
    cache = PrefixCache(rows, PagePool(64, rows), False, "stamp", 4, row_bytes=10, page_bytes=page_bytes)
    for name, length in lengths.items():
        publish(cache, name, length)
    return cache


def publish(cache: PrefixCache, name: str, length: int) -> None:
    tokens = [ord(name[0])] * length
    pages = list(cache.shareable(tokens, length))
    cache.pages.share(pages)
    while len(pages) * 4 < length:
        pages.append(cache.take_page())
    [(_, digest)] = prefix_digests(tokens, [length])
    cache.publish(tokens, length, digest, cache.reserve(), pages, Reason.GRID)
    cache.pages.drop(pages)


def order(cache: PrefixCache) -> list[tuple[str, int]]:
    """Evict everything: (text, length) in the order in which they leave."""
    left = []
    while before := {(chr(c.tokens[0]), c.position) for c in cache}:
        assert cache.evict()
        left += before - {(chr(c.tokens[0]), c.position) for c in cache}
    return left


def test_of_equal_ones_the_least_recently_used_goes_first() -> None:
    cache = filled({"a": 8, "b": 8, "c": 8})
    cache.touch(cache.find([ord("a")] * 8))
    assert order(cache) == [("b", 8), ("c", 8), ("a", 8)]


def test_a_long_prefix_outlives_a_short_one_of_the_same_age_and_size() -> None:
    """Three times the tokens make up for less than three times the age."""
    assert order(filled({"a": 24, "b": 8})) == [("b", 8), ("a", 24)]
    assert order(filled({"a": 12, "b": 8})) == [("a", 12), ("b", 8)]


def test_one_close_below_another_saves_little_until_that_is_gone() -> None:
    cache = filled({"a1": 20, "a2": 21, "b": 8})
    deep = cache.find([ord("a")] * 21)
    assert cache.measure(deep).saved_tokens == 1
    assert order(cache) == [("a", 21), ("a", 20), ("b", 8)]
    cache = filled({"a1": 20, "a2": 21, "b": 8})
    deep = cache.find([ord("a")] * 21)
    cache.pin(deep)
    assert cache.evict() and cache.find([ord("a")] * 20) is None
    assert cache.measure(deep).saved_tokens == 21


def test_pages_that_others_share_are_not_counted() -> None:
    cache = filled({"a1": 8, "a2": 16}, page_bytes=100)
    short, long = sorted(cache, key=lambda checkpoint: checkpoint.position)
    assert (cache.measure(short).bytes, cache.measure(long).bytes) == (10, 210)
    assert cache.evict() and list(cache) == [short]
    assert cache.measure(short).bytes == 210

"""Which positions are kept: one function for writer and lookup, the same for every way of cutting a text."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from runtime.checkpoints.retention import (
    NEVER,
    PrefixHash,
    asked_positions,
    next_retained,
    prefix_digests,
    retained,
    shared_pages,
    worth_keeping,
)

INTERVALS = st.none() | st.integers(0, 20)
PAGE_SIZES = st.sampled_from([8, 16])
POINTS = st.lists(st.integers(0, 120), max_size=5)


def plainly(prompt_len: int, interval: int | None, page_size: int, end: int, points: Iterable[int] = ()) -> list[int]:
    """The same, position by position."""
    step = page_size if interval is None else interval
    return [p for p in range(1, end + 1) if p == prompt_len or p in points or (step and p % step == 0)]


@given(st.integers(1, 60), INTERVALS, PAGE_SIZES, st.integers(0, 90), st.integers(0, 90), POINTS)
def test_retained_is_the_prompt_end_the_grid_and_the_points(
    prompt_len: int, interval: int | None, page_size: int, start: int, more: int, points: list[int]
) -> None:
    end = start + more
    whole = plainly(prompt_len, interval, page_size, end, points)
    assert retained(prompt_len, interval, page_size, end, points=points) == whole
    assert retained(prompt_len, interval, page_size, end, start, points) == [p for p in whole if p > start]
    assert retained(prompt_len, interval, page_size, end) == plainly(prompt_len, interval, page_size, end)


@given(st.integers(1, 60), INTERVALS, PAGE_SIZES, st.lists(st.integers(1, 9), max_size=9), POINTS)
def test_chunks_keep_what_the_whole_keeps(
    prompt_len: int, interval: int | None, page_size: int, chunks: list[int], points: list[int]
) -> None:
    kept, at = [], 0
    for chunk in chunks:
        kept += retained(prompt_len, interval, page_size, at + chunk, at, points)
        at += chunk
    assert kept == retained(prompt_len, interval, page_size, at, points=points)


@given(st.integers(1, 60), INTERVALS, PAGE_SIZES, st.integers(0, 50), POINTS)
def test_next_retained_goes_from_one_to_the_next(
    prompt_len: int, interval: int | None, page_size: int, more: int, points: list[int]
) -> None:
    position = prompt_len + more
    later = retained(prompt_len, interval, page_size, position + 120, position, points)
    assert next_retained(interval, page_size, position, points) == (later[0] if later else NEVER)


@given(st.integers(1, 60), st.lists(st.integers(-70, 70), max_size=6))
def test_positions_may_be_asked_for_from_the_start_or_from_the_prompt_end(prompt_len: int, wanted: list[int]) -> None:
    found = asked_positions(prompt_len, wanted)
    assert list(found) == sorted(set(found)) and all(position >= 1 for position in found)
    for position in wanted:
        assert position <= 0 or position in found
        assert not -prompt_len < position < 0 or prompt_len + position in found
    assert all(p in wanted or p - prompt_len in wanted for p in found)


@given(st.lists(st.integers(0, 257), max_size=30), st.lists(st.integers(0, 30), max_size=6))
def test_a_digest_identifies_exactly_its_prefix(tokens: list[int], cuts: list[int]) -> None:
    running = PrefixHash()
    for cut in sorted(cut for cut in cuts if cut <= len(tokens)):
        assert running.at(tokens, cut) == PrefixHash().at(list(tokens[:cut]), cut)
    digests = [digest for _, digest in prefix_digests(tokens, range(1, len(tokens) + 1))]
    assert len(set(digests)) == len(tokens)


@given(st.integers(1, 100), st.sampled_from([8, 16]), st.booleans())
def test_shared_pages_hold_nothing_that_is_written_again(position: int, page_size: int, drafting: bool) -> None:
    shared = shared_pages(position, page_size, drafting)
    first_written = position - 1 if drafting else position
    assert shared * page_size <= first_written < (shared + 1) * page_size


def test_a_junction_is_kept_if_it_saves_a_quarter_of_a_page():
    assert [worth_keeping(at, 8, 16) for at in (8, 11, 12, 40)] == [False, False, True, True]
    assert not worth_keeping(1, 0, 64)  # the first token of every text
    assert worth_keeping(1, 0, 1) and not worth_keeping(1, 1, 1)

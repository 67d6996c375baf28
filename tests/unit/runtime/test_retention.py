"""Which positions are kept: one function for writer and lookup, the same for every way of cutting a text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from runtime.checkpoints.retention import NEVER, next_retained, retained, shared_pages

INTERVALS = st.none() | st.integers(0, 20)


def plainly(prompt_len: int, interval: int | None, page_size: int, end: int) -> list[int]:
    """The same, position by position."""
    step = page_size if interval is None else interval
    return [p for p in range(1, end + 1) if p == prompt_len or (step and p % step == 0)]


@given(st.integers(1, 60), INTERVALS, st.sampled_from([8, 16]), st.integers(0, 90), st.integers(0, 90))
def test_retained_is_the_prompt_end_and_the_grid(
    prompt_len: int, interval: int | None, page_size: int, start: int, more: int
) -> None:
    end = start + more
    whole = plainly(prompt_len, interval, page_size, end)
    assert retained(prompt_len, interval, page_size, end) == whole
    assert retained(prompt_len, interval, page_size, end, start) == [p for p in whole if p > start]


@given(st.integers(1, 60), INTERVALS, st.sampled_from([8, 16]), st.lists(st.integers(1, 9), max_size=9))
def test_chunks_keep_what_the_whole_keeps(
    prompt_len: int, interval: int | None, page_size: int, chunks: list[int]
) -> None:
    kept, at = [], 0
    for chunk in chunks:
        kept += retained(prompt_len, interval, page_size, at + chunk, at)
        at += chunk
    assert kept == retained(prompt_len, interval, page_size, at)


@given(st.integers(1, 60), INTERVALS, st.sampled_from([8, 16]), st.integers(0, 50))
def test_next_retained_follows_the_grid(prompt_len: int, interval: int | None, page_size: int, more: int) -> None:
    position = prompt_len + more
    later = retained(prompt_len, interval, page_size, position + 40, position)
    assert next_retained(interval, page_size, position) == (later[0] if later else NEVER)


@given(st.integers(1, 100), st.sampled_from([8, 16]), st.booleans())
def test_shared_pages_hold_nothing_that_is_written_again(position: int, page_size: int, drafting: bool) -> None:
    shared = shared_pages(position, page_size, drafting)
    first_written = position - 1 if drafting else position
    assert shared * page_size <= first_written < (shared + 1) * page_size

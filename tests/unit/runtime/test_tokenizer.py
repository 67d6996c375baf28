"""Bytes in, bytes out, however they are cut."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from runtime.tokenizer import ByteTokenizer, TextStream

TOKENIZER = ByteTokenizer(("bos", "eos"))


@given(st.text(max_size=20))
def test_text_comes_back(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert ids[0] == 256 and TOKENIZER.decode([*ids, 257]) == text
    assert ByteTokenizer(("eos",)).encode(text) == ids[1:]


@given(st.lists(st.integers(0, 259), max_size=40), st.lists(st.integers(0, 40), max_size=6))
def test_pieces_join_to_the_whole(tokens: list[int], cuts: list[int]) -> None:
    stream, edges = TextStream(), [0, *sorted(cuts), len(tokens)]
    pieces = [stream.push(tokens[a:b]) for a, b in pairwise(edges)]
    assert "".join(pieces) + stream.push([], final=True) == TOKENIZER.decode(tokens)


def test_a_character_waits_for_its_last_byte() -> None:
    stream = TextStream()
    assert [stream.push([byte]) for byte in "µ€".encode()] == ["", "µ", "", "", "€"]

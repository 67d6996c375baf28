"""Bytes in, bytes out, however they are cut."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from runtime.stops import stopped_at
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


def ended(stops: list[bytes], tokens: list[int], earliest: int) -> tuple[int, str]:
    """Tokens of an answer and its text, token by token: the stop that ends it is the longest that is complete."""
    for count in range(earliest + 1, len(tokens) + 1):
        said = bytes(token for token in tokens[:count] if token < 256)
        cuts = [len(said) - len(stop) for stop in stops if tokens[count - 1] < 256 and said.endswith(stop)]
        if cuts:
            return count, said[: min(cuts)].decode(errors="replace")
    return len(tokens), TOKENIZER.decode(tokens)


FEW_LETTERS = st.sampled_from([97, 98, 0xC3, 0xA4, 257])
FEW_STOPS = st.lists(st.lists(st.sampled_from([97, 98, 0xC3, 0xA4]), min_size=1, max_size=4).map(bytes), max_size=3)


@given(st.lists(FEW_LETTERS, max_size=24), FEW_STOPS, st.integers(0, 12), st.lists(st.integers(0, 24), max_size=6))
def test_the_text_ends_where_the_answer_does(
    tokens: list[int], stops: list[bytes], earliest: int, cuts: list[int]
) -> None:
    count, text = ended(stops, tokens, earliest)
    at = cuts[0] if cuts and cuts[0] <= count else 0
    found = stopped_at(stops, [97, *tokens[:at]], 1, tokens[at:], earliest)
    assert at == count or at + (found or len(tokens) - at) == count
    stream, edges = TextStream(stops, earliest), [0, *sorted(min(cut, count) for cut in cuts), count]
    pieces = [stream.push(tokens[a:b]) for a, b in pairwise(edges)]
    assert "".join(pieces) + stream.push([], final=True) == text

"""Bytes as tokens: ids 0..255 are the bytes, then the specials in order."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from runtime.errors import PromptNotText
from runtime.plan import NUM_BYTES
from runtime.stops import Visible


class ByteTokenizer:
    """Text to ids and back. specials: names of the ids from 256 on."""

    def __init__(self, specials: Sequence[str]) -> None:
        self.specials = {name: NUM_BYTES + i for i, name in enumerate(specials)}

    def encode(self, text: str | bytes) -> list[int]:
        """Ids of a prompt: `bos` first if there is one, then the bytes (UTF-8 of a str).

        Bytes a command line could not decode arrive as lone surrogates, and become those bytes. Raises PromptNotText.
        """
        try:
            content = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
        except UnicodeEncodeError as error:
            raise PromptNotText(detail=error.reason, position=error.start) from None
        bos = self.specials.get("bos")
        return [*content] if bos is None else [bos, *content]

    def decode(self, tokens: Iterable[int]) -> str:
        """Text of ids; specials say nothing, malformed UTF-8 reads as U+FFFD."""
        return _said(tokens).decode(errors="replace")


class TextStream:
    """Text of tokens that arrive in pieces: a character is passed on once all its bytes are there.

    stops: strings at the first of which it ends; what may become one waits too. earliest: tokens at the beginning that
    complete none.
    """

    def __init__(self, stops: Sequence[bytes] = (), earliest: int = 0) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._visible, self._early = Visible(stops), earliest

    def push(self, tokens: Iterable[int], final: bool = False) -> str:
        """Text completed by `tokens`; final: also what is left, malformed or not."""
        tokens = list(tokens)
        said, early = _said(tokens), len(_said(tokens[: self._early]))
        self._early = max(0, self._early - len(tokens))
        return self._decoder.decode(self._visible.push(said, final, early), final)


def _said(tokens: Iterable[int]) -> bytes:
    return bytes(token for token in tokens if token < NUM_BYTES)

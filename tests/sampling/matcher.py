"""A grammar matcher with the methods of xgrammar's, for a few regular expressions over bytes."""

from __future__ import annotations

import re
from functools import cache

from torch import Tensor

BYTES = range(256)


@cache
def _open(pattern: str, text: bytes) -> bool:
    """Whether a text is the beginning of a match: those of asks.PATTERNS need one of these endings at most."""
    matches = re.compile(pattern.encode()).fullmatch
    return any(matches(text + end) for end in (b"", b"0", b"z", *_tails()))


@cache
def _tails() -> tuple[bytes, ...]:
    words = (b"the ", b"a ", b"lazy ", b"dog ", b"ab", b"cd")
    return tuple({word[at:] for word in words for at in range(len(word))})


class Pattern:
    """The text must stay the beginning of a match; it is complete after `most` tokens, if it then matches."""

    def __init__(self, pattern: str, most: int = 18) -> None:
        self.pattern, self.most = pattern, most
        self.text = b""
        self.filled = self.rolled_back = 0

    def fill_next_token_bitmask(self, bitmask: Tensor, index: int = 0) -> bool:
        """Row `index` of the mask."""
        assert not self.is_terminated(), "nothing may follow"
        self.filled += 1
        words = [0] * bitmask.shape[1]
        for byte in BYTES:
            if _open(self.pattern, self.text + bytes([byte])):
                words[byte // 32] |= 1 << (byte % 32)
        for at, word in enumerate(words):
            bitmask[index, at] = word - (1 << 32) if word >> 31 else word
        return True

    def accept_token(self, token: int) -> bool:
        """Go on, if it may come."""
        if self.is_terminated() or token not in BYTES or not _open(self.pattern, self.text + bytes([token])):
            return False
        self.text += bytes([token])
        return True

    def rollback(self, num_tokens: int) -> None:
        """Take tokens back."""
        assert num_tokens <= len(self.text)
        self.rolled_back += num_tokens
        self.text = self.text[: len(self.text) - num_tokens]

    def is_terminated(self) -> bool:
        """Whether it is complete."""
        return len(self.text) >= self.most and re.fullmatch(self.pattern.encode(), self.text) is not None

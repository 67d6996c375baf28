"""Stop strings: text that ends an answer when it comes up in the output."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice

from runtime.errors import BadOption
from runtime.plan import NUM_BYTES

MOST_STRINGS, MOST_BYTES = 16, 1024


def stop_strings(asked: str | bytes | Sequence[str | bytes]) -> tuple[bytes, ...]:
    """What was asked, as bytes. Raises BadOption."""
    asked = [asked] if isinstance(asked, (str, bytes)) else asked
    allowed = f"at most {MOST_STRINGS} pieces of text of 1 to {MOST_BYTES} bytes"
    try:
        found = tuple(text.encode() if isinstance(text, str) else bytes(memoryview(text)) for text in asked)
    except (TypeError, UnicodeEncodeError):
        raise BadOption(option="stop", value=asked, allowed=allowed) from None
    if len(found) > MOST_STRINGS or any(not 1 <= len(text) <= MOST_BYTES for text in found):
        raise BadOption(option="stop", value=asked, allowed=allowed)
    return found


def stopped_at(
    stops: Sequence[bytes], tokens: Sequence[int], prompt_len: int, new: Sequence[int], earliest: int = 0
) -> int | None:
    """How many new tokens after prompt and output it takes to complete a stop string; None if they do not.

    earliest: output tokens at the beginning that complete none. Takes no longer the longer the output is.
    """
    tail = max(map(len, stops), default=0)
    for count, token in enumerate(new, 1):
        if len(tokens) - prompt_len + count > earliest and token < NUM_BYTES:
            output = map(tokens.__getitem__, range(len(tokens) - 1, prompt_len - 1, -1))
            backwards = (said for said in chain(reversed(new[:count]), output) if said < NUM_BYTES)
            text = bytes(islice(backwards, tail))[::-1]
            if any(text.endswith(stop) for stop in stops):
                return count
    return None


class Visible:
    """The bytes of an answer before the stop string that ends it; what may still become one is held back."""

    def __init__(self, stops: Sequence[bytes]) -> None:
        self._stops, self._held, self._exempt = stops, b"", 0
        self._over = False

    def push(self, new: bytes, final: bool = False, exempt: int = 0) -> bytes:
        """What of it can be shown now. final: nothing more comes; exempt: leading new bytes that complete no stop."""
        if not self._stops:
            return new
        if self._over:
            return b""
        text = self._held + new
        if exempt:
            self._exempt = len(self._held) + exempt
        found = (text.find(stop, max(0, self._exempt - len(stop) + 1)) for stop in self._stops)
        cut = min((at for at in found if at >= 0), default=None)
        if cut is not None:
            self._over, self._held = True, b""
            return text[:cut]
        kept = 0 if final else max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - kept :]
        self._exempt = max(0, self._exempt - (len(text) - kept))
        return text[: len(text) - kept]


def _overlap(text: bytes, stop: bytes) -> int:
    """Bytes at the end of a text that a stop string begins with."""
    most = min(len(text), len(stop) - 1)
    return next((size for size in range(most, 0, -1) if text.endswith(stop[:size])), 0)

"""Stop strings: text that ends an answer when it comes up in the output."""

from __future__ import annotations

from collections.abc import Sequence

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


def stopped_at(stops: Sequence[bytes], output: Sequence[int], new: int, min_tokens: int = 0) -> int | None:
    """How many of the last `new` tokens of an output it takes to complete a stop string; None if they do not.

    min_tokens: output tokens that come before any stop.
    """
    tail = max(map(len, stops), default=0)
    for count in range(1, new + 1):
        end = len(output) - new + count
        if end > min_tokens and output[end - 1] < NUM_BYTES:
            text = _last_bytes(output, end, tail)
            if any(text.endswith(stop) for stop in stops):
                return count
    return None


def _last_bytes(output: Sequence[int], end: int, most: int) -> bytes:
    """The last bytes of output[:end]; specials say nothing."""
    found = bytearray()
    for at in range(end - 1, -1, -1):
        if len(found) == most:
            break
        if output[at] < NUM_BYTES:
            found.append(output[at])
    return bytes(reversed(found))


class Visible:
    """The bytes of an answer before its first stop string; what may still become one is held back."""

    def __init__(self, stops: Sequence[bytes]) -> None:
        self._stops, self._held = stops, b""
        self._over = False

    def push(self, new: bytes, stopping: bool = True) -> bytes:
        """What can be shown now. stopping: whether a stop string that `new` completes ends it."""
        if self._over:
            return b""
        text, before = self._held + new, len(self._held)
        ends = ((text.find(stop, max(0, before - len(stop) + 1)), stop) for stop in self._stops)
        found = [at for at, _ in ends if at >= 0]
        if found and stopping:
            self._over, self._held = True, b""
            return text[: min(found)]
        kept = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def rest(self) -> bytes:
        """What was held back: nothing more comes."""
        held, self._held = self._held, b""
        return held


def _overlap(text: bytes, stop: bytes) -> int:
    """Bytes at the end of a text that a stop string begins with."""
    most = min(len(text), len(stop) - 1)
    return next((size for size in range(most, 0, -1) if text.endswith(stop[:size])), 0)

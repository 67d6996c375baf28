"""The naive model of known text: every prefix of everything that was processed, in a dictionary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from runtime.checkpoints.checkpoint import Checkpoint

Text = tuple[int, ...]


def prefix_of(checkpoint: Checkpoint) -> Text:
    """The tokens that a checkpoint stands for."""
    return tuple(checkpoint.tokens[: checkpoint.position])


class Texts:
    """What was processed. `following[prefix]`: the tokens that were seen after it."""

    def __init__(self, texts: Iterable[Sequence[int]] = ()) -> None:
        self.following: dict[Text, set[int]] = {}
        for text in texts:
            self.learn(text)

    def learn(self, tokens: Sequence[int]) -> None:
        """Remember tokens."""
        text = tuple(tokens)
        for length in range(self.known(text), len(text)):
            self.following.setdefault(text[:length], set()).add(text[length])

    def known(self, tokens: Sequence[int]) -> int:
        """How many leading tokens were processed before."""
        text, length = tuple(tokens), 0
        while length < len(text) and text[length] in self.following.get(text[:length], ()):
            length += 1
        return length

    def junction(self, tokens: Sequence[int]) -> int | None:
        """Where tokens leave text that goes on otherwise."""
        length = self.known(tokens)
        left = length < len(tokens) and bool(self.following.get(tuple(tokens[:length])))
        return length if left and length else None

"""The abstract model: every value is a hash of exactly what a layer would read to compute it.

One recurrent layer (conv window -> record -> fold), one attention layer over its readout, one attention drafter.
A wrong window, state, KV entry or hidden state anywhere gives another hash, hence other tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

INITIAL_STATE = 0


def conv_input(token: int, position: int) -> int:
    """Raw conv input of a row: what `in_proj` makes of the token (the position makes every entry distinct)."""
    return hash((1, token, position))


def record(window: Sequence[int]) -> int:
    """Record of a row (x, B, C, dt): the conv over the raw inputs of the row and of the `conv_width - 1` before it."""
    return hash((2, *window))


def fold(state: int, rec: int) -> int:
    """State after one more record."""
    return hash((3, state, rec))


def key_value(state: int, position: int) -> int:
    """KV entry of a row: of the readout of the state after the row, rotated to its position."""
    return hash((4, state, position))


def hidden_state(state: int, kv: tuple[int, ...]) -> int:
    """Hidden state of a row: its readout and its attention over the KV entries of positions 0 .. its own."""
    return hash((5, state, kv))


def drafter_key_value(hidden: int, token: int, position: int) -> int:
    """KV entry of the drafter's row at `position`: hidden state of `position`, embedding of token `position + 1`."""
    return hash((6, hidden, token, position))


def drafter_hidden(hidden: int, token: int, kv: tuple[int, ...]) -> int:
    """Hidden state of a drafter row: its two inputs and its attention over rows 0 .. its own."""
    return hash((7, hidden, token, kv))


class Model(Protocol):
    """Where tokens come from. Both methods are pure; `position` is that of the token returned."""

    def target(self, hidden: int, position: int) -> int:
        """Token sampled from the target's hidden state of `position - 1`."""
        ...

    def draft(self, hidden: int, position: int) -> int:
        """Token proposed from the drafter's hidden state of its row `position - 2`."""
        ...


@dataclass(frozen=True)
class HashModel:
    """Tokens as hashes of hidden states, drawn with noise that target and drafter share.

    With probability `target_follow` (`draft_follow`) the token is the noise of its position, which both know, else
    a hash of the hidden state: agreement is about the product of the two, and every acceptance pattern occurs.
    """

    seed: int = 0
    vocab_size: int = 32
    target_follow: float = 0.9
    draft_follow: float = 0.9

    def _token(self, tag: int, follow: float, hidden: int, position: int) -> int:
        bits = hash((tag, self.seed, hidden, position))
        if (bits >> 17) % 4096 < follow * 4096:
            return (hash((8, self.seed, position)) >> 13) % self.vocab_size
        return (bits >> 31) % self.vocab_size

    def target(self, hidden: int, position: int) -> int:
        """See `Model.target`."""
        return self._token(9, self.target_follow, hidden, position)

    def draft(self, hidden: int, position: int) -> int:
        """See `Model.draft`."""
        return self._token(10, self.draft_follow, hidden, position)


class Sequential:
    """The truth: tokens fed one at a time. No drafts, chunks, rings, pages or slots; nothing is ever rolled back.

    After `tokens`: `states[p]` is the state of tokens[:p]; `kv`, `hidden` hold positions 0 .. len - 1; the drafter's
    rows are 0 .. len - 2, since row i needs token i + 1.
    """

    def __init__(self, conv_width: int, tokens: Sequence[int] = ()) -> None:
        """conv_width: taps of the conv, 1 .. tokens: fed at once."""
        self.conv_width = conv_width
        self.tokens: list[int] = []
        self.inputs = [0] * (conv_width - 1)
        self.states = [INITIAL_STATE]
        self.kv: list[int] = []
        self.hidden: list[int] = []
        self.drafter_kv: list[int] = []
        self.drafter_hidden: list[int] = []
        for token in tokens:
            self.push(token)

    def push(self, token: int) -> None:
        """Process one token: the drafter's row of the position before it, then the target's row."""
        position = len(self.tokens)
        if position:
            before = self.hidden[-1]
            self.drafter_kv.append(drafter_key_value(before, token, position - 1))
            self.drafter_hidden.append(drafter_hidden(before, token, tuple(self.drafter_kv)))
        self.tokens.append(token)
        self.inputs.append(conv_input(token, position))
        self.states.append(fold(self.states[-1], record(self.inputs[-self.conv_width :])))
        self.kv.append(key_value(self.states[-1], position))
        self.hidden.append(hidden_state(self.states[-1], tuple(self.kv)))

    def generate(self, model: Model, limit_len: int, stop_tokens: frozenset[int]) -> str:
        """Append target tokens until one is a stop token or there are `limit_len`. Returns the finish reason."""
        while True:
            token = model.target(self.hidden[-1], len(self.tokens))
            self.push(token)
            if token in stop_tokens:
                return "stop"
            if len(self.tokens) == limit_len:
                return "limit"

    def conv_inputs(self, position: int) -> tuple[int, ...]:
        """Raw conv inputs of positions `position - conv_width + 1 .. position - 1`; zero below position zero."""
        return tuple(self.inputs[position : position + self.conv_width - 1])

    def drafts(self, model: Model, committed_len: int, count: int) -> tuple[int, ...]:
        """What a drafter run afresh over tokens[: committed_len + 1] proposes from position committed_len + 1 on."""
        hidden, kv = self.drafter_hidden[committed_len - 1], self.drafter_kv[:committed_len]
        proposals: list[int] = []
        for position in range(committed_len, committed_len + count):
            token = model.draft(hidden, position + 1)
            proposals.append(token)
            kv.append(drafter_key_value(hidden, token, position))
            hidden = drafter_hidden(hidden, token, tuple(kv))
        return tuple(proposals)

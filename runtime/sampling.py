"""How a request's tokens are drawn: checked, and written for the kernels. docs/sampling.md defines what it means."""

from __future__ import annotations

import math
import numbers
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from runtime import device_sampling
from runtime.buffers import Buffers
from runtime.errors import BadOption, TokenOutOfRange
from runtime.plan import Limits

LEAST_TEMPERATURE = 1e-6  # fp32 logits divided by less could overflow; it is greedy but for exact ties
SEED_RANGE = range(-(1 << 63), 1 << 63)
PROMPT_TOKEN: int = device_sampling.PROMPT_TOKEN.value
MOST_TEMPERATURE = 1e30  # fp32
LEAST_TOP_P = 2.0**-100  # written for less: both keep nothing but the largest, and fp32 has no number near 0 for it
MOST_PENALTY = 1e6
LEAST_PENALTY = 1 / MOST_PENALTY  # fp32 logits divided by less could overflow


@dataclass(frozen=True)
class Sampling:
    """Of one request.

    temperature: 0 is greedy. seed: of the noise; a token's noise is a function of (seed, position). top_k: most likely
    tokens kept, 0 all; top_p: share of probability kept, 1 all; min_p: least probability kept, as a share of the
    largest. repetition_penalty: divides positive logits, and multiplies negative ones, of tokens in prompt or output;
    presence_penalty, frequency_penalty: taken off the logit of a token in the output, once and per occurrence.
    logit_bias: (token, added to its logit), by token. min_tokens: output tokens before any stop.
    """

    temperature: float = 0.0
    seed: int = 0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0

    @property
    def counting(self) -> bool:
        """Whether it matters which tokens there were before."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


RANGES: Mapping[str, tuple[float, float, str]] = {
    "temperature": (0.0, MOST_TEMPERATURE, f"0 (greedy) or from {LEAST_TEMPERATURE:g} to {MOST_TEMPERATURE:g}"),
    "top_p": (0.0, 1.0, "a number above 0, at most 1 (all)"),
    "min_p": (0.0, 1.0, "a number from 0 (all) to 1"),
    "repetition_penalty": (LEAST_PENALTY, MOST_PENALTY, f"from {LEAST_PENALTY:g} to {MOST_PENALTY:g}; 1 is none"),
    "presence_penalty": (-MOST_PENALTY, MOST_PENALTY, f"a number from -{MOST_PENALTY:g} to {MOST_PENALTY:g}"),
    "frequency_penalty": (-MOST_PENALTY, MOST_PENALTY, f"a number from -{MOST_PENALTY:g} to {MOST_PENALTY:g}"),
}


WRITTEN = ("seed", *RANGES)  # as they are, per slot


def sampling_of(limits: Limits, **asked: object) -> Sampling:
    """What was asked, checked and made plain. logit_bias may be a mapping. Raises BadOption or TokenOutOfRange."""
    values: dict[str, object] = {"logit_bias": _biases(limits, asked.pop("logit_bias", ()))}
    for name, value in asked.items():
        values[name] = _number(name, value) if name in RANGES else value
    _whole("seed", asked.get("seed", 0), SEED_RANGE, "a 64-bit signed integer")
    _whole("top_k", asked.get("top_k", 0), range(1 << 31), "an integer: 0 (all) or how many to keep")
    _whole("min_tokens", asked.get("min_tokens", 0), range(1 << 31), "an integer of at least 0")
    return Sampling(**values)  # type: ignore[arg-type]


def _number(name: str, value: object) -> float:
    low, high, allowed = RANGES[name]
    number = _real(value)
    fine = low <= number <= high and (name != "top_p" or number > 0)
    if not fine or (name == "temperature" and 0 < number < LEAST_TEMPERATURE):
        raise BadOption(option=name, value=value, allowed=allowed)
    return number


def _real(value: object) -> float:
    """A number that is no bool, as a float; nan of all else."""
    try:
        return float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
    except (OverflowError, ValueError):
        return math.nan


def _whole(name: str, value: object, allowed: range, words: str) -> None:
    if type(value) is not int or value not in allowed:
        raise BadOption(option=name, value=value, allowed=words)


def _biases(limits: Limits, asked: object) -> tuple[tuple[int, float], ...]:
    allowed = (
        f"a mapping of at most {limits.max_biases} token ids to numbers from -{MOST_PENALTY:g} to {MOST_PENALTY:g}"
    )
    try:
        biases = dict(asked)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise BadOption(option="logit_bias", value=asked, allowed=allowed) from None
    if len(biases) > limits.max_biases:
        raise BadOption(option="logit_bias", value=f"{len(biases)} tokens", allowed=allowed)
    for index, (token, bias) in enumerate(biases.items()):
        if type(token) is not int or not 0 <= token < limits.vocab_size:
            raise TokenOutOfRange(field="logit_bias", index=index, token=token, last=limits.vocab_size - 1)
        if not abs(_real(bias)) <= MOST_PENALTY:
            raise BadOption(option="logit_bias", value=bias, allowed=allowed)
    return tuple(sorted((token, float(bias)) for token, bias in biases.items()))


def write_sampling(
    buffers: Buffers, slot: int, sampling: Sampling, text: Sequence[int], prompt_len: int, masked: bool
) -> None:
    """Tell the kernels how a slot's tokens are drawn. text: what is there before the next; masked: by a grammar."""
    views, limits = buffers.host.views, buffers.plan.limits
    _write_text(buffers, slot, text)
    for name in WRITTEN:
        views[name][slot] = getattr(sampling, name)
    views["top_p"][slot] = max(sampling.top_p, LEAST_TOP_P)
    views["top_k"][slot] = sampling.top_k if sampling.top_k < limits.vocab_size else 0
    views["min_len"][slot] = min_len = min(prompt_len + sampling.min_tokens, limits.max_context)
    views["masked"][slot], views["counted"][slot] = masked, sampling.counting
    views["num_biases"][slot] = len(sampling.logit_bias)
    for at, (token, bias) in enumerate(sampling.logit_bias, slot * limits.max_biases):
        views["bias_tokens"][at], views["bias_values"][at] = token, bias
    more = masked or bool(sampling.logit_bias) or min_len > len(text)
    views["adjusted"][slot] = sampling.counting or more
    if sampling.counting or more:
        counts = token_counts(text, prompt_len, limits.vocab_size) if sampling.counting else None
        row = buffers["token_counts"][slot]
        row.zero_() if counts is None else row.copy_(torch.from_numpy(counts))


def _write_text(buffers: Buffers, slot: int, text: Sequence[int]) -> None:
    """The beginning of slot_text[slot], which the kernels go on with."""
    tokens = text if isinstance(text, array) else array("i", text)
    if buffers.host.shared:
        start = slot * buffers["slot_text"].shape[1]
        buffers.host.views["slot_text"][start : start + len(tokens)] = tokens
    else:
        buffers["slot_text"][slot, : len(tokens)].copy_(torch.frombuffer(tokens, dtype=torch.int32))


def token_counts(text: Sequence[int], prompt_len: int, vocab_size: int) -> np.ndarray:
    """int32 [vocab_size]: how often a token is in the output, plus PROMPT_TOKEN if it is in the prompt."""
    tokens = np.asarray(text, dtype=np.int64)
    counts = np.bincount(tokens[prompt_len:], minlength=vocab_size).astype(np.int32)
    counts[np.unique(tokens[:prompt_len])] += PROMPT_TOKEN
    return counts

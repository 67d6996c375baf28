"""What every worker does: load once, then answer one JSON line with another until the input ends.

Workers run in the interpreter of their peer, so they import nothing of Stepforge; run_ours.py and run_bandwidth.py do.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

FIRST_ID, LAST_ID = 3, 48_000  # ids of prompts: ordinary tokens in every vocabulary

#: (prompts, new tokens of each) -> (seconds until each has its first token, seconds of the rest, number of the rest)
Generate = Callable[[list[list[int]], int], tuple[float, float, int]]


def prompts(ask: dict[str, int]) -> list[list[int]]:
    """The prompts of a request, the same on every side: a linear congruence, seeded per run and prompt."""
    return [_prompt(ask["prompt"], 1000 * ask["seed"] + number) for number in range(ask["batch"])]


def _prompt(length: int, seed: int) -> list[int]:
    span, state, found = LAST_ID - FIRST_ID, (seed * 2_654_435_761 + 12_345) % (1 << 31), []
    for _ in range(length):
        state = (state * 1_103_515_245 + 12_345) % (1 << 31)
        found.append(FIRST_ID + (state >> 8) % span)
    return found


def timed(call: Callable[[], Any]) -> float:
    """Seconds of a call."""
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def by_difference(generate: Callable[[list[list[int]], int], Any]) -> Generate:
    """For libraries that tell no times: the first token by a call for one, the rest by one for all less that.

    The second call has the prompts reversed: one that keeps prefixes would not prefill the same ones again.
    """

    def measured(asked: list[list[int]], new: int) -> tuple[float, float, int]:
        first = timed(lambda: generate(asked, 1))
        if new == 1:
            return first, 0.0, 0
        whole = timed(lambda: generate([prompt[::-1] for prompt in asked], new))
        return first, whole - first, len(asked) * (new - 1)

    return measured


def serve(load: Callable[[], tuple[Generate, dict[str, Any]]], **operations: Callable[[dict[str, Any]], Any]) -> None:
    """Load, say `ready` with the seconds it took and what `load` says of itself, and answer.

    A library that prints to standard output prints to standard error instead. A line with "operation" names one of
    `operations`; any other is a request.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    begun = time.perf_counter()
    generate, about = load()
    _answer(answers, {"load": time.perf_counter() - begun, **about})
    for line in sys.stdin:
        ask = json.loads(line)
        if "operation" in ask:
            _answer(answers, operations[ask["operation"]](ask))
            continue
        first, rest, tokens = generate(prompts(ask), ask["new"])
        _answer(answers, {"first": first, "rest": rest, "tokens": tokens})


def _answer(answers: Any, content: Any) -> None:
    answers.write(json.dumps(content) + "\n")
    answers.flush()

"""Answers by every way of computing them, and by the reference's definition of what a token is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from dsl.reference.sampling import adjust, choose, kept
from runtime.engine import Engine
from runtime.request import Request
from tests.sampling.asks import Ask
from tests.sampling.matcher import Pattern

Answer = tuple[list[int], str | None, str]


def cold_engine(package, weights) -> Engine:
    """One request at a time, no drafts, prompts token by token, no graphs, no checkpoints."""
    return Engine(package, weights, eager=True, drafts=0, prefill_chunk=1, slots=1, checkpoints=False)


def answers(engine: Engine, asks: Sequence[Ask], batch: int, upset: int = 0) -> list[Answer]:
    """All answers, at most `batch` requests under way. upset: a running request is preempted every so many steps."""
    waiting, running, requests = list(asks), 0, []
    steps = 0
    while waiting or engine.busy:
        running = sum(not request.finished for request in requests[-2 * batch :])
        while waiting and running < batch:
            requests.append(waiting.pop(0).submit(engine))
            running += 1
        engine.step()
        steps += 1
        seats = engine.scheduler.seats.all()
        if upset and seats and steps % upset == 0:
            engine.preempt(seats[steps // upset % len(seats)].request)
    return [(request.output, request.finish_reason, engine.result(request).text) for request in requests]


def allowed_by(pattern: str, output: Sequence[int], vocab_size: int) -> Tensor | None:
    """bool [V] of a grammar after an output."""
    if not pattern:
        return None
    matcher = Pattern(pattern)
    assert all(matcher.accept_token(token) for token in output)
    mask = torch.zeros(1, -(-vocab_size // 32), dtype=torch.int32)
    matcher.fill_next_token_bitmask(mask)
    return (mask[0, torch.arange(vocab_size) // 32] >> (torch.arange(vocab_size) % 32)) & 1 == 1


def defined(ask: Ask, output: Sequence[int], logits: Tensor) -> int:
    """The token after prompt + output, from raw logits [V] fp32, by the definitions of docs/sampling.md."""
    how = ask.how
    adjusted = adjust(
        logits,
        ask.prompt,
        output,
        logit_bias=dict(how.logit_bias),
        repetition_penalty=how.repetition_penalty,
        presence_penalty=how.presence_penalty,
        frequency_penalty=how.frequency_penalty,
        stops=ask.stop_tokens,
        min_tokens=how.min_tokens,
        allowed=allowed_by(ask.pattern, output, len(logits)),
    )
    possible = torch.isfinite(adjusted)
    if how.temperature > 0:
        possible = kept(adjusted, how.temperature, how.top_k, how.top_p, how.min_p)
    position = len(ask.prompt) + len(output)
    return int(choose(adjusted.where(possible, -torch.inf), how.temperature, how.seed, position))


class Scorer:
    """Keeps the raw logits of every token of an engine's requests, as it comes."""

    def __init__(self, engine: Engine) -> None:
        self.logits: dict[int, list[Tensor]] = {}
        report, executor = engine.scheduler._report, engine.scheduler.executor

        def scored(seat, position, tokens, emitted) -> None:
            rows = executor.score(seat.slot, range(position - 1, position - 1 + len(tokens)))
            self.logits.setdefault(seat.request.id, []).extend(rows)
            report(seat, position, tokens, emitted)

        engine.scheduler._report = scored

    def of(self, request: Request) -> Iterable[tuple[list[int], int, Tensor]]:
        """(output before it, token, logits) of every output token."""
        for at, (token, logits) in enumerate(zip(request.output, self.logits[request.id], strict=True)):
            yield request.output[:at], token, logits


def undefined(engine: Engine, asks: Sequence[Ask]) -> tuple[int, int]:
    """(tokens drawn, those that are not what the reference draws) of all asks together."""
    scorer, tokens, odd = Scorer(engine), 0, 0
    requests = [ask.submit(engine) for ask in asks]
    while engine.busy:
        engine.step()
    for ask, request in zip(asks, requests, strict=True):
        for before, token, logits in scorer.of(request):
            refused = request.finish_reason == "grammar" and len(before) == len(request.output) - 1
            if not refused:
                tokens += 1
                odd += defined(ask, before, logits) != token
    return tokens, odd

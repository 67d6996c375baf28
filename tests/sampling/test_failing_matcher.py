"""A matcher that raises ends its own request, and nobody else's."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import pytest

from runtime.bench.load import leaks
from runtime.engine import Engine
from runtime.errors import GrammarFailed
from runtime.request import Request
from tests.sampling.matcher import Pattern
from tests.sampling.model import TEXT, package, weights

PROMPT = list(TEXT[:20])
OPTIONS: dict[str, Any] = {"max_new_tokens": 24, "stop_at_eos": False, "temperature": 1.0}
METHODS = ("fill_next_token_bitmask", "accept_token", "rollback", "is_terminated")


class Failing(Pattern):
    """A matcher whose `method` raises at its call number `at`."""

    def __init__(self, method: str, at: int) -> None:
        super().__init__("[a-z ]+", most=20)
        works, calls = getattr(self, method), count()

        def call(*arguments: Any) -> Any:
            if next(calls) == at:
                raise ZeroDivisionError("this grammar is wrong")
            return works(*arguments)

        setattr(self, method, call)


def others(engine: Engine) -> list[Request]:
    """Requests with and without a grammar."""
    return [
        engine.submit(PROMPT, seed=4, **OPTIONS),
        engine.submit(PROMPT, seed=5, grammar=Pattern("(ab|cd)+"), **OPTIONS),
    ]


def ends(engine: Engine, requests: list[Request]) -> list[tuple[list[int], str | None]]:
    """What is answered, once all has."""
    while engine.busy:
        engine.step()
    return [(request.output, request.finish_reason) for request in requests]


@pytest.fixture(scope="module")
def engine():
    return Engine(package(), weights(), drafts=3)


@pytest.fixture(scope="module")
def alone(engine):
    return ends(engine, others(engine))


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("method", METHODS)
def test_others_go_on(engine, alone, method, at) -> None:
    running = others(engine)
    failing = engine.submit(PROMPT, seed=2, grammar=Failing(method, at), **OPTIONS)
    assert ends(engine, running) == alone
    assert failing.finish_reason == "error" and "ZeroDivisionError: this grammar is wrong" in str(failing.error)
    assert isinstance(failing.error.__cause__, ZeroDivisionError)
    assert not list(leaks(engine))


def test_so_does_one_that_comes_back_after_a_preemption(engine, alone) -> None:
    """Its last token is taken back and drawn again."""
    for method in ("rollback", "accept_token"):
        matcher = Pattern("[a-z ]+", most=20)
        failing = engine.submit(PROMPT, seed=2, grammar=matcher, **OPTIONS)
        while len(failing.output) < 3:
            engine.step()
        engine.scheduler.preempt(failing)

        def fail(*_: Any) -> None:
            raise ZeroDivisionError

        setattr(matcher, method, fail)
        running = others(engine)
        assert ends(engine, running) == alone
        assert failing.finish_reason == "error" and not list(leaks(engine))


def test_who_waits_for_the_answer_is_told(engine) -> None:
    with pytest.raises(GrammarFailed, match=r"request \d+ raised ZeroDivisionError"):
        engine.generate(PROMPT, grammar=Failing("accept_token", 2), **OPTIONS)
    with pytest.raises(GrammarFailed, match=r"request \d+ raised ZeroDivisionError"):
        list(engine.stream(PROMPT, grammar=Failing("accept_token", 2), **OPTIONS))
    assert not engine.busy


def test_asyncio_streams_end_one_by_one() -> None:
    async def tokens(engine: Engine, **options: Any) -> list[int]:
        return [token async for piece in engine.astream(PROMPT, **OPTIONS, **options) for token in piece.tokens]

    async def both(engine: Engine) -> list[Any]:
        streams = tokens(engine, grammar=Failing("accept_token", 2)), tokens(engine, seed=4)
        found = await asyncio.gather(*streams, return_exceptions=True)
        await engine.front.close()
        return found

    with Engine(package(), weights(), drafts=3) as engine:
        failed, answered = asyncio.run(both(engine))
        assert isinstance(failed, GrammarFailed)
        assert answered == list(engine.generate(PROMPT, seed=4, **OPTIONS).tokens)

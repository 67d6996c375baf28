"""However it is computed, a token is what the definition says; see docs/sampling.md."""

from __future__ import annotations

import re
from array import array
from dataclasses import replace
from random import Random

import pytest

from runtime import buffers
from runtime.engine import Engine
from runtime.errors import BadOption, GrammarHasOneState, TokenOutOfRange
from tests.cpu.engine.toys import poison_free
from tests.sampling.asks import Ask, How, draw_ask
from tests.sampling.chi_square import deviation
from tests.sampling.compare import answers, cold_engine, undefined
from tests.sampling.distribution import FILTERS, drawn
from tests.sampling.matcher import Pattern
from tests.sampling.model import SPEC, TEXT, package, weights

VOCAB = SPEC.vocab_size
ASKS = [draw_ask(Random(number), VOCAB, TEXT) for number in range(120)]


@pytest.fixture(scope="module")
def cold():
    return answers(cold_engine(package(), weights()), ASKS, 1)


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("drafts", [0, 1, 3, 7, "auto"])
def test_answers_are_the_cold_ones(cold, drafts, batch: int) -> None:
    engine = Engine(package(), weights(), drafts=drafts)
    found = answers(engine, ASKS, batch, upset=13)
    for ask, got, expected in zip(ASKS, found, cold, strict=True):
        assert got == expected, ask
    assert engine.stats().preemptions > 3


@pytest.mark.parametrize("drafter", ["mtp", "lookup"])
def test_a_device_apart_from_the_host_gives_the_same(cold, drafter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on CUDA: what the kernels own is in no mirror, what is nobody's is poisoned, and steps are run twice."""
    monkeypatch.setattr(buffers, "mirrored", lambda _: True)
    engine = Engine(package(), weights(), drafts="auto", drafter=drafter, prefill_budget=24, canary=0.1)
    host, step = engine.buffers.host, engine.scheduler.step
    assert not host.shared

    def poisoned():
        for name in buffers.DEVICE_ONLY:
            host.views[name][:] = array("i", [buffers.POISON_INT]) * len(host.views[name])
        poison_free(engine)
        return step()

    engine.scheduler.step = poisoned
    assert answers(engine, ASKS, 8, upset=13) == cold
    assert engine.stats().canary_checked > 5 and engine.stats().canary_differed == 0


def test_every_token_is_what_the_definition_draws() -> None:
    """At a boundary that rounding decides the reference, in float64, may keep another token: those are few."""
    tokens, odd = undefined(Engine(package(), weights(), drafts=3), ASKS)
    assert tokens > 500
    assert odd <= tokens // 500


@pytest.mark.parametrize("how", FILTERS, ids=lambda how: f"{how.top_k}-{how.top_p}-{how.min_p}")
def test_samples_follow_the_filtered_softmax(how: How) -> None:
    samples, exact = drawn(how, 4000)
    assert set(samples) <= set(exact.nonzero()[:, 0].tolist())
    assert deviation(samples, exact) < 4.0


def test_the_chi_square_sees_a_wrong_temperature() -> None:
    samples, _ = drawn(How(temperature=1.1), 4000)
    _, exact = drawn(How(temperature=1.0), 500)
    assert deviation(samples, exact) > 6.0


# Options one by one


def answer(engine: Engine, **options) -> tuple[list[int], str | None, str]:
    request = engine.submit(list(TEXT[:20]), **({"max_new_tokens": 24, "stop_at_eos": False} | options))
    while engine.busy:
        engine.step()
    return request.output, request.finish_reason, engine.result(request).text


@pytest.fixture(scope="module")
def engine():
    return Engine(package(), weights(), drafts=3)


def test_options_at_rest_change_nothing(engine) -> None:
    plain = answer(engine, temperature=0.9, seed=3)
    same = {"top_k": VOCAB, "top_p": 1.0, "min_p": 0.0, "logit_bias": {}, "repetition_penalty": 1, "min_tokens": 0}
    assert answer(engine, temperature=0.9, seed=3, **same) == plain
    assert answer(engine, temperature=0.9, seed=3, logit_bias={7: 0.0}, presence_penalty=-0.0) == plain


def test_one_kept_token_is_greedy(engine) -> None:
    greedy = answer(engine)
    for options in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}):
        assert answer(engine, temperature=1.5, seed=8, **options) == greedy


def test_a_biased_token_comes_always_or_never(engine) -> None:
    output, _, _ = answer(engine)
    assert set(answer(engine, logit_bias={65: 1000.0})[0]) == {65}
    assert output[0] not in answer(engine, logit_bias={output[0]: -1000.0})[0]


def test_a_penalised_token_does_not_come_twice(engine) -> None:
    output, _, _ = answer(engine, presence_penalty=1000.0, temperature=1.0, seed=1)
    assert len(set(output)) == len(output)
    output, _, _ = answer(engine, repetition_penalty=1e6, logit_bias=dict.fromkeys(range(60), 50.0))
    assert not set(output) & set(TEXT[:20])


def test_stops_wait_for_min_tokens(engine) -> None:
    output, _, _ = answer(engine)
    stop = output[2]
    assert len(answer(engine, stop_tokens=[stop])[0]) == output.index(stop) + 1
    later, reason, _ = answer(engine, stop_tokens=[stop], min_tokens=10)
    assert len(later) > 10 and stop not in later[:10] and reason in ("stop", "limit")


@pytest.mark.parametrize("start", range(0, 20, 3))
@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_stop_string_ends_the_answer(engine, start: int, size: int) -> None:
    output, _, _ = answer(engine, temperature=1.0, seed=5, logit_bias={256: -100.0, 257: -100.0})
    stop = bytes(output[start : start + size])
    options = {"temperature": 1.0, "seed": 5, "logit_bias": {256: -100.0, 257: -100.0}}
    found, reason, text = answer(engine, stop=[b"never so long a text as this", stop], **options)
    at = bytes(output).find(stop)
    assert reason == "stop" and found == output[: at + len(stop)]
    assert text == bytes(output[:at]).decode(errors="replace")
    pieces = list(engine.stream(list(TEXT[:20]), max_new_tokens=24, stop_at_eos=False, stop=[stop], **options))
    assert "".join(piece.text for piece in pieces) == text
    assert [token for piece in pieces for token in piece.tokens] == found


def test_a_stop_string_waits_for_min_tokens(engine) -> None:
    """In the text too, at once and in pieces."""
    options = {"temperature": 1.0, "seed": 5, "logit_bias": dict.fromkeys(range(97, 103), 30.0)}
    output, _, _ = answer(engine, **options)
    letter = next(token for token in output[2:9] if token in output[10:])
    last = next(at for at in range(10, 24) if output[at] == letter)
    found, reason, text = answer(engine, stop=bytes([letter]), min_tokens=10, **options)
    assert (found, reason) == (output[: last + 1], "stop")
    assert text == bytes(output[:last]).decode(errors="replace")
    more = {"max_new_tokens": 24, "stop_at_eos": False, "stop": bytes([letter]), "min_tokens": 10}
    assert "".join(piece.text for piece in engine.stream(list(TEXT[:20]), **more, **options)) == text


def test_what_follows_a_stop_string_resumes_right(engine) -> None:
    """The answer's end is a checkpoint although the device had gone further."""
    output, _, _ = answer(engine, temperature=1.0, seed=6)
    stop = bytes([output[5]])
    cut, _, _ = answer(engine, temperature=1.0, seed=6, stop=stop)
    prompt = [*TEXT[:20], *cut, 33, 34]
    followed = engine.submit(prompt, max_new_tokens=9, stop_at_eos=False)
    while engine.busy:
        engine.step()
    assert followed.restored_position == len(prompt) - 3
    fresh = cold_engine(package(), weights())
    expected = fresh.submit(prompt, max_new_tokens=9, stop_at_eos=False)
    while fresh.busy:
        fresh.step()
    assert followed.output == expected.output


BYTES_ONLY = {"temperature": 1.0, "seed": 5, "logit_bias": {256: -100.0, 257: -100.0}, "stop_at_eos": False}


def said(tokens) -> str:
    return bytes(tokens).decode(errors="replace")


def test_a_stop_string_before_min_tokens_is_text(engine) -> None:
    output, _, _ = answer(engine, **BYTES_ONLY)
    options = {**BYTES_ONLY, "stop": bytes(output[2:4]), "min_tokens": 10}
    found, reason, text = answer(engine, **options)
    assert (found, reason, text) == (output, "limit", said(output))
    pieces = engine.stream(list(TEXT[:20]), max_new_tokens=24, **options)
    assert "".join(piece.text for piece in pieces) == text


def test_a_fork_goes_on_after_a_stop_string(engine) -> None:
    output, _, _ = answer(engine, **BYTES_ONLY)
    stopped = engine.generate(list(TEXT[:20]), stop=bytes(output[2:4]), **BYTES_ONLY).request
    child = stopped.fork(seed=7, at=len(stopped.tokens), max_new_tokens=6)
    while engine.busy:
        engine.step()
    assert engine.result(child).text == said(child.output) and len(child.output) == 10


def test_a_stream_ends_with_what_was_held_back(engine) -> None:
    """However the request ends: what might have become a stop string has not."""
    output, _, _ = answer(engine, **BYTES_ONLY)
    request = engine.submit(list(TEXT[:20]), stop=bytes(output[:5]) + b"!?", deadline=1e9, **BYTES_ONLY)
    pieces = []
    for piece in engine.stream(request):
        pieces.append(piece)
        if len(request.output) >= 3:
            request.options = replace(request.options, deadline=0.0)
    assert request.finish_reason == "deadline"
    assert "".join(piece.text for piece in pieces) == engine.result(request).text == said(request.output)


class OnlyEnd:
    """A matcher that allows `end`, or nothing."""

    def __init__(self, end: int | None) -> None:
        self.end, self.over = end, False

    def fill_next_token_bitmask(self, bitmask, index: int = 0) -> None:
        bitmask[index] = 0
        if self.end is not None:
            bitmask[index, self.end // 32] = 1 << self.end % 32

    def accept_token(self, token: int) -> bool:
        self.over = token == self.end
        return self.over

    def rollback(self, num_tokens: int) -> None:
        self.over = False

    def is_terminated(self) -> bool:
        return self.over


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.5, "min_p": 0.1}])
def test_where_nothing_is_allowed_the_grammar_ends_it(engine, options) -> None:
    """Also if the token that has to be drawn is a stop token, or the only one allowed must not come yet."""
    eos = VOCAB - 1
    for stops in ((), (eos,)):
        output, reason, text = answer(engine, grammar=OnlyEnd(None), stop_tokens=stops, **options)
        assert (len(output), reason, text) == (1, "grammar", "")
    _, reason, _ = answer(engine, grammar=OnlyEnd(eos), stop_tokens=[eos], min_tokens=4, **options)
    assert reason == "grammar"
    assert answer(engine, grammar=OnlyEnd(eos), stop_tokens=[eos], **options) == ([eos], "stop", "")


def test_no_two_requests_share_a_matcher(engine) -> None:
    with pytest.raises(BadOption, match="no other request"):
        engine.generate_batch([[1, 2], [3]], grammar=Pattern("(ab|cd)+"))
    assert not engine.busy


EXTREMES = [
    {"temperature": 1e-6}, {"temperature": 1e30}, {"top_p": 5e-324}, {"top_p": 1e-45}, {"top_p": 1 - 1e-12},
    {"min_p": 5e-324}, {"repetition_penalty": 1e-6}, {"repetition_penalty": 1e6}, {"frequency_penalty": 1e6},
    {"presence_penalty": -1e6}, {"logit_bias": {7: 1e6}},
]  # fmt: skip


@pytest.mark.parametrize("extreme", EXTREMES, ids=str)
@pytest.mark.parametrize("filters", [{}, {"min_p": 0.1}, {"top_k": 3}, {"top_p": 0.9}], ids=str)
def test_an_extreme_option_is_still_what_it_means(engine, extreme, filters) -> None:
    how = How(**{"temperature": 1.0, "seed": 3} | filters | extreme | {"logit_bias": ()})
    how = replace(how, logit_bias=tuple(extreme.get("logit_bias", {}).items()))
    tokens, odd = undefined(Engine(package(), weights(), drafts=3), [Ask(tuple(TEXT[:20]), 8, how)])
    assert (tokens, odd) == (8, 0)


def test_a_grammar_is_kept_and_ends_the_answer(engine) -> None:
    matcher = Pattern("[a-z ]+", most=20)
    output, reason, text = answer(engine, temperature=1.0, seed=2, grammar=matcher)
    assert reason == "stop" and len(output) == 20 and text == bytes(output).decode()
    assert re.fullmatch("[a-z ]+", text)
    assert matcher.text == bytes(output) and matcher.rolled_back > 0


def test_forks_and_rewinds_keep_the_options(engine) -> None:
    ask = Ask(tuple(TEXT[:17]), 20, How(1.0, 4, top_p=0.9, repetition_penalty=1.4, frequency_penalty=0.5))
    parent = ask.submit(engine)
    while len(parent.output) < 6:
        engine.step()
    child = parent.fork(seed=9)
    engine.cancel(parent)
    while engine.busy:
        engine.step()
    cold = cold_engine(package(), weights())
    kept_tokens = len(child.tokens[: len(parent.tokens)]) - len(ask.prompt)
    expected = cold.submit(
        list(ask.prompt), max_new_tokens=20, stop_at_eos=False, temperature=1.0, seed=4, top_p=0.9,
        repetition_penalty=1.4, frequency_penalty=0.5,
    )  # fmt: skip
    while len(expected.output) < kept_tokens:
        cold.step()
    again = expected.fork(seed=9, at=len(parent.tokens))
    cold.cancel(expected)
    while cold.busy:
        cold.step()
    assert child.output == again.output


def test_a_request_with_a_grammar_is_not_forked(engine) -> None:
    first = engine.submit(list(TEXT[:9]), max_new_tokens=4, grammar=Pattern("[a-z ]+"))
    try:
        engine.step()
        with pytest.raises(GrammarHasOneState, match="submit its text anew instead of a fork"):
            first.fork(seed=1)
    finally:
        engine.cancel(first)


WRONG = [
    ({"top_k": -1}, BadOption), ({"top_k": True}, BadOption), ({"top_k": 2.0}, BadOption), ({"top_p": 0}, BadOption),
    ({"top_p": 1.01}, BadOption), ({"top_p": "1"}, BadOption), ({"min_p": -0.1}, BadOption),
    ({"min_p": float("nan")}, BadOption), ({"repetition_penalty": 0}, BadOption),
    ({"repetition_penalty": float("inf")}, BadOption), ({"presence_penalty": 1e9}, BadOption),
    ({"frequency_penalty": None}, BadOption), ({"logit_bias": {VOCAB: 1}}, TokenOutOfRange),
    ({"logit_bias": {-1: 1}}, TokenOutOfRange), ({"logit_bias": {1: float("nan")}}, BadOption),
    ({"logit_bias": dict.fromkeys(range(65), 1)}, BadOption), ({"logit_bias": 5}, BadOption),
    ({"grammar": "a*"}, BadOption), ({"min_tokens": -1}, BadOption), ({"stop": ""}, BadOption),
    ({"stop": ["a"] * 17}, BadOption), ({"stop": [3]}, BadOption), ({"stop": "a" * 1025}, BadOption),
    ({"temperature": 1e-40}, BadOption), ({"seed": 1 << 63}, BadOption), ({"temperature": 1e39}, BadOption),
    ({"repetition_penalty": 1e-38}, BadOption), ({"logit_bias": {1: 10**400}}, BadOption),
    ({"logit_bias": 0}, BadOption), ({"logit_bias": {1: True}}, BadOption),
]  # fmt: skip


@pytest.mark.parametrize(("options", "error"), WRONG, ids=lambda value: str(value)[:40])
def test_what_makes_no_sense_is_refused(engine, options, error) -> None:
    with pytest.raises(error):
        engine.submit([1, 2, 3], **options)
    assert not engine.busy

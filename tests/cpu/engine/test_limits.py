"""Stops, limits, refusals and streams."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from runtime import errors
from runtime.cpu import get_num_threads, set_num_threads
from runtime.engine import Engine
from tests.cpu.engine.toys import Ask, Oracle, agreeing_weights, drain, toy_spec, write_toy

PROMPT = tuple(b"pack my box with five dozen")


@pytest.fixture(scope="module")
def engine(package, weights):
    return Engine(package, weights, drafts=7)


@pytest.mark.parametrize("at", [0, 1, 2, 3, 5, 8])
def test_answer_ends_with_its_first_stop_token(package, weights, oracle, at):
    free, _ = oracle(Ask(PROMPT, 30, temperature=1.2, seed=9))
    stop = free[at]
    ask = Ask(PROMPT, 30, temperature=1.2, seed=9, stop_tokens=(stop,))
    with Engine(package, weights, drafts=7) as engine:
        result = engine.generate(list(PROMPT), max_new_tokens=30, temperature=1.2, seed=9, stop_tokens=(stop,))
    assert list(result.tokens) == free[: free.index(stop) + 1] == oracle(ask)[0]
    assert result.finish_reason == "stop"
    assert result.text == bytes(t for t in result.tokens[:-1] if t < 256).decode(errors="replace")


@pytest.mark.parametrize("tokens", range(1, 12))
def test_answer_has_exactly_the_tokens_asked_for(engine, oracle, tokens):
    ask = Ask(PROMPT, tokens)
    request = ask.submit(engine)
    drain(engine)
    assert len(request.output) == tokens
    assert (request.output, request.finish_reason) == oracle(ask)


def test_context_limits_the_answer(engine, oracle):
    limit = engine.package.plan.limits.max_context
    for length in (limit - 1, limit - 2, limit - 9):
        ask = Ask((PROMPT * 5)[:length], 50)
        request = ask.submit(engine)
        drain(engine, poison=True)
        assert len(request.tokens) == limit
        assert (request.output, request.finish_reason) == oracle(ask)


@pytest.mark.parametrize(
    ("prompt", "options", "error"),
    [
        ([], {}, errors.PromptEmpty),
        ([1] * 120, {}, errors.PromptTooLong),
        ([1, 258], {}, errors.TokenOutOfRange),
        ([-1], {}, errors.TokenOutOfRange),
        ([True], {}, errors.NotTokenIds),
        ([1], {"max_new_tokens": 0}, errors.BadOption),
        ([1], {"temperature": -0.1}, errors.BadOption),
        ([1], {"temperature": float("nan")}, errors.BadOption),
        ([1], {"temperature": 10**400}, errors.BadOption),
        ([1], {"temperature": 10**5000}, errors.BadOption),
        ([1], {"temperature": "warm"}, errors.BadOption),
        ([1], {"temperature": None}, errors.BadOption),
        ([1], {"max_new_tokens": "many"}, errors.BadOption),
        (None, {}, errors.NotTokenIds),
        ([1.5], {}, errors.NotTokenIds),
        (np.array([[1, 2]]), {}, errors.NotTokenIds),
        ([1], {"seed": 1 << 63}, errors.BadOption),
        ([1], {"stop_tokens": (300,)}, errors.TokenOutOfRange),
        ([1], {"stop_tokens": range(9)}, errors.TooManyStopTokens),
    ],
)
def test_bad_requests_are_refused_with_their_code(engine, prompt, options, error):
    with pytest.raises(error) as refused:
        engine.submit(prompt, **options)
    assert str(refused.value).endswith(f"[{error.code}]")
    assert not engine.busy


@pytest.mark.parametrize(
    "options",
    [
        {"drafts": -1},
        {"drafts": True},
        {"slots": 0},
        {"slots": 5},
        {"prefill_chunk": 17},
        {"threads": 0},
        {"max_queue": 0},
        {"drafts": 2, "drafting": False},
        {"drafting": "no"},
        {"drafting": 1},
    ],
)
def test_bad_engine_options_are_refused(package, weights, options):
    with pytest.raises(errors.BadOption):
        Engine(package, weights, **options)


def test_queue_is_bounded_and_closed_engines_refuse(package, weights):
    engine = Engine(package, weights, slots=1, max_queue=2)
    first, second = engine.submit([1]), engine.submit([2])
    with pytest.raises(errors.QueueFull):
        engine.submit([3])
    engine.step()
    engine.submit([3])
    with pytest.raises(errors.ForeignRequest):
        Engine(package, weights).cancel(first)
    engine.close()
    assert first.finish_reason == second.finish_reason == "cancelled"
    for call in (engine.step, lambda: engine.submit([1]), lambda: engine.set_drafts(1)):
        with pytest.raises(errors.EngineClosed):
            call()


def test_more_drafts_than_the_package_has_are_refused(package, weights):
    with pytest.raises(errors.BadOption):
        Engine(package, weights, drafts=100)
    with Engine(package, weights) as engine:
        assert engine.scheduler.drafts == 3
        with pytest.raises(errors.BadOption):
            engine.set_drafts(8)
    with Engine(package, weights, drafts=0) as engine, pytest.raises(errors.BadOption):
        engine.set_drafts(1)


def test_stream_gives_the_answer_in_pieces_and_cancels_when_left(package, weights):
    with Engine(package, weights, drafts=3) as engine:
        whole = engine.generate(bytes(PROMPT), max_new_tokens=20, temperature=1.0)
        pieces = list(engine.stream(bytes(PROMPT), max_new_tokens=20, temperature=1.0))
        assert tuple(token for piece in pieces for token in piece.tokens) == whole.tokens
        assert "".join(piece.text for piece in pieces) == whole.text
        request = engine.submit(bytes(PROMPT), max_new_tokens=50)
        with contextlib.closing(engine.stream(request)) as pieces:
            next(pieces)
        assert request.finish_reason == "cancelled" and not engine.busy


def test_prompts_of_a_batch_share_the_slots(package, weights, oracle):
    asks = [Ask(PROMPT[: 3 + i], 10, temperature=1.0, seed=7) for i in range(9)]
    with Engine(package, weights, drafts=2) as engine:
        results = engine.generate_batch([list(a.prompt) for a in asks], max_new_tokens=10, temperature=1.0, seed=7)
    assert [list(result.tokens) for result in results] == [oracle(ask)[0] for ask in asks]


def test_weights_are_checked_before_anything_is_allocated(package, monkeypatch):
    from runtime import assemble as module

    good = agreeing_weights(toy_spec())
    monkeypatch.setattr(module, "Buffers", lambda *_: pytest.fail("allocated"))
    monkeypatch.setattr(module, "HostPool", lambda *_: pytest.fail("allocated"))
    name = "layers.0.mixer.in_proj.weight"
    bad = {
        errors.WeightsMissing: {k: v for k, v in good.items() if k != name},
        errors.WeightsForeign: good | {"extra.weight": good[name]},
        errors.WeightsShape: good | {name: good[name].t().contiguous()},
        errors.WeightsDtype: good | {name: good[name].float()},
    }
    for error, weights in bad.items():
        with pytest.raises(error, match="extra.weight" if error is errors.WeightsForeign else "in_proj"):
            Engine(package, weights)
    with pytest.raises(errors.WeightsNotFound):
        Engine(package, "nowhere.safetensors")


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (None, errors.BadOption),
        (7, errors.BadOption),
        ({3: torch.zeros(2)}, errors.BadOption),
        ({"a": 1.0}, errors.BadOption),
        ({"a": None}, errors.BadOption),
        ({"a": torch.zeros(2, device="meta")}, errors.BadOption),
        ({"a": torch.zeros(2, 2).to_sparse()}, errors.BadOption),
        ("x" * 10_000, errors.WeightsNotFound),
        ("a\0b", errors.WeightsNotFound),
    ],
)
def test_what_are_no_weights_is_refused_with_a_code(package, given, error):
    with pytest.raises(error):
        Engine(package, given)


def test_requests_of_nobody_and_of_others_are_refused(package, weights, engine):
    with Engine(package, weights) as other:
        foreign = other.submit([1])
        for call in (engine.cancel, engine.result, lambda request: next(engine.stream(request))):
            with pytest.raises(errors.ForeignRequest):
                call(foreign)
    for call in (engine.cancel, engine.result):
        with pytest.raises(errors.BadOption):
            call(None)
    mine = engine.submit([1])
    with pytest.raises(errors.BadOption, match="temperature"):
        next(engine.stream(mine, temperature=1.0))
    engine.cancel(mine)


def test_ids_may_come_from_numpy(engine, oracle):
    ask = Ask((5, 6, 7), 6, stop_tokens=(9,))
    for prompt in (np.array([5, 6, 7]), [np.int32(5), np.uint8(6), 7]):
        result = engine.generate(prompt, max_new_tokens=6, stop_tokens=np.array([9]))
        assert list(result.tokens) == oracle(ask)[0]


def test_engines_in_threads_take_turns_where_they_record(package, weights, oracle):
    asks = [Ask(PROMPT[: 5 + i], 10, temperature=1.0, seed=i) for i in range(4)]
    wanted = [oracle(ask) for ask in asks]

    def answer(ask):
        with Engine(package, weights, drafts=2) as own:
            request = ask.submit(own)
            drain(own)
            return request.output, request.finish_reason

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(answer, asks)) == wanted


def test_buffers_are_aligned(engine):
    assert all(engine.buffers[name].data_ptr() % 64 == 0 for name in engine.package.plan.buffers)


def test_threads_do_not_change_tokens(package, weights, oracle):
    before, ask = get_num_threads(), Ask(PROMPT, 30, temperature=0.8, seed=1)
    try:
        for threads in (1, 2, 3):
            with Engine(package, weights, drafts=3, threads=threads) as engine:
                request = ask.submit(engine)
                drain(engine)
            assert get_num_threads() == threads
            assert request.output == oracle(ask)[0]
    finally:
        set_num_threads(before)


def test_the_smallest_engine_runs(tmp_path, cache):
    """One slot, chunks of one token, no drafter: every buffer at its smallest."""
    spec = toy_spec(mtp=False, max_slots=1, prefill_chunk=1, checkpoint_slots=2)
    package, weights = write_toy(tmp_path / "package", cache, spec), agreeing_weights(spec)
    ask = Ask(PROMPT, 12, temperature=0.8, seed=4, stop_tokens=(3,))
    with Engine(package, weights) as engine:
        request = ask.submit(engine)
        drain(engine)
    assert (request.output, request.finish_reason) == Oracle(package, weights)(ask)

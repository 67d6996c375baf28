"""What users do wrong, and what they are told: one error each, and the engine goes on."""

from __future__ import annotations

import dataclasses
import shutil
import time

import pytest

from runtime import errors
from runtime.engine import Engine
from tests.cpu.engine.toys import drain

PROMPT = tuple(b"jackdaws love my big sphinx")


@pytest.mark.parametrize("temperature", [1e-40, 1e-30, 1e-7])
def test_a_temperature_that_overflows_is_refused(package, weights, temperature):
    with Engine(package, weights) as engine, pytest.raises(errors.BadOption, match="from 1e-06 to"):
        engine.submit(list(PROMPT), temperature=temperature)


def test_the_least_temperature_is_greedy(package, weights):
    with Engine(package, weights) as engine:
        assert engine.generate(list(PROMPT), max_new_tokens=20, temperature=1e-6, stop_at_eos=False).tokens == tuple(
            engine.generate(list(PROMPT), max_new_tokens=20, stop_at_eos=False).tokens
        )


def test_a_view_kept_from_before_is_closed_with_the_engine(package, weights):
    engine = Engine(package, weights)
    cache, store = engine.cache, engine.checkpoints
    engine.owner = -1  # as if a front ran it
    for call in (cache.explain, cache.clear, store.flush, lambda: cache.find([1]), lambda: cache.pin([1])):
        with pytest.raises(errors.EngineInUse):
            call()
    engine.owner = None
    engine.close()
    for call in (cache.explain, cache.clear, store.flush, lambda: store.save("x"), lambda: store.load("x")):
        with pytest.raises(errors.EngineClosed):
            call()


def test_an_engine_is_closed_even_if_its_directory_cannot_be_written(package, weights, tmp_path):
    folder = tmp_path / "kept"
    engine = Engine(package, weights, checkpoint_dir=folder)
    engine.generate(list(PROMPT), max_new_tokens=3)
    engine.checkpoints.flush()
    shutil.rmtree(folder)
    folder.write_text("in the way")
    engine.scheduler.cache.clear()
    engine.generate(list(PROMPT), max_new_tokens=4)
    with pytest.raises(errors.RuntimeStateError):
        engine.close()
    with pytest.raises(errors.EngineClosed):
        engine.submit([1])


def test_options_that_can_be_read_once_hold_for_a_whole_batch(package, weights):
    with Engine(package, weights) as engine:
        [first] = engine.generate_batch([list(PROMPT)], max_new_tokens=8, stop_at_eos=False)
        stop = first.tokens[3]
        results = engine.generate_batch([list(PROMPT)] * 3, max_new_tokens=8, stop_tokens=(t for t in [stop]))
        assert {result.finish_reason for result in results} == {"stop"}


def test_a_request_that_was_late_can_go_on(package, weights):
    with Engine(package, weights, drafts=0) as engine:
        request = engine.submit(list(PROMPT), max_new_tokens=30, stop_at_eos=False, deadline=60.0)
        while len(request.output) < 5:
            engine.step()
        request.options = dataclasses.replace(request.options, deadline=time.perf_counter())
        engine.step()
        assert request.finish_reason == "deadline"
        engine.rewind(request, request.prompt_len)
        drain(engine)
        whole = engine.generate(list(PROMPT), max_new_tokens=30, stop_at_eos=False).tokens
        assert tuple(request.output) == whole and request.finish_reason == "limit"


@pytest.mark.parametrize("tokens", [[10**5000], [-1]])
def test_a_token_of_any_size_can_be_refused(package, weights, tokens):
    with Engine(package, weights) as engine, pytest.raises(errors.TokenOutOfRange):
        engine.submit(tokens)


@pytest.mark.parametrize("path", ["", "a\0b", "\udc80\ud800", 7, None])
def test_paths_that_are_none_are_refused(package, weights, path):
    with Engine(package, weights) as engine:
        with pytest.raises(errors.BadOption):
            engine.checkpoints.save(path)
        with pytest.raises(errors.BadOption):
            engine.checkpoints.load(path)

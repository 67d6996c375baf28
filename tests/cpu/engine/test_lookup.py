"""Drafts out of the text itself: what they are, and that they change no token."""

from __future__ import annotations

from random import Random

import pytest

from runtime.engine import Engine
from runtime.errors import BadOption
from tests.cpu.engine.toys import Oracle, agreeing_weights, drain, draw_ask, toy_spec, write_toy

PLAIN = toy_spec(mtp=False, max_drafts=7)


@pytest.fixture(scope="module")
def plain_package(tmp_path_factory, cache):
    return write_toy(tmp_path_factory.mktemp("plain") / "package", cache, PLAIN)


@pytest.fixture(scope="module")
def plain_weights():
    return agreeing_weights(PLAIN)


def looked_up(text: list[int], count: int, ngram: int = 3) -> list[int]:
    """By its definition: the longest match of the last 1 .. ngram tokens, of several the latest."""
    last = len(text) - 1
    for size in range(ngram, 0, -1):
        ends = [at for at in range(size - 1, last) if text[at - size + 1 : at + 1] == text[last - size + 1 :]]
        if ends and size <= last + 1:
            start = ends[-1] + 1
            break
    else:
        start = last
    known = text[start:]
    return [known[i % len(known)] for i in range(count)]


def test_the_definition() -> None:
    assert looked_up([1, 2, 3, 9, 1, 2, 3], 5) == [9, 1, 2, 3, 9]
    assert looked_up([5, 6, 7], 2) == [7, 7]
    assert looked_up([4, 4], 3) == [4, 4, 4]
    assert looked_up([2, 8, 1, 8, 3, 8], 2) == [3, 8]


@pytest.mark.parametrize("letters", [1, 2, 3, 250])
@pytest.mark.parametrize("drafts", [1, 3, 7])
def test_drafts_are_what_followed_before(plain_package, plain_weights, letters: int, drafts: int) -> None:
    rng = Random(f"{letters} {drafts}")
    engine = Engine(plain_package, plain_weights, drafts=drafts)
    tokens, compared = engine.buffers["tokens"], 0
    for _ in range(6):
        prompt = [rng.randrange(letters) for _ in range(rng.randint(1, 60))]
        request = engine.submit(prompt, max_new_tokens=24, temperature=1.0, seed=rng.getrandbits(30), stop_at_eos=False,
                                logit_bias=dict.fromkeys(range(min(letters, 3)), 30.0))  # fmt: skip
        while engine.busy:
            engine.step()
            seat = engine.scheduler.seats.of(request)
            if seat is not None and request.output:
                assert tokens[seat.slot, 1 : 1 + drafts].tolist() == looked_up(request.tokens, drafts)
                compared += 1
    assert compared >= 10


@pytest.mark.parametrize("drafts", [1, 4, 7])
def test_no_token_changes(plain_package, plain_weights, drafts: int) -> None:
    rng, oracle = Random(drafts), Oracle(plain_package, plain_weights)
    engine = Engine(plain_package, plain_weights, drafts=drafts)
    asks = [draw_ask(rng) for _ in range(30)]
    requests = [ask.submit(engine) for ask in asks]
    drain(engine, poison=True)
    for ask, request in zip(asks, requests, strict=True):
        assert (request.output, request.finish_reason) == oracle(ask)
    assert sum(accepted for accepted, _ in engine.stats().acceptance) > 0


def test_an_mtp_model_can_look_up_too(package, weights, oracle) -> None:
    rng = Random(4)
    engine = Engine(package, weights, drafts=3, drafter="lookup")
    asks = [draw_ask(rng) for _ in range(12)]
    requests = [ask.submit(engine) for ask in asks]
    drain(engine)
    assert [request.output for request in requests] == [oracle(ask)[0] for ask in asks]


def test_a_repeated_text_is_accepted(plain_package, plain_weights) -> None:
    """Where the model says one token again and again, all drafts count."""
    engine = Engine(plain_package, plain_weights, drafts=7)
    request = engine.submit([1, 2, 3], max_new_tokens=40, logit_bias={65: 1000.0})
    drain(engine)
    assert request.tokens_per_step > 5


@pytest.mark.parametrize("options", [{"drafter": "mtp"}, {"drafter": "both"}, {"drafter": 1}])
def test_what_there_is_not_is_refused(plain_package, plain_weights, options) -> None:
    with pytest.raises(BadOption, match="one of none, lookup"):
        Engine(plain_package, plain_weights, **options)


@pytest.mark.parametrize(
    "options",
    [{"drafter": "none", "drafts": 3}, {"drafter": "none", "drafts": "auto"}, {"drafter": "none", "drafting": True},
     {"drafting": False, "drafts": "auto"}, {"drafting": False, "drafts": 1}],
)  # fmt: skip
def test_drafts_without_a_drafter_are_refused(package, weights, options) -> None:
    with pytest.raises(BadOption, match="draft"):
        Engine(package, weights, **options)


def test_no_drafter_makes_no_drafts(package, weights) -> None:
    engine = Engine(package, weights, drafter="none")
    assert engine.scheduler.drafts == 0
    with pytest.raises(BadOption, match="'auto' is not allowed: 0: this engine has no drafter"):
        engine.set_drafts("auto")


def test_defaults(plain_package, plain_weights, package, weights) -> None:
    assert Engine(plain_package, plain_weights).scheduler.drafts == 0
    assert Engine(plain_package, plain_weights, drafter="lookup").scheduler.drafts == 3
    assert Engine(package, weights).scheduler.executor.drafting
    with pytest.raises(BadOption):
        Engine(plain_package, plain_weights).set_drafts(2)


def test_auto_needs_room_and_a_drafter(plain_package, plain_weights, tmp_path_factory, cache) -> None:
    with pytest.raises(BadOption, match=r"auto.*0 without drafting"):
        Engine(plain_package, plain_weights, drafts="auto", drafting=False)
    with pytest.raises(BadOption, match=r"auto.*has no drafter"):
        Engine(plain_package, plain_weights).set_drafts("auto")
    spec = toy_spec(mtp=False)
    without = write_toy(tmp_path_factory.mktemp("none") / "package", cache, spec)
    with pytest.raises(BadOption, match="no room for drafts"):
        Engine(without, agreeing_weights(spec), drafts="auto")


def test_auto_records_no_graph_after_warm_up(package, weights) -> None:
    """Steps go from K to K drafts or from none to K: all of them are there before the first request."""
    rng, engine = Random(8), Engine(package, weights, drafts="auto", checkpoints=False)
    engine.warm_up()
    graphs = set(engine.scheduler.executor.graphs)
    for _ in range(40):
        draw_ask(rng).submit(engine)
    drain(engine)
    assert set(engine.scheduler.executor.graphs) == graphs
    assert len(engine.stats().acceptance) > 2
    engine.set_drafts(2)
    assert engine.scheduler.adaptive is None and engine.scheduler.drafts == 2
    engine.set_drafts("auto")
    assert engine.scheduler.adaptive is not None

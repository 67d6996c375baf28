"""Logits on demand are those a token was chosen from, to the bit, and asking for them changes nothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from codegen.verify.isolation import BY_BATCH, snapshot
from codegen.verify.plain import Plain
from codegen.verify.tolerance import allowed, error
from dsl.reference.sampling import choose, lowest_argmax
from runtime import buffers, executor
from runtime.engine import Engine
from runtime.executor import Phase
from runtime.graphs import record
from runtime.logprobs import Logprobs, logprobs
from runtime.plan import PAD_SLOT_ID
from tests.cpu.engine.toys import Ask, drain, poison_free, same_bits, toy_spec

PROMPT = tuple(b"the five boxing wizards jump quickly")
ASKS = (Ask(PROMPT, 30), Ask(PROMPT[:1], 17, temperature=1.1, seed=4), Ask(PROMPT[:16], 40), Ask(PROMPT[3:], 9))
SCRATCH = {"x", "h", "logits"}


class Scorer:
    """Scores what every begin and step emits, as soon as it is there. logits: by request id, row i of output i."""

    def __init__(self, engine: Engine) -> None:
        self.logits: dict[int, list[Tensor]] = {}
        self.executor, scheduler = engine.scheduler.executor, engine.scheduler
        begin, accept = self.executor.begin, scheduler._accept

        def scored_begin(slots, next_drafts):
            tokens = begin(slots, next_drafts)
            for slot in slots:
                self._score(next(seat for seat in scheduler.seats.all() if seat.slot == slot), 1)
            return tokens

        def scored_accept(seat, verified, tokens, emitted):
            self._score(seat, len(tokens))
            accept(seat, verified, tokens, emitted)

        self.executor.begin, scheduler._accept = scored_begin, scored_accept

    def _score(self, seat, count):
        end = self.executor.views["committed_len"][seat.slot]
        rows = self.executor.score(seat.slot, range(end - count, end))
        self.logits.setdefault(seat.request.id, []).extend(rows)


def scored(engine, asks=ASKS, poison=True):
    """Requests and the logits of their outputs."""
    scorer = Scorer(engine)
    requests = [ask.submit(engine) for ask in asks]
    drain(engine, poison=poison)
    return requests, [torch.stack(scorer.logits[request.id]) for request in requests]


@pytest.fixture(scope="module")
def cold(package, weights):
    """The logits of every ask from an eager engine without a drafter, one token at a time, one request at a time."""
    with Engine(package, weights, drafts=0, eager=True, prefill_chunk=1, slots=1, checkpoints=False) as engine:
        return scored(engine)[1]


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "graph"])
@pytest.mark.parametrize("drafts", [0, 3, 7])
def test_scored_logits_are_the_cold_ones_and_choose_the_tokens(package, weights, oracle, cold, drafts, eager):
    with Engine(package, weights, drafts=drafts, eager=eager) as engine:
        requests, logits = scored(engine)
        assert {size for phase, size, *_ in engine.scheduler.executor.graphs if phase is Phase.SCORE} >= {1}
    for ask, request, rows, wanted in zip(ASKS, requests, logits, cold, strict=True):
        assert (request.output, request.finish_reason) == oracle(ask)
        assert same_bits(rows, wanted)
        positions = torch.arange(len(rows)) + request.prompt_len
        assert choose(rows, ask.temperature, ask.seed, positions).tolist() == request.output
        if ask.temperature == 0.0:
            assert lowest_argmax(rows).tolist() == request.output


def test_scored_logits_are_those_of_the_step(package, weights):
    """After a step that drafts nothing the buffer still holds the logits that its targets were sampled from."""
    accepted = set()
    with Engine(package, weights, drafts=3, slots=1, checkpoints=False) as engine:
        for seed in range(4):
            engine.set_drafts(3)
            Ask(PROMPT[:9], 40, temperature=1.0, seed=seed).submit(engine)
            engine.step()
            [seat] = engine.scheduler.seats.decoding
            while engine.busy:
                engine.set_drafts(0 if engine.scheduler.drafts else 3)
                before = seat.committed_len
                engine.step()
                if engine.scheduler.drafts == 0:
                    used = engine.buffers["logits"][: seat.committed_len - before].clone()
                    found = engine.scheduler.executor.score(seat.slot, range(before, seat.committed_len))
                    assert same_bits(found, used)
                    accepted.add(len(used))
    assert accepted == {1, 2, 3, 4}


def test_the_packing_of_rows_does_not_matter(package, weights):
    """One by one, in any order, repeated, beside rows of other slots and padding: the same bits, and nothing moves."""
    with Engine(package, weights, drafts=3) as engine:
        for ask in ASKS:
            ask.submit(engine)
        for _ in range(9):
            engine.step()
        score, views = engine.scheduler.executor.score, engine.scheduler.executor.views
        slots = [seat.slot for seat in engine.scheduler.seats.decoding]
        before = snapshot(engine.buffers)
        rows = {}
        for slot in slots:
            end = views["committed_len"][slot]
            together = score(slot, range(end - 6, end))
            alone = torch.cat([score(slot, [position]) for position in range(end - 6, end)])
            assert same_bits(together, alone)
            assert same_bits(score(slot, range(end - 1, end - 7, -1)), together.flip(0))
            assert same_bits(score(slot, [end - 1, end - 3, end - 1]), together[[5, 3, 5]])
            rows |= {(slot, end - 6 + i): logits for i, logits in enumerate(together)}
        after = snapshot(engine.buffers)
        changed = {name for name in before if not same_bits(before[name], after[name])}
        assert changed <= {*SCRATCH, "row_slot", "row_pos"}

        mixed = [(PAD_SLOT_ID, 0), *rows, (PAD_SLOT_ID, 0)]
        assert len(mixed) <= len(engine.buffers["logits"]) and len(slots) > 2
        for name, values in zip(("row_slot", "row_pos"), zip(*mixed, strict=True), strict=True):
            engine.buffers[name][: len(mixed)] = torch.tensor(values, dtype=torch.int32)
        engine.buffers["x"].fill_(float("nan"))
        with engine.package.compiling():
            engine.package.step.score(engine.buffers.b, len(mixed))
        assert engine.buffers["x"][[0, len(mixed) - 1]].isnan().all(), "an empty row is left alone"
        assert same_bits(engine.buffers["logits"][1 : len(mixed) - 1], torch.stack([*rows.values()]))


@pytest.mark.parametrize("drafts", [0, 3])
def test_an_engine_that_scores_is_bit_for_bit_one_that_does_not(package, weights, drafts):
    kept = [buffer.name for buffer in package.plan.role("state", "ring", "kv", "checkpoint", "protocol")]
    kept = [name for name in kept if name not in BY_BATCH]
    with Engine(package, weights, drafts=drafts) as plain, Engine(package, weights, drafts=drafts) as scoring:
        Scorer(scoring)
        pairs = [(ask.submit(plain), ask.submit(scoring)) for ask in ASKS]
        while plain.busy:
            plain.step()
            scoring.step()
            assert [name for name in kept if not same_bits(plain.buffers[name], scoring.buffers[name])] == []
        assert not scoring.busy
        assert all(a.output == b.output and a.accepted == b.accepted for a, b in pairs)


def test_a_device_apart_from_the_host_scores_the_same(package, weights, oracle, cold, monkeypatch):
    """As on CUDA: protocol buffers are sent and fetched, and recording a graph runs it once before."""

    def run_then_record(run, scope, device, eager):
        with scope():
            run()
        return record(run, scope, device, eager)

    monkeypatch.setattr(buffers, "mirrored", lambda _: True)
    monkeypatch.setattr(executor, "record", run_then_record)
    with Engine(package, weights, drafts=3, prefill_chunk=7) as engine:
        assert not engine.buffers.host.shared
        requests, logits = scored(engine)
    assert [(request.output, request.finish_reason) for request in requests] == [oracle(ask) for ask in ASKS]
    assert all(same_bits(rows, wanted) for rows, wanted in zip(logits, cold, strict=True))


def test_a_restored_prompt_scores_the_same(package, weights, cold):
    with Engine(package, weights, drafts=3, interval=0) as engine:  # all have a row
        scored(engine)
        requests, logits = scored(engine)
        assert all(request.restored_position == request.prompt_len for request in requests)
    assert all(same_bits(rows, wanted) for rows, wanted in zip(logits, cold, strict=True))


def test_only_what_the_ring_surely_holds_is_scored(package, weights):
    with Engine(package, weights, drafts=3, slots=1) as engine:
        Ask(PROMPT[:2], 40).submit(engine)
        engine.step()
        score, [seat] = engine.scheduler.executor.score, engine.scheduler.seats.decoding
        most = package.plan.limits.max_rows
        for positions in ([], [-1], [seat.committed_len], [1] * (most + 1)):
            with pytest.raises(AssertionError):
                score(seat.slot, positions)
        while seat.committed_len < 20:
            poison_free(engine)
            engine.step()
        end = seat.committed_len
        assert score(seat.slot, range(end - most, end)).shape == (most, package.plan.limits.vocab_size)
        with pytest.raises(AssertionError):
            score(seat.slot, [end - most - 1])


def test_logprobs_are_those_of_the_reference(package, weights):
    """All of them, of every output token: as close as the verifier asks of logits."""
    spec = toy_spec()
    with Engine(package, weights, drafts=3) as engine:
        requests, logits = scored(engine, ASKS[:2])
    for request, rows in zip(requests, logits, strict=True):
        reference = Plain(spec, weights, request.tokens)
        at = range(request.prompt_len - 1, len(request.tokens) - 1)
        exact, rough = (output.logits[0, at] for output in (reference.target, reference.target_bf16))
        assert error(rows, exact) <= allowed(rough, exact)
        found = logprobs(rows, request.output, top=spec.vocab_size)
        dense = torch.tensor([[value for _, value in sorted(entry.top)] for entry in found], dtype=torch.float64)
        exact, rough = (torch.log_softmax(values.double(), -1) for values in (exact, rough))
        assert error(dense, exact) <= allowed(rough, exact)
        assert [entry.logprob for entry in found] == dense[range(len(dense)), request.output].tolist()
        assert [entry.token for entry in found] == request.output


def test_top_is_in_order_and_ties_go_to_the_lowest_id() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0, 3.0, -float("inf")], [1e30, 0.0, 0.0, 0.0, 0.0, 0.0]])
    first, second = logprobs(logits, [3, 0], top=2)
    assert [token for token, _ in first.top] == [1, 2]
    assert [token for token, _ in second.top] == [0, 1]
    assert (second.logprob, second.top[1][1]) == (0.0, -float(torch.tensor(1e30)))
    assert first.logprob == first.top[0][1] - 1.0
    [entry] = logprobs(logits[:1], [5], top=6)
    assert [token for token, _ in entry.top] == [1, 2, 4, 3, 0, 5]
    assert entry.logprob == -float("inf")
    assert sum(torch.tensor([value for _, value in entry.top]).exp()) == pytest.approx(1.0)
    assert logprobs(logits[:1], [1]) == [Logprobs(1, first.top[0][1])]

"""Planted faults of sampling, and which comparison finds each.

"cold": answers differ from those that the same package gives cold. "defined": tokens differ from the definition, while
every way of computing them agrees: no comparison of outputs would ever see it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

import runtime.executor
from runtime.engine import Engine
from runtime.errors import ResumeDiffers
from runtime.grammar import fill_masks
from runtime.package import open_package
from runtime.sampling import write_sampling
from tests.cpu.verify.mutants import copy_package, edit
from tests.sampling.asks import Ask, How, draw_ask
from tests.sampling.compare import answers, cold_engine, undefined
from tests.sampling.model import SPEC, TEXT, package, weights

LETTERS = tuple((letter, 30.0) for letter in range(97, 123))
SAMPLE, ACCEPT, BEGIN = "cpu/kernels/sample.py", "cpu/kernels/accept_drafts.py", "cpu/kernels/begin_accept.py"


class Fault(NamedTuple):
    """A change of a kernel. found_by: the comparison that sees it."""

    file: str
    right: str
    wrong: str
    found_by: str


IN_KERNELS = {
    "drafts before a row are not counted": Fault(SAMPLE, "        i_t,\n", "        0,\n", "cold"),
    "rejected drafts are counted": Fault(ACCEPT, "(o_t < accepted) & (tl", "m_t & (tl", "cold"),
    "accepted tokens are not counted": Fault(ACCEPT, "(o_t < accepted) & (tl", "(o_t < 0) & (tl", "cold"),
    "first tokens are not counted": Fault(BEGIN, "tl.load(p_count) + 1", "tl.load(p_count)", "cold"),
    "all rows have the mask of the first": Fault(SAMPLE, "tl.maximum(i_t, 0)", "0", "cold"),
    "noise of the position before": Fault(
        SAMPLE, "tl.load(seed + slot), position,", "tl.load(seed + slot), position - 1,", "defined"
    ),
    "stops come one token early": Fault(SAMPLE, "tl.load(min_len + slot)", "tl.load(min_len + slot) - 1", "defined"),
    "top_k keeps one too few": Fault(
        SAMPLE, "tl.load(top_k + slot)", "tl.maximum(tl.load(top_k + slot) - 1, 0)", "defined"
    ),
    "presence is charged as frequency": Fault(
        SAMPLE, "tl.load(presence_penalty + slot)", "tl.load(frequency_penalty + slot)", "defined"
    ),
}


def stale_biases(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot keeps the number of biases of the request before it."""

    def write(buffers, slot, *how) -> None:
        before = buffers.host.views["num_biases"][slot]
        write_sampling(buffers, slot, *how)
        buffers.host.views["num_biases"][slot] = max(before, buffers.host.views["num_biases"][slot])

    monkeypatch.setattr(runtime.executor, "write_sampling", write)


def stale_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot goes on counting where the request before it ended."""

    def write(buffers, slot, *how) -> None:
        before = buffers["token_counts"][slot].clone()
        write_sampling(buffers, slot, *how)
        buffers["token_counts"][slot] += before

    monkeypatch.setattr(runtime.executor, "write_sampling", write)


def prompt_as_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed request counts its answer so far as prompt."""

    def write(buffers, slot, sampling, text, prompt_len, masked) -> None:
        write_sampling(buffers, slot, sampling, text, len(text), masked)

    monkeypatch.setattr(runtime.executor, "write_sampling", write)


def masks_without_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grammar does not go along the drafts."""

    def fill(matcher, masks, drafts) -> None:
        for row in range(len(masks)):
            fill_masks(matcher, masks[row : row + 1], [])

    monkeypatch.setattr(runtime.executor, "fill_masks", fill)


ON_THE_HOST: list[Callable[[pytest.MonkeyPatch], None]] = [
    stale_biases,
    stale_counts,
    prompt_as_output,
    masks_without_drafts,
]


@pytest.fixture(scope="module")
def asks() -> list[Ask]:
    """Random ones, and some in which drafts are often accepted and options decide often."""
    found = [draw_ask(Random(number), SPEC.vocab_size, TEXT) for number in range(60)]
    engine = cold_engine(package(), weights())
    for at in range(16):
        ask = Ask(tuple(TEXT[at : at + 20]), 24)
        for how in (How(frequency_penalty=0.5), How(repetition_penalty=1.3), How(presence_penalty=1.0)):
            found.append(replace(ask, how=how))
        found.append(replace(ask, pattern="([a-m][n-z])+", how=How(logit_bias=LETTERS)))
        [(output, _, _)] = answers(engine, [ask], 1)
        due = next((number for number in range(3, 24) if output[number] not in output[:number]), 0)
        found.append(replace(ask, how=How(min_tokens=due + 1), stop_tokens=(output[due],)))
    return found


@pytest.fixture(scope="module")
def cold(asks):
    return answers(cold_engine(package(), weights()), asks, 1)


def differs(opened, asks, expected) -> bool:
    """From these answers; an engine that notices a difference itself says so too."""
    try:
        return answers(Engine(opened, weights(), drafts=3), asks, 8, upset=11) != expected
    except ResumeDiffers:
        return True


def test_without_a_fault_nothing_differs(asks, cold) -> None:
    assert not differs(package(), asks, cold)


@pytest.mark.parametrize("name", IN_KERNELS)
def test_a_fault_in_a_kernel_is_found(name: str, asks, cold, tmp_path: Path) -> None:
    fault = IN_KERNELS[name]
    mutant = copy_package(package().path, tmp_path / "mutant")
    edit(mutant, fault.file, (fault.right, fault.wrong))
    opened = open_package(mutant)
    own = answers(cold_engine(opened, weights()), asks, 1)
    assert differs(opened, asks, own) == (fault.found_by == "cold")
    if fault.found_by == "defined":
        tokens, odd = undefined(Engine(opened, weights(), drafts=3), asks)
        assert odd > max(1, tokens // 500)


@pytest.mark.parametrize("plant", ON_THE_HOST, ids=lambda plant: plant.__name__)
def test_a_fault_on_the_host_is_found(plant, asks, cold, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert differs(package(), asks, cold)

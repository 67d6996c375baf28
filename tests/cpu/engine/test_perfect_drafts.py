"""The weights of benchmarks.scenarios: every draft is right, so its figure is the most that drafts can gain."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.scenarios.perfect_drafts import FIRST_TOKEN, perfect_drafts, successors
from benchmarks.scenarios.steps import answer, spec_path
from dsl import ModelSpec, load_spec
from runtime.engine import Engine
from tests.cpu.engine.toys import toy_spec, write_toy

ROOT = Path(__file__).resolve().parents[3]
SPECS = (ROOT / "tests" / "specs" / "untied-shared.yaml", spec_path("mamba2-130m-mtp"))


def small(spec: ModelSpec) -> ModelSpec:
    """The same kinds of layers, few and narrow."""
    data = spec.model_dump()
    data["layers"]["mamba"]["mixer"]["num_heads"] = 6
    return ModelSpec(**data | {"d_model": 96, "vocab_size": 300, "pattern": spec.pattern[:2]})


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_every_draft_is_accepted_and_answers_are_those_without_drafts(path: Path, tmp_path: Path, cache: Path) -> None:
    spec = small(load_spec(path))
    package = write_toy(tmp_path / "package", cache, spec)
    assert spec.mtp is not None
    weights = perfect_drafts(package.plan, spec.mtp.concat)
    with Engine(package, weights, drafts=0) as plain, Engine(package, weights, drafts=3) as drafting:
        prompt = list(range(20, 40))
        expected, found = answer(plain, prompt, 101), answer(drafting, prompt, 101)
    assert found.output == expected.output and found.acceptance == 1.0
    assert len(found.steps) * 4 <= found.tokens + 3


def test_an_answer_walks_the_cycle_and_repeats_nothing() -> None:
    following = successors(50, torch.Generator().manual_seed(3))
    walk, token = [], FIRST_TOKEN
    for _ in range(50 - FIRST_TOKEN):
        walk.append(token)
        token = int(following[token])
    assert token == FIRST_TOKEN and sorted(walk) == list(range(FIRST_TOKEN, 50))
    assert following[:FIRST_TOKEN].tolist() == list(range(FIRST_TOKEN))


def test_a_model_without_a_module_is_refused(tmp_path: Path, cache: Path) -> None:
    package = write_toy(tmp_path / "package", cache, toy_spec(mtp=False))
    with pytest.raises(ValueError, match="must have an MTP module"):
        perfect_drafts(package.plan, ("embedding", "hidden"))

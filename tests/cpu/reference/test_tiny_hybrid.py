"""The demo model as shipped: its file, its quality on text of this project, and its training script."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import dsl
from dsl.reference import decode, drafting, model
from dsl.reference.weights import expected_tensors
from dsl.tensors import num_parameters

SPECS = Path(__file__).parents[3] / "specs"
WEIGHTS = SPECS / "tiny-hybrid" / "weights.safetensors"
TEXT = '''    def __init__(self, name, value=None):
        self.name = name
        self.value = value

    def __repr__(self):
        return "%s(%r, %r)" % (self.__class__.__name__, self.name, self.value)

    def items(self):
        """Return a list of all items."""
        if self.value is None:
            raise ValueError("value must not be None")
        return [item for item in self.value]
'''


@pytest.fixture(scope="module")
def spec():
    return dsl.load_spec(SPECS / "tiny-hybrid.yaml")


@pytest.fixture(scope="module")
def weights(spec):
    loaded = load_file(WEIGHTS)
    shapes = {name: (tuple(value.shape), value.dtype) for name, value in loaded.items()}
    assert shapes == expected_tensors(spec)
    return {name: value.float() for name, value in loaded.items()}


def test_sizes(spec):
    assert num_parameters(spec) <= 3_000_000
    assert WEIGHTS.stat().st_size <= 8_000_000


def test_it_has_learnt_python(spec, weights):
    tokens = torch.tensor([[spec.tokenizer.special_id("bos"), *TEXT.encode()]])
    logits = model.forward(spec, weights, tokens, scan="chunked").logits
    nats = torch.nn.functional.cross_entropy(logits[0, :-1], tokens[0, 1:])
    assert nats / torch.log(torch.tensor(2.0)) < 2.0  # bits per byte; 8 before training


def test_its_drafts_are_accepted(spec, weights):
    bos = spec.tokenizer.special_id("bos")
    prompts = torch.tensor([[bos, *TEXT.encode()[start : start + 99]] for start in range(0, 240, 60)])
    seeds = torch.arange(4)
    decoder = decode.EagerDecoder(spec, weights, batch=4, max_context=200)
    tokens = decode.generate(decoder, prompts, 100, 0.8, seeds)
    matches = drafting.draft_matches(spec, weights, tokens, 3, 0.8, seeds)
    found = drafting.measure_acceptance(matches, start=100)
    assert found.per_position[0] > 0.6
    assert found.tokens_per_step > 1.8


@pytest.fixture
def train(monkeypatch):
    monkeypatch.syspath_prepend(str(SPECS / "tiny-hybrid"))
    import train

    return train


@pytest.fixture
def folder(tmp_path):
    for i in range(200):
        (tmp_path / f"m{i}.py").write_text(f"# {i}\n" * 20)
    (tmp_path / "copy.py").write_text("# 1\n" * 20)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "skipped.py").write_text("# skipped")
    return tmp_path


def test_files_are_split_by_content(train, folder, spec):
    text = train.corpus.load_corpus(folder, spec.tokenizer)
    trained, held_out = text.num_files
    assert trained + held_out == 201
    assert 0 < held_out < 40
    parts = [set(map(bytes, split_files(stream))) for stream in (text.train, text.held_out)]
    assert not parts[0] & parts[1]
    assert len(parts[0]) + len(parts[1]) == 200  # the copy is on the side of its original


def split_files(stream):
    files, current = [], []
    for token in stream.tolist():
        if token == 256:
            current = []
        elif token == 257:
            files.append(current)
        else:
            current.append(token)
    return files


def test_a_resumed_run_continues_the_same(train, folder, spec, tmp_path, monkeypatch):
    monkeypatch.setattr(train, "TOKENS_PER_STEP", 512)
    text = train.corpus.load_corpus(folder, spec.tokenizer)
    run = train.start_run(spec, seed=5)
    first = train.train_step(spec, run, text, progress=0.1)
    run.save(tmp_path / "state.pt")
    resumed = train.resume_run(tmp_path / "state.pt")
    continued = [train.train_step(spec, other, text, progress=0.5) for other in (run, resumed)]
    assert continued[0] == continued[1]
    assert len(first) == 2  # the target and depth 1
    assert len(continued[0]) == 4
    assert all(torch.equal(value, resumed.weights[name]) for name, value in run.weights.items())

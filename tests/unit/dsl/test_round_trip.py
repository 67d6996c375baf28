"""Specs survive being written and read, and keep their hash."""

import warnings
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from pydantic import ValidationError

import dsl
from dsl.spec import ModelSpec
from tests.strategies import specs, to_yaml

TINY_HYBRID = Path(__file__).parents[3] / "specs" / "tiny-hybrid.yaml"


@given(specs())
def test_a_written_spec_reads_back_equal(spec):
    read = dsl.parse_spec(to_yaml(spec))
    assert read == spec
    assert dsl.spec_sha256(read) == dsl.spec_sha256(spec)


def test_tiny_hybrid_reads():
    spec = dsl.load_spec(TINY_HYBRID)
    assert spec.pattern == ("mamba", "mamba", "attention", "mamba")
    assert spec.tokenizer.special_id("eos") == 257
    assert spec.layers["mamba"].mixer.in_proj_dim == 2 * 512 + 2 * 64 + 8
    assert spec.layers["mamba"].mixer.dt_limit == (0.0, float("inf"))
    assert spec.mtp_layer is spec.layers["drafter"]


def test_hash_ignores_spelling_and_order():
    text = TINY_HYBRID.read_text()
    spec = dsl.parse_spec(text)
    reordered = yaml.safe_load(text.replace("1e-6", "1.0e-6"))
    reordered = dict(reversed(reordered.items()))
    other = dsl.parse_spec(yaml.safe_dump(reordered, sort_keys=False).replace("10000.0", "1.0e+4 # same"))
    assert dsl.spec_sha256(other) == dsl.spec_sha256(spec)


def leaves(value, path=()):
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in leaves(item, (*path, key))]
    return [path]


def test_hash_sees_every_field():
    spec = dsl.load_spec(TINY_HYBRID)
    for path in leaves(spec.model_dump()):
        data = spec.model_dump()
        parent = data
        for key in path[:-1]:
            parent = parent[key]
        parent[path[-1]] = "changed"
        with warnings.catch_warnings(action="ignore"):
            assert dsl.spec_sha256(ModelSpec.model_construct(**data)) != dsl.spec_sha256(spec), path


def test_specs_are_immutable_and_checked_however_they_are_made():
    spec = dsl.load_spec(TINY_HYBRID)
    with pytest.raises(ValidationError):
        spec.d_model = 128
    data = spec.model_dump()
    data["pattern"] = ("mamba", "mamba")
    with pytest.raises(ValidationError, match=r"neither `pattern` nor `mtp\.layer` uses this layer"):
        ModelSpec.model_validate(data)

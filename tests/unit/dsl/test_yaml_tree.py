"""Scalars mean what YAML 1.2 says, or are refused; hostile texts are refused early."""

import math
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dsl
from dsl.errors import InvalidSpec, OddNumber
from dsl.yaml_tree import MAX_BYTES, parse_plain, parse_tree


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1E3", 1000.0),
        ("-2.5e+3", -2500.0),
        (".5", 0.5),
        ("5.", 5.0),
        (".inf", math.inf),
        ("-.inf", -math.inf),
        ("0", 0),
        ("-17", -17),
        ("true", True),
        ("false", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("yes", "yes"),
        ("on", "on"),
        ("True", "True"),
        ("inf", "inf"),
        ("+", "+"),
        ("nan", "nan"),
        ("bf16", "bf16"),
    ],
)
def test_plain_scalars(text, value):
    parsed = parse_plain(text)
    assert parsed == value
    assert type(parsed) is type(value)


def test_nan_is_a_float():
    assert math.isnan(parse_plain(".nan"))


@pytest.mark.parametrize(
    "text", ["1_000", "010", "0o17", "0x1F", "0b11", "1:30", "2024-01-01", "1e", "1.2.3", "1e99999", "1e400", "9" * 50]
)
def test_odd_numbers_are_refused(text):
    with pytest.raises(OddNumber):
        parse_plain(text)


def test_quoted_text_is_text():
    tree, mistakes = parse_tree("a: '1'\nb: \"true\"\nc: |\n  010\n", "x")
    assert tree.plain() == {"a": "1", "b": "true", "c": "010\n"}
    assert not mistakes


def test_lines_of_keys_and_items():
    tree, _ = parse_tree("a:\n  b: 1\n  c:\n  - 2\n  -\n    3\n", "x")
    assert tree.plain() == {"a": {"b": 1, "c": (2, 3)}}
    paths = [("a",), ("a", "b"), ("a", "c"), ("a", "c", 0), ("a", "c", 1), ("a", "d"), ("z",)]
    assert [tree.line_of(path) for path in paths] == [1, 2, 3, 4, 6, 1, 1]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("[" * 1000, "spec-too-deep"),
        ("a: " * 1000, "spec-yaml-syntax"),
        ("a: [" + "1," * 100_000 + "]", "spec-too-many-nodes"),
        ("# " + "x" * MAX_BYTES, "spec-too-long"),
        ("a: &x [1]\nb: *x\n", "spec-anchor"),
        ("b: *x\n", "spec-anchor"),
        ("a: !!python/object/apply:os.system [ls]\n", "spec-tag"),
        ("a: !x 1\n", "spec-tag"),
        ("a: 1\n---\nb: 2\n", "spec-several-documents"),
        ("\x00", "spec-yaml-syntax"),
        ("\ud800", "spec-yaml-syntax"),
        ("a: b: c", "spec-yaml-syntax"),
        ("{", "spec-yaml-syntax"),
    ],
)
def test_hostile_texts_are_refused_early(text, code):
    before = time.monotonic()
    with pytest.raises(InvalidSpec) as caught:
        dsl.parse_spec(text, "specs/x.yaml")
    assert [error.code for error in caught.value.errors] == [code]
    assert str(caught.value).startswith("specs/x.yaml")
    assert time.monotonic() - before < 5.0


@given(st.text(max_size=200) | st.text(alphabet="{}[]:,-? \n'\"#&*!|>%@`abc0123._", max_size=60))
def test_any_text_is_a_spec_or_an_invalid_spec(text):
    with pytest.raises(InvalidSpec) as caught:
        dsl.parse_spec(text)
    assert str(caught.value)


def test_the_language_needs_no_torch():
    script = "import sys, dsl, dsl.tensors; sys.exit('torch' in sys.modules or 'triton' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)

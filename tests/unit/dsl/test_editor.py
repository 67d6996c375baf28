"""The JSON Schema for editors: it never nags at a valid spec, and refuses what a field may not hold."""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import dsl
from dsl.cli import app
from dsl.editor import DRAFT, editor_schema
from dsl.errors import InvalidSpec
from dsl.yaml_tree import parse_tree
from tests.hostile.mutate import restructured
from tests.strategies import spec_data
from tests.unit.dsl.test_loader_errors import CASES, TEXT, edited

SCHEMA = editor_schema()
ANNOTATIONS = ("$schema", "$defs", "title", "description")
BY_FIELD = ("unknown-key", "missing-field", "wrong-type", "not-allowed", "out-of-range", "bad-name", "wrong-length")
# What JSON Schema cannot say: to it, a number with a point is an integer if it is whole.
UNSAYABLE = ("d_model: 256.0",)
TYPES = {
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
    "string": lambda v: isinstance(v, str),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
    "number": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool),
    "integer": lambda v: not isinstance(v, bool) and (isinstance(v, int) or (isinstance(v, float) and v.is_integer())),
}
KEYWORDS = {
    "type": lambda s, v: TYPES[s](v),
    "const": lambda s, v: type(s) is type(v) and s == v,
    "enum": lambda s, v: v in s,
    "minimum": lambda s, v: not TYPES["number"](v) or v >= s,
    "maximum": lambda s, v: not TYPES["number"](v) or v <= s,
    "exclusiveMinimum": lambda s, v: not TYPES["number"](v) or v > s,
    "pattern": lambda s, v: not isinstance(v, str) or re.search(s, v) is not None,
    "maxLength": lambda s, v: not isinstance(v, str) or len(v) <= s,
    "minItems": lambda s, v: not isinstance(v, list) or len(v) >= s,
    "maxItems": lambda s, v: not isinstance(v, list) or len(v) <= s,
    "minProperties": lambda s, v: not isinstance(v, dict) or len(v) >= s,
    "maxProperties": lambda s, v: not isinstance(v, dict) or len(v) <= s,
    "required": lambda s, v: not isinstance(v, dict) or set(s) <= set(v),
    "properties": lambda s, v: not isinstance(v, dict) or all(holds(s[k], x) for k, x in v.items() if k in s),
    "patternProperties": lambda s, v: (
        not isinstance(v, dict)
        or all(holds(sub, x) for pattern, sub in s.items() for k, x in v.items() if re.search(pattern, k))
    ),
    "propertyNames": lambda s, v: not isinstance(v, dict) or all(holds(s, k) for k in v),
    "anyOf": lambda s, v: any(holds(sub, v) for sub in s),
    "allOf": lambda s, v: all(holds(sub, v) for sub in s),
    "oneOf": lambda s, v: sum(holds(sub, v) for sub in s) == 1,
    "$ref": lambda s, v: holds(SCHEMA["$defs"][s.removeprefix("#/$defs/")], v),
}


def holds(schema: dict[str, Any], value: Any) -> bool:
    """Whether a value follows a schema of draft 7; a keyword that is not known here fails the test."""
    assert "$ref" not in schema or set(schema) == {"$ref"}, "draft 7 ignores what stands beside a $ref"
    for word, rule in schema.items():
        if word == "additionalProperties":
            assert rule is False
            known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
            keys = value if isinstance(value, dict) else ()
            if not all(key in known or any(re.search(p, key) for p in patterns) for key in keys):
                return False
        elif word == "items":
            listed_items = value if isinstance(value, list) else []
            rules = rule if isinstance(rule, list) else [rule] * len(listed_items)
            if not all(holds(sub, item) for sub, item in zip(rules, listed_items, strict=False)):
                return False
        elif word == "additionalItems":
            assert rule is False
            if isinstance(value, list) and len(value) > len(schema["items"]):
                return False
        elif word not in ANNOTATIONS and not KEYWORDS[word](rule, value):
            return False
    return True


def listed(value: Any) -> Any:
    """Data as JSON has it."""
    if isinstance(value, dict):
        return {key: listed(item) for key, item in value.items()}
    return [listed(item) for item in value] if isinstance(value, tuple) else value


@given(spec_data())
def test_valid_specs_follow_it(data: dict[str, Any]) -> None:
    assert holds(SCHEMA, listed(data))


@pytest.mark.parametrize(("old", "new", "code", "path", "words"), [c for c in CASES if c[2][5:] in BY_FIELD])
def test_mistakes_in_a_field_do_not(old: str, new: str, code: str, path: str, words: str) -> None:
    tree, _ = parse_tree(edited((old, new)), "x")
    assert holds(SCHEMA, listed(tree.plain())) == (new in UNSAYABLE)


@given(st.integers(0, 1 << 32))
def test_what_it_refuses_is_no_spec(seed: int) -> None:
    tree = restructured(yaml.safe_load(TEXT), Random(seed))
    text = yaml.safe_dump(tree, sort_keys=False)
    try:
        dsl.parse_spec(text)
    except InvalidSpec:
        return
    read, _ = parse_tree(text, "x")
    assert holds(SCHEMA, listed(read.plain()))


def test_every_field_says_what_it_means_and_allows() -> None:
    assert SCHEMA["$schema"] == DRAFT
    for model in (SCHEMA, *SCHEMA["$defs"].values()):
        for name, field in model["properties"].items():
            assert len(field["description"]) > 10, name
            by_key = "allOf" in field or field.get("type") == "object"
            assert by_key or "Allowed: " in field["description"], name


def test_the_command_prints_it() -> None:
    done = CliRunner().invoke(app, ["schema"])
    assert done.exit_code == 0 and json.loads(done.stdout) == SCHEMA

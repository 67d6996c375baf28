"""The JSON Schema of a spec for editors: draft 7, as yaml-language-server reads it, with ranges and units on hover.

It says what each field may hold. What fields must be to each other (`dsl.rules`) no schema says.
"""

from __future__ import annotations

import copy
from typing import Any

from dsl.schema import Schema, describe, root_schema

DRAFT = "http://json-schema.org/draft-07/schema#"
TITLE = "Stepforge model spec"
DROPPED = ("title", "discriminator", "unit", "default")
CONTAINERS = ("properties", "patternProperties", "$defs")


def editor_schema() -> Schema:
    """The schema: a fresh, plain JSON value."""
    schema = _draft7(copy.deepcopy(root_schema()))
    return {"$schema": DRAFT, "title": TITLE, **schema}


def _draft7(schema: Any) -> Any:
    """A schema as draft 7 spells it: tuples by `items`, nothing beside a `$ref`, names that match nothing refused."""
    if isinstance(schema, list):
        return [_draft7(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    hover = hover_text(schema)
    found = {
        key: {name: _draft7(item) for name, item in value.items()} if key in CONTAINERS else _draft7(value)
        for key, value in schema.items()
        if key not in DROPPED
    }
    if "prefixItems" in found:
        found["items"] = found.pop("prefixItems")
        found["additionalItems"] = False
    if "patternProperties" in found:
        found["additionalProperties"] = False
    if hover:
        found["description"] = hover
        if "$ref" in found:
            found["allOf"] = [{"$ref": found.pop("$ref")}]
    return found


def hover_text(schema: Schema) -> str:
    """A field's description with what it allows, or nothing for a schema without one."""
    text = str(schema.get("description", ""))
    if not text or schema.get("type") == "object" or "$ref" in schema:
        return text
    return f"{text} Allowed: {allowed(schema)}."


def allowed(schema: Schema) -> str:
    """What a field may hold, and the unit of its number."""
    unit = schema.get("unit")
    return describe(schema) + (f", in {unit}" if unit else "")

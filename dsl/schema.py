"""What a spec allows at a path, in words: read from the JSON schema of `ModelSpec`, so it cannot disagree with it."""

from __future__ import annotations

from functools import cache
from typing import Any

from dsl.errors import Path
from dsl.layers import NAME_PATTERN
from dsl.spec import ModelSpec

Schema = dict[str, Any]


@cache
def root_schema() -> Schema:
    """The JSON schema of a spec."""
    return ModelSpec.model_json_schema()


def resolve(schema: Schema) -> Schema:
    """A schema behind its reference, and without the null of an optional field."""
    if "$ref" in schema:
        schema = root_schema()["$defs"][schema["$ref"].rsplit("/", 1)[1]]
    options = [option for option in schema.get("anyOf", []) if option.get("type") != "null"]
    return resolve(options[0]) if len(options) == 1 else schema


def choose(schema: Schema, value: Any) -> Schema:
    """The variant of a tagged union that a value's `kind` names, else the schema itself."""
    schema = resolve(schema)
    tag = schema.get("discriminator")
    if tag is None or not isinstance(value, dict):
        return schema
    reference = tag["mapping"].get(value.get(tag["propertyName"])) if isinstance(value.get("kind"), str) else None
    return schema if reference is None else resolve({"$ref": reference})


def entry(schema: Schema, key: str) -> Schema:
    """The schema of one key of a mapping; the tags of a union whose variant is not chosen."""
    if "discriminator" in schema and key == schema["discriminator"]["propertyName"]:
        return {"enum": list(schema["discriminator"]["mapping"])}
    named = [*schema.get("patternProperties", {}).values(), {}]
    found: Schema = schema.get("properties", {}).get(key, named[0])
    return found


def walk(path: Path, data: Any) -> tuple[Schema, Any]:
    """The schema and the value at a path of a spec's data; {} and None where there is none."""
    schema = root_schema()
    for item in path:
        schema = choose(schema, data)
        if isinstance(item, int):
            prefix = schema.get("prefixItems", [])
            schema = prefix[item] if item < len(prefix) else schema.get("items") or {}
            data = data[item] if isinstance(data, tuple) and item < len(data) else None
        else:
            schema = entry(schema, item)
            data = data.get(item) if isinstance(data, dict) else None
    return schema, data


def schema_at(path: Path, data: Any) -> Schema:
    """The schema of the field at a path of a spec's data."""
    return walk(path, data)[0]


def keys_at(path: Path, data: Any) -> list[str]:
    """The keys that the mapping at a path of a spec's data may have."""
    return list(choose(*walk(path, data)).get("properties", {}))


def between(schema: Schema) -> str:
    """The bounds of a number, in words."""
    if "minimum" in schema and "maximum" in schema:
        return f" from {schema['minimum']} to {schema['maximum']}"
    words = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    bounds = [f"{word} {schema[name]}" for name, word in words.items() if name in schema]
    return " " + " and ".join(bounds) if bounds else ""


def counted(schema: Schema, least: str, most: str, noun: str) -> str:
    """The length of a list or mapping, in words."""
    low, high = schema.get(least, 0), schema.get(most)
    if low == high:
        return f"{low} {noun}"
    return f"{low} to {high} {noun}" if high is not None else noun


def described_items(schema: Schema) -> str:
    """What the items of a list may be, in words."""
    if "prefixItems" in schema:
        return f": {'; '.join(describe(item) for item in schema['prefixItems'])}"
    return f", each {describe(schema['items'])}" if "items" in schema else ""


def describe(schema: Schema) -> str:
    """What a field may hold, in words."""
    optional = any(option.get("type") == "null" for option in schema.get("anyOf", []))
    return describe_value(resolve(schema)) + (" or null" if optional else "")


def describe_value(schema: Schema) -> str:
    """What a field may hold if not null, in words."""
    if "discriminator" in schema:
        return f"a mapping whose kind is one of {', '.join(schema['discriminator']['mapping'])}"
    if "enum" in schema or "const" in schema:
        options = schema.get("enum", [schema.get("const")])
        return str(options[0]) if len(options) == 1 else "one of " + ", ".join(map(str, options))
    kind = schema.get("type")
    if kind == "string":
        return f"a name of at most {schema['maxLength']} characters like {NAME_PATTERN}"
    if kind == "array":
        return "a list of " + counted(schema, "minItems", "maxItems", "items") + described_items(schema)
    if kind == "object":
        keys = schema.get("properties")
        names = f"keys {', '.join(keys)}" if keys else counted(schema, "minProperties", "maxProperties", "named items")
        return f"a mapping with {names}"
    words = {"integer": "an integer", "number": "a number", "boolean": "true or false"}
    return words.get(str(kind), "something else") + between(schema)

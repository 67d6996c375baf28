"""Read a spec: text to a tree with lines, to a validated `ModelSpec`; every mistake found is reported at once."""

from __future__ import annotations

from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from dsl import errors
from dsl.errors import NO_VALUE, InvalidSpec, Path, SpecError
from dsl.files import read_regular
from dsl.schema import describe, keys_at, schema_at
from dsl.spec import ModelSpec
from dsl.yaml_tree import MAX_BYTES, Node, parse_tree

KINDS: dict[str, type[SpecError]] = {
    "missing": errors.MissingField,
    "extra_forbidden": errors.UnknownKey,
    "literal_error": errors.NotAllowed,
    "union_tag_invalid": errors.NotAllowed,
    "union_tag_not_found": errors.MissingField,
    "greater_than": errors.OutOfRange,
    "greater_than_equal": errors.OutOfRange,
    "less_than": errors.OutOfRange,
    "less_than_equal": errors.OutOfRange,
    "finite_number": errors.OutOfRange,
    "string_pattern_mismatch": errors.BadName,
    "string_too_long": errors.BadName,
    "too_short": errors.WrongLength,
    "too_long": errors.WrongLength,
}


def value_at(path: Path, data: Any) -> Any:
    """The value at a path of a spec's data, or NO_VALUE."""
    for item in path:
        is_key = isinstance(data, dict) and item in data
        is_index = isinstance(data, tuple) and isinstance(item, int) and item < len(data)
        if not (is_key or is_index):
            return NO_VALUE
        data = data[item]
    return data


def path_of(detail: ErrorDetails, data: Any) -> Path:
    """The path of a pydantic error in the data: its location without the tags of unions."""
    location = detail["loc"]
    if location and location[-1] == "[key]":
        location = location[:-1]
    path: Path = ()
    for item in location:
        if value_at((*path, item), data) is not NO_VALUE:
            path = (*path, item)
    if detail["type"] == "missing" and location[-1] not in (value_at(path, data) or ()):
        path = (*path, location[-1])
    if detail["type"] in ("union_tag_invalid", "union_tag_not_found"):
        path = (*path, "kind")
    return path


def translate(detail: ErrorDetails, data: Any) -> list[SpecError]:
    """The mistakes of one pydantic error, not yet located."""
    if detail["type"] == "rules":
        return list(detail["ctx"]["violations"])
    path = path_of(detail, data)
    value = value_at(path, data)
    schema = schema_at(path, data)
    if detail["loc"] and detail["loc"][-1] == "[key]":
        return [errors.BadName((*path[:-1],), path[-1], allowed=describe({"type": "string", "maxLength": 64}))]
    kind = KINDS.get(detail["type"])
    if kind is None and detail["type"].endswith("_type"):
        kind = errors.WrongType
    if kind is None:
        return [errors.InvalidValue(path, value, reason=detail["msg"])]
    if kind is errors.UnknownKey:
        keys = keys_at(path[:-1], data)
        return [kind(path, hint=errors.nearest_name(path[-1], keys), allowed=", ".join(keys))]
    options = schema.get("enum", [schema["const"]] if "const" in schema else [])
    hint = errors.nearest_name(value, map(str, options)) if len(options) > 1 else ""
    return [kind(path, value, allowed=describe(schema), hint=hint)]


def validate(tree: Node, source: str, mistakes: list[SpecError]) -> ModelSpec:
    """The spec of a tree. Raises InvalidSpec with the given mistakes and all that validation finds."""
    data = tree.plain()
    known = {error.path for error in mistakes}
    try:
        spec = ModelSpec.model_validate(data)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            for mistake in translate(detail, data):
                if mistake.path not in known:
                    mistakes.append(mistake.located(source, tree.line_of(mistake.path)))
        raise InvalidSpec(mistakes) from None
    if mistakes:
        raise InvalidSpec(mistakes)
    return spec


def parse_spec(text: str, source: str = "<text>") -> ModelSpec:
    """The spec of a YAML text; `source` names it in messages. Raises InvalidSpec with every mistake found."""
    try:
        tree, mistakes = parse_tree(text, source)
    except SpecError as error:
        raise InvalidSpec([error]) from None
    return validate(tree, source, mistakes)


def read_text(path: FilePath) -> str:
    """The text of a spec file, read no further than its limit. Raises SpecError."""
    try:
        content = read_regular(path, MAX_BYTES)
    except OSError as error:
        raise errors.UnreadableFile(reason=error.strerror or "unknown reason").located(str(path), None) from None
    if len(content) > MAX_BYTES:
        raise errors.TooLong(limit=MAX_BYTES).located(str(path), None)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise errors.NotUtf8(reason=error.reason).located(str(path), line) from None


def load_spec(path: str | FilePath) -> ModelSpec:
    """The spec in a YAML file. Raises InvalidSpec with every mistake found, each with its line."""
    try:
        text = read_text(FilePath(path))
    except SpecError as error:
        raise InvalidSpec([error]) from None
    return parse_spec(text, str(path))

"""docs/dsl.md, from the models: `python -m dsl reference` prints it, and a test holds the page equal."""

from __future__ import annotations

import inspect
import re

from dsl import cost
from dsl.cost import WORDS
from dsl.fields import PLACES, FieldDoc, fields_of
from dsl.rules import RULES
from dsl.starter import starter
from dsl.yaml_tree import MAX_BYTES, MAX_DEPTH, MAX_NODES

COMMAND = "python -m dsl reference"
HEAD = f"""<!-- written by {COMMAND}; a test holds them equal -->

# The spec language

A spec is one YAML file: a model, and the limits of the engine that runs it. `python -m dsl new my-model.yaml` writes
one to start from, `python -m codegen check my-model.yaml` names every mistake with its line, `python -m dsl diff a.yaml
b.yaml` says what a change costs. Derived sizes are never written in a spec.

## The text

UTF-8, one document of at most {MAX_BYTES:,} bytes, {MAX_NODES:,} keys and values, {MAX_DEPTH} levels; a regular file.
Mappings with text keys, each once; lists; text, numbers, `true`, `false`, `null`. Numbers are plain decimal ones as in
YAML 1.2 (`1e-6` is a number; `1_000`, `010`, `0x10` and `1:30` are refused; `.inf` is infinity). Anchors, aliases,
merge keys and tags are refused: a spec says everything where it is read. Every mistake has a code: [errors](errors.md).

## In an editor

`python -m dsl schema > build/stepforge.schema.json` writes a JSON Schema (draft 7) with every description and range.
With [yaml-language-server](https://github.com/redhat-developer/yaml-language-server) (VS Code, Neovim, Helix, Emacs),
this as a spec's first line gives completion, hover texts and ranges while typing; the path is relative to the spec:

    # yaml-language-server: $schema=../build/stepforge.schema.json

What fields must be to each other no schema says; `check` does.

## Fields
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for model, place in PLACES:
        title = f"`{place}`" if place else "The whole"
        rows = [_row(field) for field in fields_of(model)]
        parts.append(f"### {title}\n\n{_doc(model)}\n")
        parts.append("\n".join(["| field | may be | meaning |", "|---|---|---|", *rows]) + "\n")
    rules = [f"- {_doc(rule)}" for rule in RULES]
    parts.append("## What fields must be to each other\n\n" + "\n".join(rules) + "\n")
    figures = [f"- `{name}`: {words}" for name, words in WORDS.items()]
    parts.append(f"## What `diff` counts\n\n{_doc(cost)}\n\n" + "\n".join(figures) + "\n")
    example = "\n".join(f"    {line}".rstrip() for line in starter().splitlines())
    parts.append(f"## A spec to start from\n\nWhat `python -m dsl new` writes:\n\n{example}\n")
    return "\n".join(parts)


def _row(field: FieldDoc) -> str:
    may_be = field.allowed if field.needed else f"{field.allowed}; optional"
    return f"| `{field.name}` | {_cell(may_be)} | {_cell(field.meaning)} |"


def _cell(text: str) -> str:
    return re.sub(r"(\^\S+\$)", r"`\1`", text.replace("|", "\\|").replace("<", "&lt;"))


def _doc(thing: object) -> str:
    """The docstring of a model, a rule or a module."""
    return inspect.cleandoc(getattr(thing, "__doc__", None) or "")

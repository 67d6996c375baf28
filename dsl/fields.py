"""The fields of a spec in the order of the models: what docs/dsl.md lists and the starter spec explains."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from dataclasses import dataclass

from dsl.editor import allowed
from dsl.layers import AttentionSpec, GatedMLPSpec, LayerSpec, Mamba2Spec, RopeSpec, Strict
from dsl.schema import root_schema
from dsl.spec import CheckpointSpec, EngineSpec, ModelSpec, MTPSpec, TokenizerSpec

# Where each model stands in a spec, in the order of the YAML.
PLACES: tuple[tuple[type[Strict], str], ...] = (
    (ModelSpec, ""),
    (TokenizerSpec, "tokenizer"),
    (LayerSpec, "layers.<name>"),
    (Mamba2Spec, "layers.<name>.mixer, kind: mamba2"),
    (AttentionSpec, "layers.<name>.mixer, kind: attention"),
    (RopeSpec, "layers.<name>.mixer.rope"),
    (GatedMLPSpec, "layers.<name>.feed_forward"),
    (MTPSpec, "mtp"),
    (CheckpointSpec, "checkpoints"),
    (EngineSpec, "engine"),
)


@dataclass(frozen=True)
class FieldDoc:
    """One field. meaning: a sentence or two; allowed: type, range and unit, in words; needed: it must be given."""

    name: str
    meaning: str
    allowed: str
    needed: bool


def fields_of(model: type[Strict]) -> Iterator[FieldDoc]:
    """The fields of one model, in order."""
    root = root_schema()
    schema = root if model is ModelSpec else root["$defs"][model.__name__]
    for name, field in schema["properties"].items():
        yield FieldDoc(name, field["description"], allowed(field), name in schema["required"])


def models(root: type[Strict] = ModelSpec) -> set[type[Strict]]:
    """Every model that a spec is made of: PLACES names each."""
    found = {root}
    for field in root.model_fields.values():
        for inner in _classes(field.annotation):
            found |= models(inner)
    return found


def _classes(annotation: object) -> Iterator[type[Strict]]:
    if isinstance(annotation, type) and issubclass(annotation, Strict):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _classes(argument)

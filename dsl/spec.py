"""What a person may ask for: the frozen, strict model of a YAML spec.

Field names and order are those of the YAML. Types say what one field may hold; what fields must be to each other is in
`dsl.rules`, and holds for every `ModelSpec` that exists.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from dsl.layers import AttentionSpec, GatedMLPSpec, LayerSpec, Mamba2Spec, MixerSpec, Name, RopeSpec, Strict
from dsl.rules import violations

__all__ = [
    "AttentionSpec",
    "CheckpointSpec",
    "EngineSpec",
    "GatedMLPSpec",
    "LayerSpec",
    "MTPSpec",
    "Mamba2Spec",
    "MixerSpec",
    "ModelSpec",
    "RopeSpec",
    "TokenizerSpec",
    "spec_sha256",
]

NUM_BYTES = 256  # ids 0 .. 255 of the byte tokenizer


class TokenizerSpec(Strict):
    """Bytes as tokens: ids 0..255 are the bytes, then the specials in order."""

    kind: Literal["bytes"]
    specials: Annotated[tuple[Name, ...], Field(max_length=64)]

    @property
    def num_tokens(self) -> int:
        """Number of ids the tokenizer can produce."""
        return NUM_BYTES + len(self.specials)

    def special_id(self, name: str) -> int:
        """Id of a special token. Raises ValueError if the spec does not name it."""
        return NUM_BYTES + self.specials.index(name)


class MTPSpec(Strict):
    """The multi-token-prediction module that drafts: one layer over (embedding of token i+1, hidden state of i)."""

    layer: Name
    hidden: Literal["pre_norm"]
    concat: tuple[Literal["embedding", "hidden"], Literal["embedding", "hidden"]]
    post_norm: Literal["own", "shared"]


class CheckpointSpec(Strict):
    """Which positions keep a checkpoint. interval: None every page, n one per n tokens, 0 only prompt ends."""

    interval: Annotated[int, Field(ge=0, le=1 << 20)] | None


class EngineSpec(Strict):
    """Limits that size every buffer of the engine."""

    max_slots: Annotated[int, Field(ge=1, le=256)]
    max_context: Annotated[int, Field(ge=2, le=1 << 20)]
    max_drafts: Annotated[int, Field(ge=0, le=7)]
    prefill_chunk: Annotated[int, Field(ge=1, le=4096)]
    page_size: Annotated[int, Field(ge=8, le=128)]
    checkpoint_slots: Annotated[int, Field(ge=1, le=1 << 16)]


class ModelSpec(Strict):
    """A whole model and the limits of its engine, as written in one YAML file."""

    name: Name
    tokenizer: TokenizerSpec
    vocab_size: Annotated[int, Field(ge=1, le=1 << 20)]
    d_model: Annotated[int, Field(ge=2, le=16384)]
    dtype: Literal["bf16"]
    norm_eps: Annotated[float, Field(gt=0.0, le=0.1, allow_inf_nan=False)]
    tie_embeddings: bool
    numerics: Literal["canonical"]
    layers: Annotated[dict[Name, LayerSpec], Field(min_length=1, max_length=64)]
    pattern: Annotated[tuple[Name, ...], Field(min_length=1, max_length=256)]
    mtp: MTPSpec | None = None
    checkpoints: CheckpointSpec
    engine: EngineSpec

    @property
    def pattern_layers(self) -> tuple[LayerSpec, ...]:
        """The layers of `pattern` in order, resolved to their definitions."""
        return tuple(self.layers[name] for name in self.pattern)

    @property
    def mtp_layer(self) -> LayerSpec | None:
        """The definition that `mtp.layer` names, or None without an MTP module."""
        return None if self.mtp is None else self.layers[self.mtp.layer]

    @model_validator(mode="after")
    def _follows_rules(self) -> Self:
        if broken := violations(self):
            text = "; ".join(str(violation) for violation in broken)
            raise PydanticCustomError("rules", "{text}", {"text": text, "violations": broken})
        return self


def spec_sha256(spec: ModelSpec) -> str:
    """Hash of everything a spec says, whatever the order of keys, comments and spelling of numbers in its file."""
    canonical = json.dumps(spec.model_dump(), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()

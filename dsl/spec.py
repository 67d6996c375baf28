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

from dsl.layers import AttentionSpec, GatedMLPSpec, LayerSpec, Mamba2Spec, MixerSpec, Name, RopeSpec, Strict, about
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

    kind: Annotated[Literal["bytes"], about("The only tokenizer.")]
    specials: Annotated[
        tuple[Name, ...],
        Field(max_length=64),
        about(
            "Names of the ids from 256 on, all different. `bos` starts every prompt given as text, `eos` ends answers."
        ),
    ]

    @property
    def num_tokens(self) -> int:
        """Number of ids the tokenizer can produce."""
        return NUM_BYTES + len(self.specials)

    def special_id(self, name: str) -> int:
        """Id of a special token. Raises ValueError if the spec does not name it."""
        return NUM_BYTES + self.specials.index(name)


class MTPSpec(Strict):
    """The multi-token-prediction module that drafts: one layer over (embedding of token i+1, hidden state of i)."""

    layer: Annotated[Name, about("The attention layer, from `layers`, that the module runs.")]
    hidden: Annotated[
        Literal["pre_norm"], about("The hidden state that the module reads: the one before the target's final norm.")
    ]
    concat: Annotated[
        tuple[Literal["embedding", "hidden"], Literal["embedding", "hidden"]],
        about("Order of the two normalised inputs of the projection: each once."),
    ]
    post_norm: Annotated[
        Literal["own", "shared"],
        about("The norm before the head: a weight of its own, or the target's final norm (shared)."),
    ]
    draft_head: Annotated[
        Literal["bf16", "int8", "int4"],
        about(
            "What drafts are chosen by: the target's head (bf16), or a copy of it, made when weights are loaded, in "
            "half the bytes (int8) or about a quarter (int4). It decides no token, only which drafts are accepted."
        ),
    ] = "bf16"


class CheckpointSpec(Strict):
    """Which positions keep a checkpoint. interval: None every page, n one per n tokens, 0 only prompt ends."""

    interval: Annotated[
        Annotated[int, Field(ge=0, le=1 << 20)] | None,
        about(
            "Tokens between checkpoints on the way: null for every page, 0 for none but prompt and answer ends, else "
            "at least engine.max_drafts + 1.",
            "tokens",
        ),
    ]


class EngineSpec(Strict):
    """Limits that size every buffer of the engine."""

    max_slots: Annotated[int, Field(ge=1, le=256), about("Requests decoded together.", "slots")]
    max_context: Annotated[int, Field(ge=2, le=1 << 20), about("Prompt and answer of a request, at most.", "tokens")]
    max_drafts: Annotated[
        int,
        Field(ge=0, le=7),
        about("Draft tokens per step and slot, at most; without `mtp` looked up in the text.", "tokens"),
    ]
    prefill_chunk: Annotated[int, Field(ge=1, le=4096), about("Prompt tokens per prefill launch, at most.", "tokens")]
    page_size: Annotated[int, Field(ge=8, le=128), about("Tokens of a KV page: 8, 16, 32, 64 or 128.", "tokens")]
    checkpoint_slots: Annotated[
        int, Field(ge=1, le=1 << 16), about("Checkpoints kept on the device, at least max_slots + 1.", "checkpoints")
    ]


class ModelSpec(Strict):
    """A whole model and the limits of its engine, as written in one YAML file."""

    name: Annotated[
        Name, about("Name of the model: of its package (- becomes _), and of specs/<name>/weights.safetensors.")
    ]
    tokenizer: Annotated[TokenizerSpec, about("How text becomes token ids.")]
    vocab_size: Annotated[
        int, Field(ge=1, le=1 << 20), about("Rows of the embedding; at least 256 and one per special.", "tokens")
    ]
    d_model: Annotated[int, Field(ge=2, le=16384), about("Width of the residual stream; even.", "channels")]
    dtype: Annotated[
        Literal["bf16"], about("Of weights and inputs of matmuls; the residual stream and states are fp32.")
    ]
    norm_eps: Annotated[
        float, Field(gt=0.0, le=0.1, allow_inf_nan=False), about("Added to the mean square in every RMSNorm.")
    ]
    tie_embeddings: Annotated[bool, about("Whether the head is the embedding; if not, lm_head.weight is a tensor.")]
    numerics: Annotated[
        Literal["canonical"], about("Orders and roundings that do not depend on how a token is computed.")
    ]
    layers: Annotated[
        dict[Name, LayerSpec],
        Field(min_length=1, max_length=64),
        about("Layer definitions by name; each is used in `pattern` or as `mtp.layer`."),
    ]
    pattern: Annotated[
        tuple[Name, ...],
        Field(min_length=1, max_length=256),
        about("The model's layers in order, by name; each entry has weights of its own."),
    ]
    mtp: Annotated[MTPSpec | None, about("The module that drafts; null or left out for none.")] = None
    checkpoints: Annotated[CheckpointSpec, about("Which recurrent states are kept.")]
    engine: Annotated[EngineSpec, about("Limits of the engine; each sizes buffers.")]

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

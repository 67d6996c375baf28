"""Layer definitions: a mixer and, optionally, a feed-forward.

Derived sizes are properties: they are never written in a spec.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

NAME_PATTERN = r"^[a-z][a-z0-9_-]*$"

Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN, max_length=64)]


def about(text: str, unit: str = "") -> Any:
    """What a field means, for docs/dsl.md, editors and the starter spec. unit: of its number, if it has one."""
    return Field(description=text, json_schema_extra={"unit": unit} if unit else None)


class Strict(BaseModel):
    """Base of every part of a spec: immutable, no unknown keys, no coercion between types."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class RopeSpec(Strict):
    """Rotary position embedding over halves of the head: angle = position * theta ** (-2 i / head_dim)."""

    theta: Annotated[
        float,
        Field(ge=1.0, le=1e9, allow_inf_nan=False),
        about("Base of the rotary angles; the longer the context, the larger."),
    ]


class Mamba2Spec(Strict):
    """A Mamba-2 mixer (arXiv 2405.21060). H heads of P channels, state [P, N] per head, B and C per group."""

    kind: Annotated[Literal["mamba2"], about("A Mamba-2 mixer: a recurrent state of fixed size per slot.")]
    num_heads: Annotated[int, Field(ge=1, le=256), about("H: heads, each with a decay of its own.", "heads")]
    head_dim: Annotated[int, Field(ge=1, le=256), about("P: channels of a head.", "channels")]
    state_size: Annotated[
        int, Field(ge=1, le=256), about("N: size of the state per channel; a slot keeps H * P * N fp32.", "elements")
    ]
    num_groups: Annotated[int, Field(ge=1, le=256), about("G: heads share B and C in groups; divides H.", "groups")]
    conv_width: Annotated[
        int, Field(ge=2, le=8), about("Taps of the causal convolution, the current token's included.", "tokens")
    ]
    dt_limit: Annotated[
        tuple[
            Annotated[float, Field(ge=0.0, allow_inf_nan=False)],
            Annotated[float, Field(gt=0.0)],
        ],
        about(
            "Least and greatest time step after softplus; [0.0, .inf] limits nothing. The first is below the second."
        ),
    ]
    norm_groups: Annotated[
        int, Field(ge=1, le=256), about("Groups of the gated RMSNorm over the H * P channels; divides H * P.", "groups")
    ]

    @property
    def d_inner(self) -> int:
        """Channels of x and z: H * P."""
        return self.num_heads * self.head_dim

    @property
    def conv_dim(self) -> int:
        """Channels of the convolution (x, B, C): H * P + 2 * G * N."""
        return self.d_inner + 2 * self.num_groups * self.state_size

    @property
    def in_proj_dim(self) -> int:
        """Rows of in_proj (z, x, B, C, dt)."""
        return self.d_inner + self.conv_dim + self.num_heads


class AttentionSpec(Strict):
    """Causal softmax attention with grouped key/value heads and rotary positions; scale 1 / sqrt(head_dim)."""

    kind: Annotated[Literal["attention"], about("Softmax attention: keys and values of every token are kept.")]
    num_heads: Annotated[int, Field(ge=1, le=256), about("Query heads.", "heads")]
    num_kv_heads: Annotated[
        int, Field(ge=1, le=256), about("Key/value heads, shared by the query heads; divides num_heads.", "heads")
    ]
    head_dim: Annotated[
        int, Field(ge=2, le=256), about("Channels of a head; even, because rope rotates halves.", "channels")
    ]
    rope: Annotated[RopeSpec, about("Rotary positions.")]

    @property
    def q_dim(self) -> int:
        """Rows of q_proj."""
        return self.num_heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        """Rows of k_proj and of v_proj."""
        return self.num_kv_heads * self.head_dim


MixerSpec = Annotated[Mamba2Spec | AttentionSpec, Field(discriminator="kind")]


class GatedMLPSpec(Strict):
    """down_proj(silu(gate_proj(x)) * up_proj(x))."""

    kind: Annotated[Literal["gated_mlp"], about("The only feed-forward.")]
    hidden_size: Annotated[int, Field(ge=1, le=65536), about("Channels between the projections.", "channels")]


class LayerSpec(Strict):
    """A named layer: a mixer, then optionally a feed-forward, each behind its own RMSNorm and residual."""

    mixer: Annotated[MixerSpec, about("What mixes tokens: kind mamba2 or attention.")]
    feed_forward: Annotated[GatedMLPSpec | None, about("What mixes channels; null or left out for none.")] = None

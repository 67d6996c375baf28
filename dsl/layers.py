"""Layer definitions: a mixer and, optionally, a feed-forward.

Derived sizes are properties: they are never written in a spec.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

NAME_PATTERN = r"^[a-z][a-z0-9_-]*$"

Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN, max_length=64)]


class Strict(BaseModel):
    """Base of every part of a spec: immutable, no unknown keys, no coercion between types."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class RopeSpec(Strict):
    """Rotary position embedding over halves of the head: angle = position * theta ** (-2 i / head_dim)."""

    theta: Annotated[float, Field(ge=1.0, le=1e9, allow_inf_nan=False)]


class Mamba2Spec(Strict):
    """A Mamba-2 mixer (arXiv 2405.21060). H heads of P channels, state [P, N] per head, B and C per group."""

    kind: Literal["mamba2"]
    num_heads: Annotated[int, Field(ge=1, le=256)]
    head_dim: Annotated[int, Field(ge=1, le=256)]
    state_size: Annotated[int, Field(ge=1, le=256)]
    num_groups: Annotated[int, Field(ge=1, le=256)]
    conv_width: Annotated[int, Field(ge=2, le=8)]
    dt_limit: tuple[
        Annotated[float, Field(ge=0.0, allow_inf_nan=False)],
        Annotated[float, Field(gt=0.0)],
    ]
    norm_groups: Annotated[int, Field(ge=1, le=256)]

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

    kind: Literal["attention"]
    num_heads: Annotated[int, Field(ge=1, le=256)]
    num_kv_heads: Annotated[int, Field(ge=1, le=256)]
    head_dim: Annotated[int, Field(ge=2, le=256)]
    rope: RopeSpec

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

    kind: Literal["gated_mlp"]
    hidden_size: Annotated[int, Field(ge=1, le=65536)]


class LayerSpec(Strict):
    """A named layer: a mixer, then optionally a feed-forward, each behind its own RMSNorm and residual."""

    mixer: MixerSpec
    feed_forward: GatedMLPSpec | None = None

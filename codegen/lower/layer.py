"""One layer: its mixer, then its feed-forward. A mixer kind is a module and its lines in MIXERS and RESTORES."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from codegen.lower import attention, mamba2
from codegen.lower.builder import Builder
from codegen.lower.common import gated_mlp
from codegen.plan import Launch
from dsl.spec import LayerSpec

MIXERS: dict[str, Callable[..., list[Launch]]] = {"mamba2": mamba2.lower, "attention": attention.lower}
RESTORES: dict[str, Callable[..., list[Launch]]] = {"mamba2": mamba2.restore, "attention": attention.restore}


def lower_layer(
    b: Builder, prefix: str, spec: LayerSpec, stream: str, label: str, prefill: bool = False
) -> list[Launch]:
    """Launches of the layer whose weights start with `prefix`, reading and adding to `stream`."""
    mixer: Any = spec.mixer
    launches = MIXERS[mixer.kind](b, prefix, mixer, stream, label, prefill)
    if spec.feed_forward is not None:
        launches += gated_mlp(b, prefix, stream, spec.feed_forward.hidden_size, label)
    return launches


def restore_layer(b: Builder, prefix: str, spec: LayerSpec, label: str) -> list[Launch]:
    """Launches that put what a checkpoint holds of the layer back into a slot."""
    mixer: Any = spec.mixer
    return RESTORES[mixer.kind](b, prefix, mixer, label)

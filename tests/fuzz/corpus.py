"""Compiled packages of drawn specs, with weights that make every acceptance pattern happen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from torch import Tensor

from codegen.aot import compile_package
from codegen.lower import lower
from codegen.package import write_package
from dsl import ModelSpec
from dsl.reference.weights import random_weights
from dsl.spec import Mamba2Spec
from tests.strategies import specs

LIVELY_TOKENS = 4
LOUDNESS = 12.0
QUIETNESS = 0.3
EXAMPLES = 400


@dataclass(frozen=True)
class Subject:
    """A spec, its package on disk and its weights."""

    spec: ModelSpec
    package: Path
    weights: dict[str, Tensor]


def drawn_specs(count: int, first_seed: int, wanted: Callable[[ModelSpec], bool]) -> list[ModelSpec]:
    """`count` specs that are `wanted` and differ in more than one size, the same ones for the same seed."""
    found: dict[tuple[object, ...], ModelSpec] = {}

    @seed(first_seed)
    @settings(
        max_examples=EXAMPLES,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(specs())
    def collect(spec: ModelSpec) -> None:
        if wanted(spec):
            found.setdefault((spec.pattern, spec.engine.max_drafts), spec)

    collect()
    assert len(found) >= count, f"only {len(found)} of {EXAMPLES} drawn specs are wanted"
    every = len(found) // count
    return [*found.values()][::every][:count]


def is_hybrid_with_drafts(spec: ModelSpec) -> bool:
    """Both mixers, an MTP module and at least three drafts."""
    kinds = {layer.mixer.kind for layer in spec.pattern_layers}
    return len(kinds) == 2 and spec.mtp is not None and spec.engine.max_drafts >= 3


def drafts_past_the_conv(spec: ModelSpec) -> bool:
    """A hybrid whose verify pass is longer than its conv window."""
    widths = [layer.mixer.conv_width for layer in spec.pattern_layers if isinstance(layer.mixer, Mamba2Spec)]
    return is_hybrid_with_drafts(spec) and spec.engine.max_drafts >= max(widths) + 2


def subjects(count: int, first_seed: int, folder: Path) -> Iterator[Subject]:
    """Drawn specs, built under `folder` and kept there: a quarter anything, the rest hybrids that draft."""
    anything, deep = count // 4, count // 4
    drawn = drawn_specs(count - anything - deep, first_seed, is_hybrid_with_drafts)
    drawn += drawn_specs(deep, first_seed + 1, drafts_past_the_conv) if deep else []
    drawn += drawn_specs(anything, first_seed + 2, lambda spec: True) if anything else []
    for number, spec in enumerate(drawn):
        plan = lower(spec, "cpu")
        package = folder / plan.sha256[:16]
        write_package([plan], package, spec, "drawn.yaml")
        compile_package(plan, package)
        yield Subject(spec, package, lively_weights(spec, first_seed + number))


def lively_weights(spec: ModelSpec, weights_seed: int) -> dict[str, Tensor]:
    """Random weights whose answers consist of a few tokens, and whose drafter often agrees with the target, not always.

    The head's rows of LIVELY_TOKENS tokens are +v, -v, +w, -w for random v, w; all others are faint. The layers are
    quiet, so that both target and drafter mostly answer to the last token's embedding, which the module passes through.
    """
    weights = random_weights(spec, weights_seed)
    generator = torch.Generator().manual_seed(weights_seed)
    head = weights["embed.weight" if spec.tie_embeddings else "lm_head.weight"]
    directions = torch.randn((LIVELY_TOKENS // 2, spec.d_model), generator=generator)
    loud = LOUDNESS * torch.nn.functional.normalize(directions, dim=1).repeat_interleave(2, dim=0)
    loud[1::2] *= -1
    head *= 0.02
    head[lively_tokens(spec)] = loud.to(head.dtype)
    for name, weight in weights.items():
        if name.endswith(("out_proj.weight", "o_proj.weight", "down_proj.weight")):
            weight *= QUIETNESS
    if spec.mtp is not None:
        weights["mtp.proj.weight"] *= QUIETNESS
        at = spec.mtp.concat.index("embedding") * spec.d_model
        weights["mtp.proj.weight"][:, at : at + spec.d_model] += torch.eye(spec.d_model, dtype=head.dtype)
    return weights


def lively_tokens(spec: ModelSpec) -> list[int]:
    """The tokens that answers of `lively_weights` mostly consist of; the last special among them, if there is one."""
    return [65, 66, 67, 255 + len(spec.tokenizer.specials)]

"""Compiled packages of drawn specs, with weights that make every acceptance pattern happen."""

from __future__ import annotations

from collections.abc import Iterator
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
from tests.strategies import specs

LIVELY_TOKENS = 4
LOUDNESS = 12.0
QUIETNESS = 0.3


@dataclass(frozen=True)
class Subject:
    """A spec, its package on disk and its weights."""

    spec: ModelSpec
    package: Path
    weights: dict[str, Tensor]


def drawn_specs(count: int, first_seed: int, with_mtp: bool | None = None) -> list[ModelSpec]:
    """`count` different specs, the same ones for the same seed."""
    found: dict[str, ModelSpec] = {}

    @seed(first_seed)
    @settings(
        max_examples=4 * count,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(specs(with_mtp))
    def collect(spec: ModelSpec) -> None:
        found.setdefault(spec.model_dump_json(exclude={"name"}), spec)

    collect()
    return [*found.values()][-count:]


def subjects(count: int, first_seed: int, folder: Path) -> Iterator[Subject]:
    """Drawn specs, built under `folder` (kept there for the next run). Half of them surely have an MTP module."""
    drawn = drawn_specs(count - count // 2, first_seed) + drawn_specs(count // 2, first_seed + 1, with_mtp=True)
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

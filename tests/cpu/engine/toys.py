"""A toy model whose drafter is often right, its package, and what the engine tests compare."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

from codegen.lower import lower
from codegen.package import write_package
from codegen.plan import Plan
from codegen.tunables import Value
from dsl.reference.weights import random_weights
from dsl.spec import ModelSpec
from runtime.checkpoints.checkpoint import Checkpoint
from runtime.engine import Engine
from runtime.layouts import read_entries
from runtime.package import Package, open_package
from runtime.request import Request

# Seed of the tunables of all toys: `STEPFORGE_TUNED_TOYS=1 python -m pytest tests/cpu/engine` tests tuned kernels.
TUNED = int(os.environ["STEPFORGE_TUNED_TOYS"]) if "STEPFORGE_TUNED_TOYS" in os.environ else None

MIXERS: dict[str, Any] = {
    "mamba": {
        "kind": "mamba2", "num_heads": 2, "head_dim": 8, "state_size": 8, "num_groups": 1, "conv_width": 4,
        "dt_limit": (0.0, float("inf")), "norm_groups": 1,
    },
    "attention": {
        "kind": "attention", "num_heads": 2, "num_kv_heads": 1, "head_dim": 8, "rope": {"theta": 10000.0},
    },
}  # fmt: skip
FEED_FORWARD = {"kind": "gated_mlp", "hidden_size": 24}
LAYERS: dict[str, Any] = {
    "mamba": {"mixer": MIXERS["mamba"], "feed_forward": FEED_FORWARD},
    "attention": {"mixer": MIXERS["attention"], "feed_forward": None},
}


MTP = {"layer": "drafter", "hidden": "pre_norm", "concat": ("embedding", "hidden"), "post_norm": "own"}
PATTERN = ("mamba", "attention", "mamba")


def toy_spec(
    mtp: bool = True, pattern: tuple[str, ...] = PATTERN, draft_head: str = "bf16", **engine: int
) -> ModelSpec:
    """Two Mamba-2 layers around an attention layer, 20 wide; pages of 8 tokens, chunks of 16, contexts of 120."""
    limits = {
        "max_slots": 4, "max_context": 120, "max_drafts": 7 if mtp else 0, "prefill_chunk": 16, "page_size": 8,
        "checkpoint_slots": 24,
    }  # fmt: skip
    data = {
        "name": "toy",
        "tokenizer": {"kind": "bytes", "specials": ("bos", "eos")},
        "vocab_size": 258,
        "d_model": 20,
        "dtype": "bf16",
        "norm_eps": 1e-6,
        "tie_embeddings": False,
        "numerics": "canonical",
        "layers": {
            **{name: LAYERS[name] for name in pattern},
            **({"drafter": {"mixer": MIXERS["attention"], "feed_forward": FEED_FORWARD}} if mtp else {}),
        },
        "pattern": pattern,
        "mtp": MTP | {"draft_head": draft_head} if mtp else None,
        "checkpoints": {"interval": 8},
        "engine": limits | engine,
    }
    return ModelSpec.model_validate(data)


def agreeing_weights(spec: ModelSpec, strength: float = 0.25) -> dict[str, Tensor]:
    """Random weights whose layers change little, and a drafter with the same token map: often right."""
    weights = random_weights(spec, seed=11)
    for name in weights:
        if name.endswith(("out_proj.weight", "o_proj.weight", "down_proj.weight")):
            weights[name] = weights[name] * strength
    if spec.mtp is not None:
        d = spec.d_model
        proj = torch.zeros(d, 2 * d)
        proj[:, :d] = torch.eye(d)
        proj[:, d:] = 0.1 * weights["mtp.proj.weight"][:, d:].float()
        weights["mtp.proj.weight"] = proj.to(torch.bfloat16)
        weights["mtp.embedding_norm.weight"] = torch.ones(d)
        weights["mtp.norm.weight"] = weights["final_norm.weight"].clone()
    return weights


def write_toy(folder: Path, cache: Path, spec: ModelSpec, tuned: int | None = TUNED) -> Package:
    """Render a toy into `folder`, with its kernel cache in `cache`: packages whose kernels are equal share them.

    tuned: seed of tunables drawn for it, None for the defaults.
    """
    write_package([toy_plan(spec, tuned)], folder, spec, "toy.yaml")
    cache.mkdir(parents=True, exist_ok=True)
    (folder / "cache").symlink_to(cache)
    return open_package(folder)


def toy_plan(spec: ModelSpec, tuned: int | None = TUNED) -> Plan:
    """The plan of a toy. tuned: seed of its tunables, None for the defaults."""
    plan = lower(spec, "cpu")
    return plan if tuned is None else lower(spec, "cpu", drawn_tunables(plan, tuned))


def drawn_tunables(plan: Plan, seed: int) -> dict[str, dict[str, Value]]:
    """A value for every tunable that changes no bit, of every kernel: what tuning might find, by chance instead."""
    rng = Random(seed)
    drawn = {k.name: {t.name: rng.choice(t.values) for t in k.tunables if not t.changes_bits} for k in plan.kernels}
    return {name: values for name, values in drawn.items() if values}


def with_interval(package: Package, interval: int | None) -> Package:
    """The same package with another checkpoint interval: only the runtime reads it."""
    limits = dataclasses.replace(package.plan.limits, checkpoint_interval=interval)
    return dataclasses.replace(package, plan=dataclasses.replace(package.plan, limits=limits))


@dataclass(frozen=True)
class Ask:
    """One request as a test wants it."""

    prompt: tuple[int, ...]
    max_new_tokens: int = 24
    temperature: float = 0.0
    seed: int = 0
    stop_tokens: tuple[int, ...] = ()

    def submit(self, engine: Engine) -> Request:
        """Queue it."""
        return engine.submit(
            list(self.prompt),
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
            seed=self.seed,
            stop_tokens=self.stop_tokens,
        )


def draw_ask(rng: Random, longest: int = 40, heads: Sequence[tuple[int, ...]] = ()) -> Ask:
    """A request with a prompt of 1 .. longest tokens, sometimes an extension of one of `heads`."""
    head = rng.choice(heads) if heads and rng.random() < 0.5 else ()
    more = tuple(rng.randrange(256) for _ in range(rng.randint(0 if head else 1, longest)))
    stops = tuple(rng.randrange(256) for _ in range(rng.choice((0, 0, 3))))
    temperature = rng.choice((0.0, 0.7, 1.3))
    return Ask((head + more)[:100], rng.randint(1, 30), temperature, rng.getrandbits(40), stops)


class Oracle:
    """Cold answers: a fresh eager engine, one request alone, no drafter, its prompt fed token by token."""

    def __init__(self, package: Package, weights: dict[str, Tensor]) -> None:
        self.package, self.weights = package, weights
        self._known: dict[Ask, tuple[list[int], str | None]] = {}

    def engine(self, drafting: bool = False) -> Engine:
        """A cold engine."""
        return Engine(
            self.package, self.weights, eager=True, drafts=0, drafting=drafting, prefill_chunk=1, checkpoints=False
        )

    def __call__(self, ask: Ask) -> tuple[list[int], str | None]:
        """Output tokens and finish reason."""
        if ask not in self._known:
            engine = self.engine()
            request = ask.submit(engine)
            drain(engine)
            self._known[ask] = (request.output, request.finish_reason)
        return self._known[ask]


def drain(engine: Engine, poison: bool = False) -> None:
    """Run until nothing is left, poisoning what is free before every step if asked."""
    while engine.busy:
        if poison:
            poison_free(engine)
        engine.step()


def poison_free(engine: Engine) -> None:
    """Overwrite everything that no live slot, page or checkpoint owns."""
    scheduler, limits = engine.scheduler, engine.package.plan.limits
    used = {seat.slot for seat in scheduler.seats.all()}
    slots = [slot for slot in range(limits.max_slots) if slot not in used]
    free = {
        "state": slots,
        "ring": slots,
        "kv": scheduler.cache.pages.free_pages(),
        "checkpoint": scheduler.cache.free_rows(),
    }
    engine.buffers.poison(engine.buffers.poisonable(), free)
    engine.buffers.poison(["row_pos", "row_token", "targets", "row_first", "row_count", "row_seat", "row_slot"])
    engine.buffers.poison(_by_slot(engine), {"protocol": slots})


def _by_slot(engine: Engine) -> list[str]:
    """Protocol buffers that hold something of every slot; others are of seats or rows, or are written every step."""
    others = ("slot_idx", "emit_position", "emit_checkpoint", "targets")
    return [
        buffer.name
        for buffer in engine.package.plan.role("protocol")
        if not buffer.name.startswith("row_") and buffer.name not in others
    ]


def check_nothing_left(engine: Engine) -> None:
    """Without requests, rows and pages of both pools belong to published checkpoints, and nothing is in use."""
    cache, limits, host = engine.scheduler.cache, engine.package.plan.limits, engine.scheduler.tiers.host
    assert not engine.busy
    assert not [c for c in cache.all() if c.busy or c.holders or not c.published]
    assert cache.pages.in_use == len({page for checkpoint in cache for page in checkpoint.pages})
    assert len(cache.free_rows()) + sum(c.index is not None for c in cache) == limits.checkpoint_slots
    if host is not None:
        copies = [c.copy for c in cache if c.copy is not None]
        rows, pages = {copy.row for copy in copies}, {page for copy in copies for _, page in copy.pages}
        assert host.free == (host.size[0] - len(rows), host.size[1] - len(pages)) and len(rows) == len(copies)


def live_parts(engine: Engine, slot: int, position: int) -> Iterator[tuple[str, Tensor]]:
    """What a checkpoint at `position` of a slot must hold, from the slot's live buffers."""
    plan = engine.package.plan
    for part in plan.checkpoint_parts:
        live = engine.buffers[part.live][slot]
        if part.kind == "slot":
            yield part.live, live
        elif part.kind == "hidden":
            yield part.live, live[(position - 1) % plan.limits.ring]
        else:
            rows = range(max(0, position - part.width), position)
            yield part.live, torch.stack([live[p % plan.limits.ring] for p in rows])


def checkpoint_parts(engine: Engine, checkpoint: Checkpoint) -> Iterator[tuple[str, Tensor]]:
    """The same of a checkpoint; window rows before position zero are left out."""
    for part in engine.package.plan.checkpoint_parts:
        kept = engine.buffers[part.checkpoint][checkpoint.index]
        yield part.live, kept[max(0, part.width - checkpoint.position) :] if part.kind == "window" else kept


def kv_entries(engine: Engine, name: str, pages: Sequence[int], count: int) -> Tensor:
    """KV entries 0 .. count - 1 of a cache, [count, kv_heads, BLOCK_D] as bits."""
    plan = engine.package.plan
    cache = engine.buffers[name].view(torch.int16)
    return read_entries(plan.buffers[name], cache[list(pages)], plan.limits.page_size)[:count]


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equality of bits, so that NaN equals NaN and -0 differs from 0."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)))

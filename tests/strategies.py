"""Hypothesis strategies of valid specs: small, and odd wherever a spec may be odd."""

from __future__ import annotations

from typing import Any

import yaml
from hypothesis import strategies as st

from dsl.spec import ModelSpec

Data = dict[str, Any]
PAGE_SIZES = (8, 16, 32, 64, 128)
NAMES = st.from_regex(r"[a-z][a-z0-9_-]{0,7}", fullmatch=True)


def divisors(number: int) -> list[int]:
    """Every divisor, ascending."""
    return [i for i in range(1, number + 1) if number % i == 0]


@st.composite
def mamba2_mixers(draw: st.DrawFn) -> Data:
    """Odd head counts, groups that share heads, states and heads that are no powers of two."""
    num_heads, head_dim = draw(st.integers(1, 6)), draw(st.integers(1, 20))
    dt_limits = st.sampled_from([(0.0, float("inf")), (0.0, 0.05), (0.01, float("inf")), (0.005, 0.1)])
    return {
        "kind": "mamba2",
        "num_heads": num_heads,
        "head_dim": head_dim,
        "state_size": draw(st.integers(1, 24)),
        "num_groups": draw(st.sampled_from(divisors(num_heads))),
        "conv_width": draw(st.integers(2, 5)),
        "dt_limit": draw(dt_limits),
        "norm_groups": draw(st.sampled_from(divisors(num_heads * head_dim))),
    }


@st.composite
def attention_mixers(draw: st.DrawFn) -> Data:
    """Odd head counts, shared key/value heads, even head sizes."""
    num_heads = draw(st.integers(1, 6))
    return {
        "kind": "attention",
        "num_heads": num_heads,
        "num_kv_heads": draw(st.sampled_from(divisors(num_heads))),
        "head_dim": 2 * draw(st.integers(1, 12)),
        "rope": {"theta": draw(st.sampled_from([10000.0, 100.0, 500000.0]))},
    }


@st.composite
def layers(draw: st.DrawFn, mixers: st.SearchStrategy[Data]) -> Data:
    """A mixer, with or without a feed-forward."""
    feed_forwards = st.builds(lambda n: {"kind": "gated_mlp", "hidden_size": n}, st.integers(1, 48))
    return {"mixer": draw(mixers), "feed_forward": draw(st.none() | feed_forwards)}


@st.composite
def engines(draw: st.DrawFn, has_mtp: bool) -> Data:
    """Limits where neither pages, chunks nor contexts divide each other."""
    max_slots = draw(st.integers(1, 4))
    return {
        "max_slots": max_slots,
        "max_context": draw(st.integers(24, 200)),
        "max_drafts": draw(st.integers(0, 7)) if has_mtp else draw(st.sampled_from([0, 0, 3, 7])),
        "prefill_chunk": draw(st.integers(1, 40)),
        "page_size": draw(st.sampled_from(PAGE_SIZES)),
        "checkpoint_slots": max_slots + draw(st.integers(1, 8)),
    }


@st.composite
def spec_data(draw: st.DrawFn, with_mtp: bool | None = None) -> Data:
    """The data of a valid spec, as its YAML would give it. with_mtp: None for either."""
    definitions = {name: draw(layers(mamba2_mixers())) for name in ("mamba", "mamba-2")}
    definitions |= {name: draw(layers(attention_mixers())) for name in ("attention", "attention_2", "drafter")}
    pattern = draw(st.lists(st.sampled_from([*definitions][:4]), min_size=1, max_size=4))
    has_mtp = draw(st.booleans()) if with_mtp is None else with_mtp
    mtp = None
    if has_mtp:
        attentions = ["drafter", *(name for name in pattern if name.startswith("attention"))]
        mtp = {
            "layer": draw(st.sampled_from(attentions)),
            "hidden": "pre_norm",
            "concat": tuple(draw(st.permutations(["embedding", "hidden"]))),
            "post_norm": draw(st.sampled_from(["own", "shared"])),
            "draft_head": draw(st.sampled_from(["bf16", "int8", "int4"])),
        }
    used = {*pattern, *([mtp["layer"]] if mtp else [])}
    specials = draw(st.lists(NAMES, max_size=3, unique=True))
    engine = draw(engines(has_mtp))
    intervals = st.sampled_from([None, 0]) | st.integers(engine["max_drafts"] + 1, 50)
    return {
        "name": draw(NAMES),
        "tokenizer": {"kind": "bytes", "specials": tuple(specials)},
        "vocab_size": 256 + len(specials) + draw(st.integers(0, 5)),
        "d_model": 2 * draw(st.integers(2, 24)),
        "dtype": "bf16",
        "norm_eps": draw(st.sampled_from([1e-6, 1e-5, 1e-3])),
        "tie_embeddings": draw(st.booleans()),
        "numerics": "canonical",
        "layers": {name: layer for name, layer in definitions.items() if name in used},
        "pattern": tuple(pattern),
        "mtp": mtp,
        "checkpoints": {"interval": draw(intervals)},
        "engine": engine,
    }


def specs(with_mtp: bool | None = None) -> st.SearchStrategy[ModelSpec]:
    """Small valid specs. with_mtp: None for either."""
    return spec_data(with_mtp).map(ModelSpec.model_validate)


def to_yaml(spec: ModelSpec) -> str:
    """A YAML text of a spec."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, tuple) else value

    return yaml.safe_dump(plain(spec.model_dump()), sort_keys=False)

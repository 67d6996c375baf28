"""What the fields of a spec must be to each other. Each rule yields its mistakes, with the path of the field."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from dsl import errors
from dsl.errors import Path, SpecError, nearest_multiples, nearest_name
from dsl.layers import AttentionSpec, Mamba2Spec
from dsl.tensors import num_parameters

if TYPE_CHECKING:
    from dsl.spec import ModelSpec

PAGE_SIZES = (8, 16, 32, 64, 128)
MAX_PARAMETERS = 1 << 34
MAX_CACHED_TOKENS = 1 << 26
MAX_STATE_ELEMENTS = 1 << 34

Mistakes = Iterator[SpecError]


def layer_names(spec: ModelSpec) -> Mistakes:
    """`pattern` and `mtp.layer` name defined layers, and every definition is used."""
    used: list[tuple[Path, str]] = [(("pattern", i), name) for i, name in enumerate(spec.pattern)]
    if spec.mtp is not None:
        used.append((("mtp", "layer"), spec.mtp.layer))
    for path, name in used:
        if name not in spec.layers:
            yield errors.UnknownLayer(path, name, hint=nearest_name(name, spec.layers), allowed=", ".join(spec.layers))
    for name in spec.layers:
        if name not in {other for _, other in used}:
            yield errors.UnusedLayer(("layers", name))


def mixer_sizes(spec: ModelSpec) -> Mistakes:
    """Heads share groups evenly, norm groups share channels evenly, rotary heads have two halves."""
    for name, layer in spec.layers.items():
        path: Path = ("layers", name, "mixer")
        mixer = layer.mixer
        if isinstance(mixer, AttentionSpec):
            yield from divides(path, "num_kv_heads", mixer.num_kv_heads, "num_heads", mixer.num_heads)
            if mixer.head_dim % 2:
                yield odd_size((*path, "head_dim"), mixer.head_dim, "rope rotates halves")
        else:
            yield from divides(path, "num_groups", mixer.num_groups, "num_heads", mixer.num_heads)
            yield from divides(path, "norm_groups", mixer.norm_groups, "num_heads * head_dim", mixer.d_inner)
            if mixer.dt_limit[0] >= mixer.dt_limit[1]:
                yield errors.EmptyInterval((*path, "dt_limit"), mixer.dt_limit)


def divides(path: Path, name: str, value: int, dividend_name: str, dividend: int) -> Mistakes:
    """One size divides another."""
    if dividend % value:
        allowed = ", ".join(str(i) for i in range(1, min(dividend, 256) + 1) if dividend % i == 0)
        details = {"dividend_name": dividend_name, "dividend": dividend, "allowed": allowed}
        yield errors.NotADivisor((*path, name), value, **details)


def odd_size(path: Path, value: int, reason: str) -> SpecError:
    """The mistake of a size that must be even."""
    return errors.OddSize(path, value, reason=reason, hint=nearest_multiples(value, 2))


def model_sizes(spec: ModelSpec) -> Mistakes:
    """The residual stream is even, the vocabulary holds every token, the weights stay within reason."""
    if spec.d_model % 2:
        yield odd_size(("d_model",), spec.d_model, "kernels read pairs of bf16")
    specials = spec.tokenizer.specials
    for i, name in enumerate(specials):
        if name in specials[:i]:
            yield errors.DuplicateName(("tokenizer", "specials", i), name)
    if spec.vocab_size < spec.tokenizer.num_tokens:
        yield errors.VocabTooSmall(("vocab_size",), spec.vocab_size, needed=spec.tokenizer.num_tokens)


def mtp_module(spec: ModelSpec) -> Mistakes:
    """The MTP module is an attention layer with one of each input."""
    if spec.mtp is None:
        return
    layer = spec.layers.get(spec.mtp.layer)
    if layer is not None and not isinstance(layer.mixer, AttentionSpec):
        fitting = [name for name, other in spec.layers.items() if isinstance(other.mixer, AttentionSpec)]
        hint = f"; defined: {', '.join(fitting)}" if fitting else ""
        yield errors.MtpMixer(("mtp", "layer"), spec.mtp.layer, kind=layer.mixer.kind, hint=hint)
    if len(set(spec.mtp.concat)) == 1:
        yield errors.DuplicateName(("mtp", "concat"), spec.mtp.concat)


def engine_limits(spec: ModelSpec) -> Mistakes:
    """Pages, checkpoints and drafts fit together."""
    engine, interval = spec.engine, spec.checkpoints.interval
    if engine.page_size not in PAGE_SIZES:
        allowed = ", ".join(map(str, PAGE_SIZES))
        yield errors.NotAPowerOfTwo(("engine", "page_size"), engine.page_size, allowed=allowed)
    if interval is not None and 0 < interval <= engine.max_drafts:
        yield errors.SparseInterval(("checkpoints", "interval"), interval, least=engine.max_drafts + 1)
    if engine.checkpoint_slots <= engine.max_slots:
        least = engine.max_slots + 1
        yield errors.TooFewCheckpoints(("engine", "checkpoint_slots"), engine.checkpoint_slots, least=least)


def total_sizes(spec: ModelSpec) -> Mistakes:
    """Products of sizes that are each within bounds stay within bounds too."""
    engine = spec.engine
    if any(name not in spec.layers for name in (*spec.pattern, *([spec.mtp.layer] if spec.mtp else []))):
        return
    if (total := num_parameters(spec)) > MAX_PARAMETERS:
        yield errors.TooLarge(("pattern",), what="parameters", total=total, limit=MAX_PARAMETERS)
    if (total := engine.max_slots * engine.max_context) > MAX_CACHED_TOKENS:
        what = "max_slots * max_context"
        yield errors.TooLarge(("engine", "max_context"), what=what, total=total, limit=MAX_CACHED_TOKENS)
    mixers = [layer.mixer for layer in spec.pattern_layers]
    state = sum(mixer.d_inner * mixer.state_size for mixer in mixers if isinstance(mixer, Mamba2Spec))
    if (total := state * (engine.max_slots + engine.checkpoint_slots)) > MAX_STATE_ELEMENTS:
        what = "state elements of all slots and checkpoints"
        yield errors.TooLarge(("engine", "checkpoint_slots"), what=what, total=total, limit=MAX_STATE_ELEMENTS)


RULES: tuple[Callable[[ModelSpec], Mistakes], ...] = (
    layer_names,
    mixer_sizes,
    model_sizes,
    mtp_module,
    engine_limits,
    total_sizes,
)


def violations(spec: ModelSpec) -> list[SpecError]:
    """Every mistake between the fields of a spec."""
    return [mistake for rule in RULES for mistake in rule(spec)]

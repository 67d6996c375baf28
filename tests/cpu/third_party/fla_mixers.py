"""flash-linear-attention: token mixers. References are the library's own naive PyTorch versions unless written here."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from fla.ops.attn import parallel_attn
from fla.ops.delta_rule import chunk_delta_rule, fused_recurrent_delta_rule
from fla.ops.delta_rule.naive import delta_rule_recurrence
from fla.ops.forgetting_attn.naive import naive_forgetting_attn
from fla.ops.forgetting_attn.parallel import parallel_forgetting_attn
from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule
from fla.ops.gla import chunk_gla, fused_recurrent_gla
from fla.ops.gla.naive import naive_recurrent_gla
from fla.ops.hgrn import chunk_hgrn, fused_recurrent_hgrn
from fla.ops.hgrn.naive import naive_recurrent_hgrn
from fla.ops.kda import chunk_kda, fused_recurrent_kda
from fla.ops.kda.naive import naive_recurrent_kda
from fla.ops.linear_attn import chunk_linear_attn, fused_recurrent_linear_attn
from fla.ops.linear_attn.naive import naive_recurrent_linear_attn
from fla.ops.simple_gla import (
    chunk_simple_gla,
    fused_chunk_simple_gla,
    fused_recurrent_simple_gla,
    parallel_simple_gla,
)
from fla.ops.simple_gla.naive import naive_parallel_simple_gla, naive_recurrent_simple_gla

from tests.cpu.third_party.check import Case, Inputs

B, T, H, K, V = 1, 100, 2, 64, 64
WIDE = frozenset({"g", "initial_state"})


def _qkv() -> Inputs:
    return {"q": torch.randn(B, T, H, K), "k": torch.randn(B, T, H, K), "v": torch.randn(B, T, H, V)}


def _unit_keys() -> Inputs:
    inputs = _qkv()
    return inputs | {name: F.normalize(inputs[name], dim=-1) for name in ("q", "k")}


def _state() -> Inputs:
    return {"initial_state": torch.randn(B, H, K, V)}


def _gated_delta() -> Inputs:
    return _unit_keys() | {"g": F.logsigmoid(torch.randn(B, T, H)), "beta": torch.rand(B, T, H)} | _state()


def _key_gated_delta() -> Inputs:
    return _unit_keys() | {"g": F.logsigmoid(torch.randn(B, T, H, K)), "beta": torch.rand(B, T, H)} | _state()


def _sequences() -> Inputs:
    """Two sequences of 37 and 63 tokens, twice as many value heads as key heads."""
    inputs = _unit_keys() | {"v": torch.randn(B, T, 2 * H, V)}
    gates = {"g": F.logsigmoid(torch.randn(B, T, 2 * H)), "beta": torch.rand(B, T, 2 * H)}
    return inputs | gates | {"cu_seqlens": torch.tensor([0, 37, T])}


def _naive_sequences(q, k, cu_seqlens, **others):
    tokens = {"q": q.repeat_interleave(2, 2), "k": k.repeat_interleave(2, 2), **others}
    bounds = zip(cu_seqlens.tolist(), cu_seqlens.tolist()[1:], strict=False)
    parts = [{name: x[:, begin:end] for name, x in tokens.items()} for begin, end in bounds]
    return torch.cat([naive_recurrent_gated_delta_rule(**part)[0] for part in parts], 1)


def _delta() -> Inputs:
    return _unit_keys() | {"beta": torch.rand(B, T, H)} | _state()


def _head_gated() -> Inputs:
    return _qkv() | {"g": F.logsigmoid(torch.randn(B, T, H))} | _state()


def _key_gated() -> Inputs:
    return _qkv() | {"g": F.logsigmoid(torch.randn(B, T, H, K))} | _state()


def _elementwise_gated() -> Inputs:
    return {"x": torch.randn(2, T, 96), "g": F.logsigmoid(torch.randn(2, T, 96))}


def _naive_delta(q, k, v, beta, initial_state):
    scaled = (x.transpose(1, 2) for x in (q, k, v, beta))
    o, state = delta_rule_recurrence(*scaled, initial_state=initial_state, output_final_state=True)
    return o.transpose(1, 2), state


def _naive_gla(q, k, v, g, initial_state):
    return naive_recurrent_gla(q, k, v, g, initial_state=initial_state, output_final_state=True)


def _attention(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def _with_state(function):
    return lambda **inputs: function(**inputs, output_final_state=True)


def _first(function):
    return lambda **inputs: function(**inputs)[0]


def _gates_named_gk(function):
    return lambda q, k, v, g, initial_state: function(
        q, k, v, gk=g, initial_state=initial_state, output_final_state=True
    )


def _case(name, inputs, kernel, reference, dtype=torch.float32, **options) -> Case:
    return Case(name, "fla", inputs, kernel, reference, dtype, wide=WIDE, **options)


def _both(name, inputs, kernel, reference, **options) -> list[Case]:
    return [_case(name, inputs, kernel, reference, dtype, **options) for dtype in (torch.float32, torch.bfloat16)]


_naive_gated_delta = _with_state(naive_recurrent_gated_delta_rule)
_naive_simple_gla = _with_state(naive_recurrent_simple_gla)
_naive_linear = _with_state(naive_recurrent_linear_attn)


CASES = [
    *_both("chunk_gated_delta_rule", _gated_delta, _with_state(chunk_gated_delta_rule), _naive_gated_delta),
    # the library has no backward of this one
    *_both(
        "fused_recurrent_gated_delta_rule", _gated_delta, _with_state(fused_recurrent_gated_delta_rule),
        _naive_gated_delta, backward=False,
    ),
    _case("chunk_gated_delta_rule_sequences", _sequences, _first(chunk_gated_delta_rule), _naive_sequences),
    _case(
        "fused_recurrent_gated_delta_rule_sequences", _sequences, _first(fused_recurrent_gated_delta_rule),
        _naive_sequences, backward=False,
    ),
    # the library refuses f32 here
    _case("chunk_delta_rule", _delta, _with_state(chunk_delta_rule), _naive_delta, torch.bfloat16),
    _case("fused_recurrent_delta_rule", _delta, _with_state(fused_recurrent_delta_rule), _naive_delta),
    *_both("chunk_simple_gla", _head_gated, _with_state(chunk_simple_gla), _naive_simple_gla),
    _case("fused_recurrent_simple_gla", _head_gated, _with_state(fused_recurrent_simple_gla), _naive_simple_gla),
    _case("fused_chunk_simple_gla", _head_gated, _with_state(fused_chunk_simple_gla), _naive_simple_gla),
    _case(
        "parallel_simple_gla", lambda: _qkv() | {"g": F.logsigmoid(torch.randn(B, T, H))}, _first(parallel_simple_gla),
        _first(naive_parallel_simple_gla),
    ),
    _case("chunk_gla", _key_gated, _with_state(chunk_gla), _naive_gla),
    _case("fused_recurrent_gla", _key_gated, _gates_named_gk(fused_recurrent_gla), _naive_gla),
    _case("chunk_kda", _key_gated_delta, _with_state(chunk_kda), _with_state(naive_recurrent_kda)),
    _case(
        "fused_recurrent_kda", _key_gated_delta, _with_state(fused_recurrent_kda), _with_state(naive_recurrent_kda),
        backward=False,
    ),
    _case("chunk_linear_attn", lambda: _qkv() | _state(),
          lambda **x: chunk_linear_attn(**x, normalize=False, output_final_state=True), _naive_linear),
    _case("fused_recurrent_linear_attn", lambda: _qkv() | _state(), _with_state(fused_recurrent_linear_attn),
          _naive_linear),
    _case("chunk_hgrn", _elementwise_gated, _first(chunk_hgrn), _first(naive_recurrent_hgrn)),
    _case("fused_recurrent_hgrn", _elementwise_gated, _first(fused_recurrent_hgrn), _first(naive_recurrent_hgrn)),
    *_both("parallel_attn", _qkv, parallel_attn, _attention),
    _case("parallel_forgetting_attn", lambda: _qkv() | {"g": F.logsigmoid(torch.randn(B, T, H))},
          parallel_forgetting_attn, naive_forgetting_attn),
]  # fmt: skip

"""Hugging Face transformers as an independent oracle: same weights, same logits."""

import pytest
import torch
from transformers import (
    BambaConfig,
    BambaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Mamba2Config,
    Mamba2ForCausalLM,
)

from dsl.reference import model
from dsl.reference.weights import random_weights
from dsl.spec import ModelSpec

MAMBA = {"num_heads": 6, "head_dim": 16, "state_size": 24, "conv_width": 4}
D_MODEL = 48


def make_spec(pattern, *, groups, norm_groups, feed_forward, dt_limit, tie_embeddings):
    mlp = {"kind": "gated_mlp", "hidden_size": 56} if feed_forward else None
    mamba = {"kind": "mamba2", **MAMBA, "num_groups": groups, "norm_groups": norm_groups, "dt_limit": dt_limit}
    attention = {"kind": "attention", "num_heads": 4, "num_kv_heads": 2, "head_dim": 12, "rope": {"theta": 1000.0}}
    layers = {name: {"mixer": mixer, "feed_forward": mlp} for name, mixer in (("m", mamba), ("a", attention))}
    return ModelSpec.model_validate(
        {
            "name": "oracle",
            "tokenizer": {"kind": "bytes", "specials": ()},
            "vocab_size": 256,
            "d_model": D_MODEL,
            "dtype": "bf16",
            "norm_eps": 1e-5,
            "tie_embeddings": tie_embeddings,
            "numerics": "canonical",
            "layers": {name: layers[name] for name in dict.fromkeys(pattern)},
            "pattern": tuple(pattern),
            "checkpoints": {"interval": None},
            "engine": {
                "max_slots": 1,
                "max_context": 64,
                "max_drafts": 0,
                "prefill_chunk": 16,
                "page_size": 16,
                "checkpoint_slots": 2,
            },
        }
    )


def load(oracle, weights, rename):
    """Give the oracle our weights under its names; every one of its parameters must be covered."""
    state = {rename(name): value for name, value in weights.items()}
    for name in [name for name in state if name.endswith("conv1d.weight")]:
        state[name] = state[name][:, None]  # [C, 1, W]
    missing, unexpected = oracle.load_state_dict(state, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    oracle.tie_weights()
    return oracle.float().eval()


def compare(spec, oracle, weights):
    tokens = torch.randint(spec.vocab_size, (2, 70), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = oracle(tokens, use_cache=False).logits
        for scan in ("recurrent", "chunked"):
            logits = model.forward(spec, weights, tokens, scan=scan).logits
            torch.testing.assert_close(logits, expected, rtol=2e-4, atol=2e-4)
    assert expected.std() > 0.5


def renamer(pairs):
    def rename(name):
        for ours, theirs in pairs:
            name = name.replace(ours, theirs)
        return name

    return rename


def fp32_weights(spec):
    return {name: value.float() for name, value in random_weights(spec, seed=3).items()}


@pytest.mark.parametrize("dt_limit", [(0.0, float("inf")), (0.005, 0.05)])
@pytest.mark.parametrize("groups", [1, 2])
def test_bamba_hybrid(groups, dt_limit):
    spec = make_spec(
        "mamam", groups=groups, norm_groups=groups, feed_forward=True, dt_limit=dt_limit, tie_embeddings=False
    )
    config = BambaConfig(
        vocab_size=256,
        hidden_size=D_MODEL,
        intermediate_size=56,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=2,
        rms_norm_eps=1e-5,
        attn_layer_indices=[1, 3],
        mamba_n_heads=6,
        mamba_d_head=16,
        mamba_n_groups=groups,
        mamba_d_state=24,
        mamba_d_conv=4,
        mamba_expand=2,
        mamba_chunk_size=32,
        time_step_limit=dt_limit,
        pad_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
    )
    config.rope_parameters["partial_rotary_factor"] = 1.0
    pairs = [
        ("final_norm", "model.final_layernorm"),
        ("embed.", "model.embed_tokens."),
        ("layers.", "model.layers."),
        ("feed_forward_norm", "pre_ff_layernorm"),
        ("mixer.conv.", "mixer.conv1d."),
    ]
    for i, kind in enumerate("mamam"):
        pairs += [(f"layers.{i}.norm.", f"layers.{i}.input_layernorm.")]
        pairs += [(f"layers.{i}.mixer", f"layers.{i}." + ("mamba" if kind == "m" else "self_attn"))]
    weights = fp32_weights(spec)
    compare(spec, load(BambaForCausalLM(config), weights, renamer(pairs)), weights)


def test_mamba2():
    spec = make_spec(
        "mmm", groups=3, norm_groups=3, feed_forward=False, dt_limit=(0.0, float("inf")), tie_embeddings=True
    )
    config = Mamba2Config(
        num_heads=6,
        head_dim=16,
        vocab_size=256,
        hidden_size=D_MODEL,
        state_size=24,
        num_hidden_layers=3,
        layer_norm_epsilon=1e-5,
        expand=2,
        conv_kernel=4,
        n_groups=3,
        chunk_size=32,
        tie_word_embeddings=True,
        pad_token_id=None,
    )
    pairs = [("final_norm", "backbone.norm_f"), ("embed.", "backbone.embeddings."), ("layers.", "backbone.layers.")]
    pairs.append(("mixer.conv.", "mixer.conv1d."))
    weights = fp32_weights(spec)
    compare(spec, load(Mamba2ForCausalLM(config), weights, renamer(pairs)), weights)


def test_llama():
    spec = make_spec("aaa", groups=1, norm_groups=1, feed_forward=True, dt_limit=(0.0, 1.0), tie_embeddings=False)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=D_MODEL,
        intermediate_size=56,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        tie_word_embeddings=False,
        pad_token_id=None,
    )
    pairs = [
        ("final_norm", "model.norm"),
        ("embed.", "model.embed_tokens."),
        ("layers.", "model.layers."),
        ("feed_forward_norm", "post_attention_layernorm"),
        ("feed_forward", "mlp"),
        ("mixer", "self_attn"),
    ]
    pairs += [(f"layers.{i}.norm.", f"layers.{i}.input_layernorm.") for i in range(3)]
    weights = fp32_weights(spec)
    compare(spec, load(LlamaForCausalLM(config), weights, renamer(pairs)), weights)

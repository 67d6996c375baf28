"""What a slot's tokens are drawn with: buffers, and the constants of the kernels that draw. See docs/sampling.md."""

from __future__ import annotations

from codegen.lower.builder import Builder
from codegen.lower.targets import next_power_of_two
from codegen.plan import Role

BY_SLOT = {
    "int32": ("adjusted", "counted", "masked", "min_len", "num_biases", "top_k"),
    "fp32": ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
    "int64": ("seed",),
}

# What both sampling kernels take, in the order of templates/kernels/_sampling.j2.
SAMPLING = (
    "tokens",
    "stop_tokens",
    "token_counts",
    "grammar_mask",
    "adjusted",
    "temperature",
    "seed",
    "min_len",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "num_biases",
    "bias_tokens",
    "bias_values",
    "top_k",
    "top_p",
    "min_p",
    "logits",
)


def declare_sampling(b: Builder) -> None:
    """Buffers by slot.

    slot_text: tokens 0 .. committed_len; token_counts: of prompt and output; grammar_mask: a bit per token and row.
    """
    limits, slots = b.limits, b.limits.max_slots
    for dtype, names in BY_SLOT.items():
        for name in names:
            b.buffer(name, (slots,), dtype, Role.PROTOCOL)
    b.buffer("bias_tokens", (slots, limits.max_biases), "int32", Role.PROTOCOL, fill="pad")
    b.buffer("bias_values", (slots, limits.max_biases), "fp32", Role.PROTOCOL)
    b.buffer("slot_text", (slots, text_size(b)), "int32", Role.PROTOCOL)
    b.buffer("token_counts", (slots, limits.vocab_size), "int32", Role.PROTOCOL)
    b.buffer("grammar_mask", (slots, limits.max_rows, _mask_words(b)), "int32", Role.PROTOCOL)


def text_size(b: Builder) -> int:
    """Tokens of a slot's text at most, rejected ones included."""
    return b.limits.max_context + b.limits.max_rows


def _mask_words(b: Builder) -> int:
    return -(-b.limits.vocab_size // 32)


def sampling_constants(b: Builder) -> dict[str, int]:
    """Constants of the kernels that draw tokens."""
    limits = b.limits
    return {
        "VOCAB": limits.vocab_size,
        "BLOCK_V": min(1024, next_power_of_two(limits.vocab_size)),
        "MAX_ROWS": limits.max_rows,
        "MAX_STOP": limits.max_stop_tokens,
        "MAX_BIASES": limits.max_biases,
        "MASK_WORDS": _mask_words(b),
    }

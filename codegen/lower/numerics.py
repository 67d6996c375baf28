"""The fields of a plan that decide bits. Their hash stamps every checkpoint."""

from __future__ import annotations

from codegen.lower.builder import Builder


def stamp_numerics(b: Builder) -> None:
    """Name every order, split length and rounding point. See docs/numerics.md."""
    b.numerics |= {
        "target": b.target.name,
        "mode": b.spec.numerics,
        "contraction": "explicit tl.fma only",
        "matmul": "bf16 operands, fp32 accumulation over ascending k-pairs, odd before even",
        "matmul_row_tiles": list(b.target.row_tiles),
        "residual": "fp32",
        "state": "fp32, folded in token order",
        "attention_split": b.limits.page_size,
        "attention_weights": "bf16",
        "rounding": "bf16 at matmul inputs, q, k, v, attention weights and context",
        "num_warps": b.target.num_warps,
    }

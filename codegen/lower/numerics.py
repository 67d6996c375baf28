"""The fields of a plan that decide bits. Their hash, with the weights and versions, stamps every checkpoint."""

from __future__ import annotations

from codegen.aot_worker import device_functions_sha256
from codegen.lower.builder import Builder
from codegen.render import template_sha256


def stamp_numerics(b: Builder) -> None:
    """Every kernel's text and what of its constants and tiles decides bits, the device functions, and in words what
    docs/numerics.md explains. A choice that changes no bit is no part of it: a tuned build restores what an untuned
    one has saved.
    """
    b.numerics |= {
        "target": b.target.name,
        "mode": b.spec.numerics,
        "spec": b.spec_sha256,
        "contraction": "explicit tl.fma only",
        "matmul": "bf16 operands, fp32 accumulation over ascending k-pairs, odd before even",
        **_draft_head(b),
        "residual": "fp32",
        "state": "fp32, folded in token order",
        "attention_split": b.limits.page_size,
        "rounding": "bf16 at matmul inputs, q, k, v, attention weights and context",
        "num_warps": b.target.num_warps,
        "device_functions": device_functions_sha256(),
        "kernels": {kernel.name: [template_sha256(kernel.template), kernel.deciding] for kernel in b.kernels.values()},
    }


def _draft_head(b: Builder) -> dict[str, str]:
    """Of drafts that are not chosen by the target's head."""
    if b.spec.mtp is None or b.spec.mtp.draft_head == "bf16":
        return {}
    words = {
        "int8": "int8 rows and weights, scales max / 127, halves up; int32 sums",
        "int4": "int8 rows, scales max / 127, halves up; int4 weights by groups of 64 with multipliers; int32 sums",
    }
    return {"draft_head": words[b.spec.mtp.draft_head]}

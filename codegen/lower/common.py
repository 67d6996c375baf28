"""Launches that every layer kind uses: RMSNorm, matmul and gated MLP."""

from __future__ import annotations

from codegen.lower.builder import Builder, block_d, launch
from codegen.plan import Launch


def rms_norm(b: Builder, x: str, weight: str, y: str, layer: str) -> Launch:
    """Normalise rows of the residual stream into bf16."""
    d = b.spec.d_model
    kernel = b.kernel("rms_norm", f"rms_norm_{d}", D=d, BLOCK_D=block_d(d), EPS=b.spec.norm_eps)
    return launch(kernel, ("rows",), layer, f"{y} [rows, {d}] bf16", x=x, weight=weight, y=y)


def matmul(b: Builder, x: str, w: str, y: str, n: int, k: int, *, layer: str, residual: bool = False) -> Launch:
    """`y = x w^T`, or `y += x w^T` on the residual stream."""
    tile = b.target.matmul(n, k)
    kernel = b.tiled_kernel(
        "matmul",
        f"matmul_{k}x{n}" + ("_residual" if residual else ""),
        b.target.row_tiles,
        N=n,
        K=k,
        K_PADDED=tile.k_padded,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        residual=residual,
    )
    grid = (-(-n // tile.block_n), b.target.row_blocks)
    note = f"{y} [rows, {n}] fp32" + (" +=" if residual else "")
    return launch(kernel, grid, layer, note, x=x, w=w, y=y, rows="rows")


def gated_mlp(b: Builder, prefix: str, stream: str, hidden_size: int, layer: str) -> list[Launch]:
    """RMSNorm, SwiGLU and down projection onto the residual stream. Source: arXiv 2002.05202."""
    d = b.spec.d_model
    name = prefix.replace(".", "_")
    norm = b.vector(f"{name}_feed_forward_norm", f"{prefix}.feed_forward_norm.weight", d)
    gate = b.panel(f"{name}_gate_proj", ((f"{prefix}.feed_forward.gate_proj.weight", hidden_size),), d)
    up = b.panel(f"{name}_up_proj", ((f"{prefix}.feed_forward.up_proj.weight", hidden_size),), d)
    down = b.panel(f"{name}_down_proj", ((f"{prefix}.feed_forward.down_proj.weight", d),), hidden_size)
    gated = b.scratch(f"gated_{hidden_size}", hidden_size, "bf16")
    tile = b.target.matmul(hidden_size, d)
    kernel = b.tiled_kernel(
        "gated_matmul",
        f"gated_matmul_{d}x{hidden_size}",
        b.target.row_tiles,
        N=hidden_size,
        K=d,
        K_PADDED=tile.k_padded,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
    )
    grid = (-(-hidden_size // tile.block_n), b.target.row_blocks)
    note = f"{gated} [rows, {hidden_size}] bf16"
    return [
        rms_norm(b, stream, norm, "h", layer=layer),
        launch(kernel, grid, layer, note, x="h", w_gate=gate, w_up=up, y=gated, rows="rows"),
        matmul(b, gated, down, stream, d, hidden_size, residual=True, layer=layer),
    ]

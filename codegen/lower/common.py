"""Launches that every layer kind uses: RMSNorm, matmul and gated MLP."""

from __future__ import annotations

from dataclasses import replace

from codegen.lower.builder import Builder, block_d, escapes_of, launch
from codegen.lower.targets import MatmulTile, pads_little
from codegen.plan import Launch
from codegen.tunables import CODED, ROW_TILES, Tunable, among


def rms_norm(b: Builder, x: str, weight: str, y: str, layer: str) -> Launch:
    """Normalise rows of the residual stream into bf16."""
    d = b.spec.d_model
    name = f"rms_norm_{d}"
    b.choose(name, *b.target.warps(changes_bits=True))
    kernel = b.kernel("rms_norm", name, D=d, BLOCK_D=block_d(d), EPS=b.spec.norm_eps)
    return launch(kernel, ("rows",), layer, f"{y} [rows, {d}] bf16", x=x, weight=weight, y=y)


def matmul_name(n: int, k: int, residual: bool = False) -> str:
    """The instance of a matmul."""
    return f"matmul_{k}x{n}" + ("_residual" if residual else "")


def gated_name(n: int, k: int) -> str:
    """The instance of a gated matmul."""
    return f"gated_matmul_{k}x{n}"


def matmul_tile(b: Builder, kernel: str, n: int, k: int, *, exact: bool = False, block_k: int = 0) -> MatmulTile:
    """The tile of a matmul or gated matmul: its panels' width, which the weights are laid out for, and its loops.

    On a CPU each column sums over ascending k alone, so that neither the width of a panel nor the rows of a program
    show in a bit (docs/numerics.md). The length of a dot may, and on a GPU everything that changes a layout.
    exact: sums are of integers, and no choice shows; there are no codes of them. block_k: the length of a dot, where
    a layout says it and it is no choice.
    """
    target = b.target
    width, length = target.panel_width(n, k, b.model_bytes), target.dot_length(k)
    widths = [size for size in target.searched.panels if pads_little(n, size) and n >= 2 * size]
    lengths = [size for size in target.block_ks if pads_little(k, size)]
    tunables = (
        Tunable("BLOCK_N", width, among(width, widths), changes_bits=target.has_warps, lays_out=True),
        target.rows(target.row_tiles),
        *target.loads(),
        *(() if block_k else (Tunable("BLOCK_K", length, among(length, lengths), changes_bits=True, lays_out=True),)),
        *(() if exact else target.codes(b.model_bytes)),
        *target.warps(changes_bits=True),
    )
    chosen = b.choose(kernel, *(replace(tunable, changes_bits=False) if exact else tunable for tunable in tunables))
    block_n, block_k = chosen["BLOCK_N"], block_k or chosen["BLOCK_K"]
    return MatmulTile(block_n, block_k, -(-k // block_k) * block_k, chosen[ROW_TILES], bool(chosen.get(CODED, 0)))


def panel_kernel(b: Builder, template: str, name: str, n: int, k: int, tile: MatmulTile, **flags: int) -> str:
    """Name of a kernel that multiplies rows by weights in panels. flags: what else its template asks."""
    sizes = {"N": n, "K": k, "K_PADDED": tile.k_padded, "BLOCK_N": tile.block_n, "BLOCK_K": tile.block_k}
    return b.tiled_kernel(template, name, tile.row_tiles, **sizes, **flags)


def matmul(b: Builder, x: str, w: str, y: str, n: int, k: int, *, layer: str, residual: bool = False) -> Launch:
    """`y = x w^T`, or `y += x w^T` on the residual stream."""
    name = matmul_name(n, k, residual)
    tile = matmul_tile(b, name, n, k)
    kernel = panel_kernel(b, "matmul", name, n, k, tile, coded=int(tile.coded), residual=residual)
    grid = (-(-n // tile.block_n), b.target.row_blocks)
    note = f"{y} [rows, {n}] fp32" + (" +=" if residual else "")
    return launch(kernel, grid, layer, note, x=x, **_weights(tile, w=w), y=y, rows="rows")


def _weights(tile: MatmulTile, **parameters: str) -> dict[str, str]:
    """Arguments of weights in panels, w or w_NAME: each parameter's buffer, and where they are coded its escapes."""
    args: dict[str, str] = {}
    for name, buffer in parameters.items():
        args[name] = buffer
        if tile.coded:
            args[f"escapes{name.removeprefix('w')}"] = escapes_of(buffer)
    return args


def gated_mlp(b: Builder, prefix: str, stream: str, hidden_size: int, layer: str) -> list[Launch]:
    """RMSNorm, SwiGLU and down projection onto the residual stream. Source: arXiv 2002.05202."""
    d = b.spec.d_model
    name = prefix.replace(".", "_")
    norm = b.vector(f"{name}_feed_forward_norm", f"{prefix}.feed_forward_norm.weight", d)
    tile = matmul_tile(b, gated_name(hidden_size, d), hidden_size, d)
    down_tile = matmul_tile(b, matmul_name(d, hidden_size, residual=True), d, hidden_size)
    gate = b.panel(f"{name}_gate_proj", ((f"{prefix}.feed_forward.gate_proj.weight", hidden_size),), d, tile)
    up = b.panel(f"{name}_up_proj", ((f"{prefix}.feed_forward.up_proj.weight", hidden_size),), d, tile)
    down = b.panel(f"{name}_down_proj", ((f"{prefix}.feed_forward.down_proj.weight", d),), hidden_size, down_tile)
    gated = b.scratch(f"gated_{hidden_size}", hidden_size, "bf16")
    kernel = panel_kernel(b, "gated_matmul", gated_name(hidden_size, d), hidden_size, d, tile, coded=int(tile.coded))
    grid = (-(-hidden_size // tile.block_n), b.target.row_blocks)
    note = f"{gated} [rows, {hidden_size}] bf16"
    return [
        rms_norm(b, stream, norm, "h", layer=layer),
        launch(kernel, grid, layer, note, x="h", **_weights(tile, w_gate=gate, w_up=up), y=gated, rows="rows"),
        matmul(b, gated, down, stream, d, hidden_size, residual=True, layer=layer),
    ]

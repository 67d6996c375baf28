"""Lowering of grouped-query attention with RoPE over paged KV."""

from __future__ import annotations

import math

from codegen.lower.builder import Builder, launch
from codegen.lower.common import matmul, matmul_name, matmul_tile, rms_norm
from codegen.lower.targets import next_power_of_two
from codegen.plan import Launch, Role
from codegen.tunables import ROW_TILES, Tunable
from dsl.spec import AttentionSpec


def _tables(b: Builder, mixer: AttentionSpec) -> tuple[str, str]:
    theta, half = mixer.rope.theta, mixer.head_dim // 2
    positions = b.limits.pages_per_slot * b.limits.page_size
    suffix = f"{half}_{theta:g}".replace(".", "p").replace("+", "")
    cos = b.buffer(f"rope_cos_{suffix}", (positions, half), "fp32", Role.TABLE, fill="rope_cos", theta=theta)
    sin = b.buffer(f"rope_sin_{suffix}", (positions, half), "fp32", Role.TABLE, fill="rope_sin", theta=theta)
    return cos, sin


def _attention_tunables(b: Builder) -> tuple[Tunable, ...]:
    """A row sums over its pages alone: on a CPU no tile shows in its bits, on a GPU a tile is a layout of the dot."""
    return b.target.rows(_slot_tiles(b)), *b.target.loads(), *b.target.warps(changes_bits=True)


def _block_d(b: Builder, mixer: AttentionSpec) -> int:
    """Elements of a head in a page, padding included."""
    return max(b.target.min_dot, next_power_of_two(mixer.head_dim))


def _caches(b: Builder, prefix: str, mixer: AttentionSpec) -> tuple[str, str]:
    """The pages of the layer at `prefix`."""
    name, limits = prefix.replace(".", "_"), b.limits
    tile = (limits.num_pages, mixer.num_kv_heads, _block_d(b, mixer) * limits.page_size)
    k_cache = b.buffer(f"{name}_k_cache", tile, "bf16", Role.KV, layout="k_pages")
    v_cache = b.buffer(f"{name}_v_cache", tile, "bf16", Role.KV, layout="v_pages")
    b.kv_buffers.extend(cache for cache in (k_cache, v_cache) if cache not in b.kv_buffers)
    return k_cache, v_cache


def restore(b: Builder, prefix: str, mixer: AttentionSpec, layer: str) -> list[Launch]:
    """The checkpoint's last page becomes the slot's own copy; the others are shared."""
    k_cache, v_cache = _caches(b, prefix, mixer)
    heads, block, page = mixer.num_kv_heads, _block_d(b, mixer), b.limits.page_size
    kernel = b.kernel("copy_page", f"copy_page_{heads}x{block}", KV_HEADS=heads, BLOCK_D=block, PAGE=page)
    names = ("slot_idx", "page_from", "page_to")
    note = f"{k_cache}, {v_cache}"
    return [launch(kernel, ("bucket", heads), layer, note, *names, k_cache=k_cache, v_cache=v_cache)]


def _slot_tiles(b: Builder) -> tuple[int, ...]:
    """The same for all attention layers that are not tuned: those of the most query heads per kv head."""
    mixers = [layer.mixer for layer in b.spec.layers.values() if isinstance(layer.mixer, AttentionSpec)]
    return b.target.slot_tiles(max(mixer.num_heads // mixer.num_kv_heads for mixer in mixers))


def lower(b: Builder, prefix: str, mixer: AttentionSpec, stream: str, layer: str, prefill: bool) -> list[Launch]:
    """The mixer's launches onto the residual stream."""
    name, d, limits = prefix.replace(".", "_"), b.spec.d_model, b.limits
    heads, kv_heads, dim = mixer.num_heads, mixer.num_kv_heads, mixer.head_dim
    block = _block_d(b, mixer)
    b.target.check_dot("engine.page_size", limits.page_size)
    width = (heads + 2 * kv_heads) * dim
    norm = b.vector(f"{name}_norm", f"{prefix}.norm.weight", d)
    parts = (("q_proj", heads * dim), ("k_proj", kv_heads * dim), ("v_proj", kv_heads * dim))
    tile = matmul_tile(b, matmul_name(width, d), width, d)
    qkv_proj = b.panel(f"{name}_qkv_proj", tuple((f"{prefix}.mixer.{part}.weight", n) for part, n in parts), d, tile)
    tile = matmul_tile(b, matmul_name(d, heads * dim, residual=True), d, heads * dim)
    o_proj = b.panel(f"{name}_o_proj", ((f"{prefix}.mixer.o_proj.weight", d),), heads * dim, tile)
    k_cache, v_cache = _caches(b, prefix, mixer)
    qkv = b.scratch(f"qkv_{width}", width, "fp32")
    q = b.scratch(f"q_{heads}x{block}", heads * block, "bf16")
    context = b.scratch(f"context_{heads * dim}", heads * dim, "bf16")
    cos, sin = _tables(b, mixer)
    sizes = {
        "HEADS": heads,
        "KV_HEADS": kv_heads,
        "QUERIES_PER_KV": heads // kv_heads,
        "D": dim,
        "BLOCK_D": block,
        "PAGE": limits.page_size,
        "PAGES_PER_SLOT": limits.pages_per_slot,
    }
    rope_name, attend_name = f"rope_append_{heads}x{kv_heads}x{dim}", f"attention_{heads}x{kv_heads}x{dim}"
    b.choose(rope_name, *b.target.warps(changes_bits=False))
    rope = b.kernel("rope_append", rope_name, HALF=dim // 2, **sizes)
    slot_tiles = b.choose(attend_name, *_attention_tunables(b))[ROW_TILES]
    attend = b.tiled_kernel(
        "attention",
        attend_name,
        slot_tiles,
        SCALE_LOG2=dim**-0.5 * math.log2(math.e),
        MIN_DOT=b.target.min_dot,
        **sizes,
    )
    return [
        rms_norm(b, stream, norm, "h", layer=layer),
        matmul(b, "h", qkv_proj, qkv, width, d, layer=layer),
        launch(
            rope,
            ("rows", kv_heads),
            layer,
            f"{q} [rows, {heads}, {block}] bf16",
            row_slot="row_slot",
            row_pos="row_pos",
            qkv=qkv,
            rope_cos=cos,
            rope_sin=sin,
            page_table="page_table",
            q=q,
            k_cache=k_cache,
            v_cache=v_cache,
        ),
        launch(
            attend,
            ("bucket", "slot_blocks", kv_heads),
            layer,
            f"{context} [rows, {heads * dim}] bf16",
            row_slot="row_slot",
            row_pos="row_pos",
            row_first="row_first",
            row_count="row_count",
            q=q,
            page_table="page_table",
            k_cache=k_cache,
            v_cache=v_cache,
            context=context,
        ),
        matmul(b, context, o_proj, stream, d, heads * dim, residual=True, layer=layer),
    ]

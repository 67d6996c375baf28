"""Lowering of the Mamba-2 mixer: conv over a ring of raw inputs, scan that commits by replaying records."""

from __future__ import annotations

import re
from typing import NamedTuple

from codegen.lower.builder import Builder, block_d, launch
from codegen.lower.common import matmul, matmul_name, matmul_tile, rms_norm
from codegen.lower.targets import next_power_of_two
from codegen.plan import CheckpointPart, Launch, Role, Source
from codegen.tunables import Tunable, among
from dsl.spec import Mamba2Spec

# Protocol buffers that both kernels of a verify step, and of a prefill chunk, take first.
COMMITTED = ("slot_idx", "state_len", "committed_len", "row_count", "emit_position", "emit_checkpoint")
PREFILLED = ("slot_idx", "committed_len", "row_first", "row_count", "row_checkpoint")


class Names(NamedTuple):
    """Buffer names of one Mamba-2 layer."""

    norm: str
    in_proj: str
    conv_weight: str
    conv_bias: str
    a_log: str
    d_skip: str
    dt_bias: str
    gated_norm: str
    out_proj: str
    conv_ring: str
    record_ring: str
    dt_ring: str
    state: str
    checkpoint_conv: str
    checkpoint_state: str


def declare(b: Builder, prefix: str, mixer: Mamba2Spec) -> Names:
    """Weights, rings, state and checkpoint buffers of the layer at `prefix` (`layers.<i>`)."""
    name, d, limits = prefix.replace(".", "_"), b.spec.d_model, b.limits
    slots, ring, channels = limits.max_slots, limits.ring, mixer.conv_dim
    state = (mixer.num_heads, mixer.state_size, mixer.head_dim)
    conv = Source(f"{prefix}.mixer.conv.weight", (channels, mixer.conv_width), "fp32")
    width = mixer.conv_width - 1
    in_tile = matmul_tile(b, matmul_name(mixer.in_proj_dim, d), mixer.in_proj_dim, d)
    out_tile = matmul_tile(b, matmul_name(d, mixer.d_inner, residual=True), d, mixer.d_inner)
    names = Names(
        norm=b.vector(f"{name}_norm", f"{prefix}.norm.weight", d),
        in_proj=b.panel(f"{name}_in_proj", ((f"{prefix}.mixer.in_proj.weight", mixer.in_proj_dim),), d, in_tile),
        conv_weight=b.buffer(
            f"{name}_conv_weight",
            (mixer.conv_width, channels),
            "fp32",
            Role.WEIGHT,
            layout="transposed",
            sources=(conv,),
        ),
        conv_bias=b.vector(f"{name}_conv_bias", f"{prefix}.mixer.conv.bias", channels),
        a_log=b.vector(f"{name}_a_log", f"{prefix}.mixer.A_log", mixer.num_heads),
        d_skip=b.vector(f"{name}_d_skip", f"{prefix}.mixer.D", mixer.num_heads),
        dt_bias=b.vector(f"{name}_dt_bias", f"{prefix}.mixer.dt_bias", mixer.num_heads),
        gated_norm=b.vector(f"{name}_gated_norm", f"{prefix}.mixer.norm.weight", mixer.d_inner),
        out_proj=b.panel(f"{name}_out_proj", ((f"{prefix}.mixer.out_proj.weight", d),), mixer.d_inner, out_tile),
        conv_ring=b.buffer(f"{name}_conv_ring", (slots, ring, channels), "fp32", Role.RING),
        record_ring=b.buffer(f"{name}_record_ring", (slots, ring, channels), "fp32", Role.RING),
        dt_ring=b.buffer(f"{name}_dt_ring", (slots, ring, mixer.num_heads), "fp32", Role.RING),
        state=b.buffer(f"{name}_state", (slots, *state), "fp32", Role.STATE),
        checkpoint_conv=b.buffer(
            f"{name}_checkpoint_conv", (limits.checkpoint_slots, width, channels), "fp32", Role.CHECKPOINT
        ),
        checkpoint_state=b.buffer(
            f"{name}_checkpoint_state", (limits.checkpoint_slots, *state), "fp32", Role.CHECKPOINT
        ),
    )
    b.checkpoint_part(CheckpointPart("slot", names.state, names.checkpoint_state))
    b.checkpoint_part(CheckpointPart("window", names.conv_ring, names.checkpoint_conv, width))
    return names


def _sizes(mixer: Mamba2Spec) -> str:
    return f"{mixer.num_heads}x{mixer.head_dim}x{mixer.state_size}g{mixer.num_groups}"


def _conv_constants(b: Builder, kernel: str, mixer: Mamba2Spec) -> dict[str, int]:
    """Channels do not meet in a conv: how many a program takes, and on how many warps, changes no bit."""
    most = next_power_of_two(mixer.conv_dim)
    default = min(b.target.conv_block, most)
    blocks = among(default, (size for size in b.target.searched.conv_blocks if size <= most))
    chosen = b.choose(
        kernel, Tunable("BLOCK_C", default, blocks, changes_bits=False), *b.target.warps(changes_bits=False)
    )
    return {
        "CHANNELS": mixer.conv_dim,
        "CHANNEL0": mixer.d_inner,
        "PROJECTED": mixer.in_proj_dim,
        "WIDTH": mixer.conv_width,
        "RING": b.limits.ring,
        "BLOCK_C": chosen["BLOCK_C"],
    }


def _scan_constants(mixer: Mamba2Spec) -> dict[str, int | float]:
    return {
        "HEADS": mixer.num_heads,
        "P": mixer.head_dim,
        "N": mixer.state_size,
        "GROUPS": mixer.num_groups,
        "HEADS_PER_GROUP": mixer.num_heads // mixer.num_groups,
        "CHANNELS": mixer.conv_dim,
        "PROJECTED": mixer.in_proj_dim,
        "DT0": mixer.d_inner + mixer.conv_dim,
        "DT_LOW": mixer.dt_limit[0],
        "DT_HIGH": mixer.dt_limit[1],
        "BLOCK_N": next_power_of_two(mixer.state_size),
        "BLOCK_P": next_power_of_two(mixer.head_dim),
    }


def _suffix(mixer: Mamba2Spec) -> str:
    """What a scan kernel's name says of its sizes and dt limits, as part of an identifier."""
    limits = re.sub(r"\W", "_", "_".join(str(limit) for limit in mixer.dt_limit))
    return f"{_sizes(mixer)}_dt{limits}"


def commit(b: Builder, names: Names, mixer: Mamba2Spec, layer: str) -> list[Launch]:
    """Conv and scan over the rows in flight (possibly none), folding what was accepted before."""
    conv_name = f"mamba2_conv_step_{mixer.conv_dim}x{mixer.conv_width}_{mixer.in_proj_dim}"
    constants = _conv_constants(b, conv_name, mixer)
    conv = b.kernel("mamba2_conv_step", conv_name, **constants)
    scan = b.kernel(
        "mamba2_scan_step",
        f"mamba2_scan_step_{_suffix(mixer)}",
        RING=b.limits.ring,
        ONE_PASS_ROWS=min(b.target.one_pass_rows, b.limits.max_rows),
        **_scan_constants(mixer),
    )
    projected, y = f"projected_{mixer.in_proj_dim}", f"mixed_{mixer.d_inner}"
    blocks = -(-mixer.conv_dim // constants["BLOCK_C"])
    return [
        launch(
            conv,
            ("bucket", blocks),
            layer,
            f"{names.record_ring} [slots, ring, {mixer.conv_dim}] fp32",
            *COMMITTED,
            projected=projected,
            weight=names.conv_weight,
            bias=names.conv_bias,
            conv_ring=names.conv_ring,
            record_ring=names.record_ring,
            checkpoint_conv=names.checkpoint_conv,
            rows_per_slot="rows_per_slot",
        ),
        launch(
            scan,
            ("bucket", mixer.num_heads),
            layer,
            f"{y} [rows, {mixer.d_inner}] fp32",
            *COMMITTED,
            projected=projected,
            record_ring=names.record_ring,
            dt_ring=names.dt_ring,
            a_log=names.a_log,
            d_skip=names.d_skip,
            dt_bias=names.dt_bias,
            state=names.state,
            checkpoint_state=names.checkpoint_state,
            y=y,
            rows_per_slot="rows_per_slot",
        ),
    ]


def restore(b: Builder, prefix: str, mixer: Mamba2Spec, layer: str) -> list[Launch]:
    """A checkpoint's conv window and state into its slot."""
    conv_name = f"mamba2_restore_conv_{mixer.conv_dim}x{mixer.conv_width}"
    names, constants = declare(b, prefix, mixer), _conv_constants(b, conv_name, mixer)
    ring = {name: constants[name] for name in ("CHANNELS", "WIDTH", "RING", "BLOCK_C")}
    conv = b.kernel("mamba2_restore_conv", conv_name, **ring)
    sizes = {
        "HEADS": mixer.num_heads,
        "P": mixer.head_dim,
        "N": mixer.state_size,
        "BLOCK_N": next_power_of_two(mixer.state_size),
        "BLOCK_P": next_power_of_two(mixer.head_dim),
    }
    name = f"mamba2_restore_state_{mixer.num_heads}x{mixer.head_dim}x{mixer.state_size}"
    return [
        launch(
            conv,
            ("bucket", -(-mixer.conv_dim // constants["BLOCK_C"])),
            layer,
            names.conv_ring,
            *("slot_idx", "committed_len", "restore_checkpoint"),
            checkpoint_conv=names.checkpoint_conv,
            conv_ring=names.conv_ring,
        ),
        launch(
            b.kernel("mamba2_restore_state", name, **sizes),
            ("bucket", mixer.num_heads),
            layer,
            names.state,
            *("slot_idx", "restore_checkpoint"),
            checkpoint_state=names.checkpoint_state,
            state=names.state,
        ),
    ]


def _prefill_scan(b: Builder, names: Names, mixer: Mamba2Spec, layer: str) -> list[Launch]:
    conv_name = f"mamba2_conv_prefill_{mixer.conv_dim}x{mixer.conv_width}_{mixer.in_proj_dim}"
    constants = _conv_constants(b, conv_name, mixer)
    activated = b.scratch(f"activated_{mixer.conv_dim}", mixer.conv_dim, "fp32")
    conv = b.kernel("mamba2_conv_prefill", conv_name, **constants)
    scan = b.kernel("mamba2_scan_prefill", f"mamba2_scan_prefill_{_suffix(mixer)}", **_scan_constants(mixer))
    projected, y = f"projected_{mixer.in_proj_dim}", f"mixed_{mixer.d_inner}"
    return [
        launch(
            conv,
            ("bucket", -(-mixer.conv_dim // constants["BLOCK_C"])),
            layer,
            f"{activated} [rows, {mixer.conv_dim}] fp32",
            *PREFILLED,
            projected=projected,
            weight=names.conv_weight,
            bias=names.conv_bias,
            conv_ring=names.conv_ring,
            activated=activated,
            checkpoint_conv=names.checkpoint_conv,
        ),
        launch(
            scan,
            ("bucket", mixer.num_heads),
            layer,
            f"{y} [rows, {mixer.d_inner}] fp32",
            *PREFILLED,
            projected=projected,
            activated=activated,
            a_log=names.a_log,
            d_skip=names.d_skip,
            dt_bias=names.dt_bias,
            state=names.state,
            checkpoint_state=names.checkpoint_state,
            y=y,
        ),
    ]


def lower(b: Builder, prefix: str, mixer: Mamba2Spec, stream: str, layer: str, prefill: bool) -> list[Launch]:
    """The mixer's launches onto the residual stream, for a verify step or a prefill chunk."""
    names, d = declare(b, prefix, mixer), b.spec.d_model
    projected = b.scratch(f"projected_{mixer.in_proj_dim}", mixer.in_proj_dim, "fp32")
    y = b.scratch(f"mixed_{mixer.d_inner}", mixer.d_inner, "fp32")
    normed = b.scratch(f"mixed_normed_{mixer.d_inner}", mixer.d_inner, "bf16")
    group = mixer.d_inner // mixer.norm_groups
    norm_name = f"gated_norm_{mixer.d_inner}g{mixer.norm_groups}_{mixer.in_proj_dim}"
    b.choose(norm_name, *b.target.warps(changes_bits=True))
    norm = b.kernel(
        "gated_norm",
        norm_name,
        D=mixer.d_inner,
        GROUP_SIZE=group,
        PROJECTED=mixer.in_proj_dim,
        BLOCK_D=block_d(group),
        EPS=b.spec.norm_eps,
    )
    scan = _prefill_scan if prefill else commit
    return [
        rms_norm(b, stream, names.norm, "h", layer=layer),
        matmul(b, "h", names.in_proj, projected, mixer.in_proj_dim, d, layer=layer),
        *scan(b, names, mixer, layer),
        launch(
            norm,
            ("rows", mixer.norm_groups),
            layer,
            f"{normed} [rows, {mixer.d_inner}] bf16",
            y=y,
            projected=projected,
            weight=names.gated_norm,
            h=normed,
        ),
        matmul(b, normed, names.out_proj, stream, d, mixer.d_inner, residual=True, layer=layer),
    ]

"""Tuned values in a plan: what they change, what they must not, and which are refused."""

from __future__ import annotations

import json

import pytest

from codegen.errors import TunedRefused
from codegen.lower import lower
from codegen.plan import Kernel, Plan
from codegen.render import render_step
from codegen.tunables import ROW_TILES, Value
from codegen.tuned import tuned_in
from dsl import ModelSpec

TARGETS = ("cpu", "cuda:90")


def last_values(kernel: Kernel, *, changes_bits: bool) -> dict[str, Value]:
    """A value that is not the default for each tunable that does, or does not, change bits."""
    tunables = [t for t in kernel.tunables if t.changes_bits is changes_bits and len(t.values) > 1]
    return {t.name: next(value for value in reversed(t.values) if value != t.default) for t in tunables}


@pytest.mark.parametrize("target", TARGETS)
def test_what_changes_no_bit_leaves_the_numerics_alone_and_is_in_the_plan(tiny: ModelSpec, target: str) -> None:
    plan = lower(tiny, target)
    tuned = {kernel.name: values for kernel in plan.kernels if (values := last_values(kernel, changes_bits=False))}
    assert len(tuned) >= 10
    found = lower(tiny, target, tuned)
    assert found.tuned == tuned
    assert found.numerics_sha256 == plan.numerics_sha256
    assert found.sha256 != plan.sha256
    assert tuned_in(json.loads(found.to_json())) == json.loads(json.dumps(tuned))
    assert lower(tiny, target, tuned_in(json.loads(found.to_json()))) == found


@pytest.mark.parametrize("target", TARGETS)
def test_every_value_that_may_change_bits_is_part_of_the_numerics(tiny: ModelSpec, target: str) -> None:
    plan, seen = lower(tiny, target), 0
    for kernel in plan.kernels:
        for name, value in last_values(kernel, changes_bits=True).items():
            other = {kernel.name: {name: value}}
            if name in ("BLOCK_N", "BLOCK_K"):
                other = {k.name: {name: value} for k in plan.kernels if shares_weights(plan, k, kernel)}
            assert lower(tiny, target, other).numerics_sha256 != plan.numerics_sha256, f"{kernel.name} {name}"
            seen += 1
            break  # one of each kernel: lowering takes a while
    assert seen >= (8 if target == "cpu" else 12)


def shares_weights(plan: Plan, one: Kernel, other: Kernel) -> bool:
    def weights(kernel: Kernel) -> set[str]:
        used = {value for _, launch in plan.launches() if launch.kernel == kernel.name for _, value in launch.args}
        return {buffer.name for buffer in plan.buffers if buffer.layout == "panel" and buffer.name in used}

    return bool(weights(one) & weights(other))


def test_the_default_values_of_tunables_are_those_of_an_untuned_plan(tiny: ModelSpec) -> None:
    plan = lower(tiny, "cpu")
    defaults = {kernel.name: {t.name: t.default for t in kernel.tunables} for kernel in plan.kernels}
    assert plan.tuned == {}
    assert lower(tiny, "cpu", defaults) == plan


@pytest.mark.parametrize(
    ("kernel", "values", "message"),
    [
        ("matmul_256x1160", {"BLOCK_N": 48}, r"BLOCK_N = 48 of kernel matmul_256x1160 on cpu: allowed is \(16, 32"),
        ("matmul_256x1160", {"BLOCK_N": 64.0}, "BLOCK_N = 64.0"),
        ("matmul_256x1160", {"BLOCK_N": True}, "BLOCK_N = True"),
        ("matmul_256x1160", {"row_tiles": [3]}, r"row_tiles = \[3\]"),
        ("matmul_256x1160", {"num_warps": 4}, "allowed is nothing of this name, but BLOCK_N, row_tiles"),
        ("rms_norm_256", {"BLOCK_D": 512}, "BLOCK_D = 512"),
        ("no_such_kernel", {"BLOCK_N": 32}, "there is no such kernel"),
    ],
)
def test_a_value_that_a_kernel_does_not_allow_is_refused(
    tiny: ModelSpec, kernel: str, values: dict[str, Value], message: str
) -> None:
    with pytest.raises(TunedRefused, match=message):
        lower(tiny, "cpu", {kernel: values})


def test_a_kernel_with_tiles_and_options_of_its_own_has_them_in_the_step(tiny: ModelSpec) -> None:
    name, tiles = "matmul_512x256_residual", (1, 2, 4, 8, 32)
    text = render_step(lower(tiny, "cpu", {name: {ROW_TILES: tiles, "prefetch_bytes": 512}}), "x")
    assert f'OPTIONS_OF_{name} = {{"num_warps": 1, "prefetch_bytes": 512, "enable_fp_fusion": False}}' in text
    assert f"tile_{name} = row_tile(rows, {tiles})" in text
    launches = text.split(f"    {name}[")[1:]
    assert launches
    for launch in launches:
        mine = launch.split(")\n")[0]
        assert f"BLOCK_M=tile_{name}," in mine
        assert f"**OPTIONS_OF_{name}," in mine
    assert "ROW_TILES = (1, 2, 4, 8)" in text


def test_own_tiles_reach_the_grid_where_programs_share_the_rows(tiny: ModelSpec) -> None:
    name = "matmul_512x256_residual"
    text = render_step(lower(tiny, "cuda:90", {name: {ROW_TILES: (16, 32)}}), "x")
    assert f"row_blocks_{name} = -(-rows // tile_{name})" in text
    assert f"{name}[(8, row_blocks_{name})]" in text

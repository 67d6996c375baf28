"""What `dsl diff` counts from a spec is what the compiler plans, the padding of a target's tiles apart."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given

from codegen.cost import Shape, step_costs
from codegen.lower import lower
from codegen.plan import DTYPE_BYTES, Buffer, Plan, Role
from dsl import ModelSpec, load_spec
from dsl.cost import CONTEXT, INT4_GROUP, bytes_of, costs, max_rows, num_pages, ring_entries, step_bytes
from dsl.layers import AttentionSpec
from dsl.tensors import weight_shapes
from tests.strategies import specs

ROOT = Path(__file__).resolve().parents[2]
SPECS = sorted([*(ROOT / "specs").glob("*.yaml"), *(ROOT / "tests" / "specs").glob("*.yaml")])


def unpadded(spec: ModelSpec, plan: Plan) -> Plan:
    """The plan with weights as long as their tensors, and KV entries as long as their heads."""
    return replace(plan, buffers=tuple(_unpadded(spec, buffer) for buffer in plan.buffers))


def _unpadded(spec: ModelSpec, buffer: Buffer) -> Buffer:
    if buffer.role is Role.WEIGHT and buffer.layout in ("panel", "int8_panel", "coded_panel"):
        dtype = "bf16" if buffer.layout == "coded_panel" else buffer.dtype
        return replace(buffer, shape=(sum(math.prod(source.shape) for source in buffer.sources),), dtype=dtype)
    if buffer.layout == "int4_panel":
        ((rows, width),) = (source.shape for source in buffer.sources)
        return replace(buffer, shape=(rows, width // 2 + -(-width // INT4_GROUP)))
    if buffer.role is Role.KV:
        layer = spec.mtp_layer if buffer.name.startswith("mtp") else spec.pattern_layers[int(buffer.name.split("_")[1])]
        assert layer is not None and isinstance(layer.mixer, AttentionSpec)
        return replace(buffer, shape=(buffer.shape[0], layer.mixer.kv_dim, spec.engine.page_size))
    return buffer


def role_bytes(plan: Plan, role: Role) -> int:
    return sum(buffer.bytes for buffer in plan.buffers if buffer.role is role)


def assert_pair(spec: ModelSpec) -> None:
    """Every figure, from the plan."""
    planned = lower(spec, "cpu")
    plan, found, limits = unpadded(spec, planned), costs(spec), planned.limits
    assert (limits.max_rows, limits.ring, limits.num_pages) == (max_rows(spec), ring_entries(spec), num_pages(spec))
    assert role_bytes(plan, Role.STATE) == found.state_bytes_per_slot * limits.max_slots
    assert role_bytes(plan, Role.RING) == found.ring_bytes_per_slot * limits.max_slots
    assert role_bytes(plan, Role.KV) == found.kv_pool_bytes
    assert role_bytes(plan, Role.CHECKPOINT) == found.checkpoint_pool_bytes
    assert found.kv_pool_bytes == found.kv_bytes_per_token * limits.num_pages * limits.page_size
    sources = {source.tensor: source for buffer in plan.buffers for source in buffer.sources}
    stored = sum(DTYPE_BYTES[source.dtype] * math.prod(source.shape) for source in sources.values())
    assert stored == found.weight_bytes == bytes_of(weight_shapes(spec))
    for drafts in range(spec.engine.max_drafts + 1):
        counted = sum(cost.count * cost.bytes for cost in step_costs(plan, Shape(1, drafts, CONTEXT)))
        assert counted == step_bytes(spec, drafts), drafts
    assert found.step_bytes == step_bytes(spec, 0) and found.drafting_step_bytes == step_bytes(spec, limits.max_drafts)


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_figures_are_those_of_the_plan(path: Path) -> None:
    assert_pair(load_spec(path))


@given(specs())
def test_figures_of_drawn_specs_are_those_of_their_plans(spec: ModelSpec) -> None:
    assert_pair(spec)

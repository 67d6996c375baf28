"""Every rule of a plan, broken once: the verifier names the node. And the sizes that lowering derives."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from codegen.cost import Shape, step_costs
from codegen.errors import PlanInvalid, TooLarge, UnknownTarget, UnsupportedOnTarget
from codegen.lower import lower
from codegen.lower.builder import Builder
from codegen.lower.common import matmul_name, matmul_tile
from codegen.lower.limits import resolve_limits
from codegen.lower.targets import resolve_target
from codegen.lower.verify import verify_plan
from codegen.memory import memory_table, total_bytes
from codegen.plan import Buffer, Kernel, Launch, Plan, Role, Section
from dsl import ModelSpec, load_spec

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def spec() -> ModelSpec:
    return load_spec(ROOT / "specs" / "tiny-hybrid.yaml")


@pytest.fixture(scope="module")
def plan(spec: ModelSpec) -> Plan:
    return lower(spec, "cpu")


def with_launch(plan: Plan, launch: Launch) -> Plan:
    return replace(plan, sections=(*plan.sections, Section("extra", "", ("bucket",), (launch,))))


def without_checkpoint_part(plan: Plan) -> Plan:
    return replace(plan, checkpoint_parts=tuple(p for p in plan.checkpoint_parts if p.live != "layers_0_state"))


BROKEN: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "two buffers share a name": (lambda p: replace(p, buffers=(*p.buffers, p.buffers[0])), "share this name"),
    "a kernel and a section share a name": (
        lambda p: replace(p, kernels=(*p.kernels, Kernel("accept", "t", ()))),
        "a kernel and a section",
    ),
    "a name is no identifier": (
        lambda p: replace(p, buffers=(*p.buffers, Buffer("a b", (1,), "fp32", Role.SCRATCH))),
        "not an identifier",
    ),
    "a dtype is unknown": (
        lambda p: replace(p, buffers=(*p.buffers, Buffer("odd", (1,), "fp8", Role.SCRATCH))),
        "unknown dtype",
    ),
    "a weight has no source": (
        lambda p: replace(p, buffers=(*p.buffers, Buffer("odd", (1,), "fp32", Role.WEIGHT))),
        "have sources",
    ),
    "an argument is neither buffer nor key": (
        lambda p: with_launch(p, Launch("sample", ("bucket",), (("logits", "a_python_number"),))),
        "neither a plan buffer nor part of the key",
    ),
    "a grid symbol is not of the section": (
        lambda p: with_launch(p, Launch("sample", ("heads",), ())),
        "grid symbol",
    ),
    "a launch of a kernel that is not there": (
        lambda p: with_launch(p, Launch("missing", (1,), ())),
        "kernel is not in the plan",
    ),
    "a kernel that nothing launches": (
        lambda p: replace(p, kernels=(*p.kernels, Kernel("idle", "t", ()))),
        "no section launches",
    ),
    "one buffer under two names": (
        lambda p: with_launch(p, Launch("sample", ("bucket",), (("logits", "logits"), ("targets", "logits")))),
        "is passed 2 times",
    ),
    "a checkpoint part twice": (
        lambda p: replace(p, checkpoint_parts=(*p.checkpoint_parts, p.checkpoint_parts[0])),
        "part of the checkpoint 2 times",
    ),
    "a state that no checkpoint holds": (without_checkpoint_part, "not part of the checkpoint"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_plan_is_refused_with_its_node(plan: Plan, name: str) -> None:
    damage, message = BROKEN[name]
    with pytest.raises(PlanInvalid, match=message):
        verify_plan(damage(plan))


def test_an_offset_past_int32_is_refused_with_the_fields_to_lower(plan: Plan) -> None:
    huge = Buffer("huge", (1 << 20, 1 << 12), "fp32", Role.CHECKPOINT)
    with pytest.raises(TooLarge, match=r"engine\.checkpoint_slots"):
        verify_plan(replace(plan, buffers=(*plan.buffers, huge)))


def test_an_unknown_target_lists_the_known_ones(spec: ModelSpec) -> None:
    with pytest.raises(UnknownTarget, match="cuda:90"):
        lower(spec, "metal")


def test_a_page_below_the_smallest_dot_is_refused_on_cuda_only(spec: ModelSpec) -> None:
    small = spec.model_copy(update={"engine": spec.engine.model_copy(update={"page_size": 8})})
    assert lower(small, "cpu").limits.page_size == 8
    with pytest.raises(UnsupportedOnTarget, match="page_size"):
        lower(small, "cuda:90")


def test_the_ring_holds_pending_rows_new_rows_and_two_windows(plan: Plan) -> None:
    limits = plan.limits
    assert limits.ring >= 2 * limits.max_rows + 2 * 4
    assert limits.ring & (limits.ring - 1) == 0


def test_pages_cover_drafts_past_the_context(plan: Plan) -> None:
    limits = plan.limits
    assert limits.pages_per_slot * limits.page_size >= limits.max_context + limits.max_drafts


def test_the_memory_table_is_the_sum_of_the_buffers(plan: Plan) -> None:
    assert sum(memory_table(plan).values()) == total_bytes(plan)
    steps = {Role.PROTOCOL: 64, Role.WEIGHT: 128}  # each role in one block, its buffers at multiples of that
    padding = sum(-buffer.bytes % steps.get(buffer.role, 1) for buffer in plan.buffers)
    assert total_bytes(plan) == sum(buffer.bytes for buffer in plan.buffers) + padding


@pytest.mark.parametrize("k", [1, 31, 256, 320, 448, 1000])
def test_a_matmul_tile_covers_k_with_whole_blocks(spec: ModelSpec, k: int) -> None:
    for name in ("cpu", "cuda:90"):
        b = Builder(spec, resolve_target(name), resolve_limits(spec), "", 0)
        tile = matmul_tile(b, matmul_name(256, k), 256, k)
        assert tile.k_padded >= k
        assert tile.k_padded % tile.block_k == 0
        assert tile.block_k & (tile.block_k - 1) == 0


@pytest.mark.parametrize(
    ("n", "width"), [(1152, 64), (1160, 32), (3352, 64), (576, 32), (256, 64), (258, 32), (128, 32), (7, 32)]
)
def test_panels_are_wide_where_that_pads_little_and_leaves_enough_of_them_to_share_evenly(n: int, width: int) -> None:
    assert resolve_target("cpu").panel_width(n, 512, 1 << 20) == width


@pytest.mark.parametrize(("n", "k", "width"), [(1536, 256, 64), (1536, 257, 32), (1536, 576, 32), (49152, 576, 64)])
def test_wide_panels_of_large_models_fit_the_nearest_cache_or_are_a_heads(n: int, k: int, width: int) -> None:
    assert resolve_target("cpu").panel_width(n, k, 1 << 28) == width


def test_a_plain_step_moves_every_weight_of_the_target_once(plan: Plan) -> None:
    used = {
        value for name in ("verify", "accept") for launch in plan.section(name).launches for _, value in launch.args
    }
    weights = [buffer for buffer in plan.buffers if buffer.role is Role.WEIGHT and buffer.name in used]
    matrices = sum(buffer.bytes for buffer in weights if buffer.name != "embed")
    costs = list(step_costs(plan, Shape(drafts=0)))
    assert matrices < sum(cost.bytes * cost.count for cost in costs) < 1.5 * matrices
    assert all(cost.section in ("verify", "accept") for cost in costs)


def test_whatever_decides_bits_changes_the_numerics_hash(
    spec: ModelSpec, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = spec.model_copy(update={"norm_eps": 1e-5})
    assert lower(other, "cpu").numerics_sha256 != plan.numerics_sha256
    assert lower(spec, "cuda:90").numerics_sha256 != plan.numerics_sha256
    assert lower(spec, "cpu").numerics_sha256 == plan.numerics_sha256
    monkeypatch.setattr("codegen.lower.numerics.template_sha256", lambda template: "another text")
    assert lower(spec, "cpu").numerics_sha256 != plan.numerics_sha256

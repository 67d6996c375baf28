"""The model of a step on a GPU: what it must be whatever its assumptions, and that docs/predictions.md is its page."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from benchmarks.predictions import page
from codegen.cli import app
from codegen.cost import Shape, step_costs
from codegen.lower import TARGETS, lower
from codegen.plan import Plan
from codegen.predict import ACCELERATORS, Assumptions, Bound, of_target, predict
from codegen.predict.step import count_programs
from codegen.predict.tables import as_json, tables
from dsl import ModelSpec, load_spec
from tests.strategies import specs

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
H100, H200 = ACCELERATORS["H100"], ACCELERATORS["H200"]
#: Billions of parameters as the models' makers give them.
PUBLISHED = {
    "mamba2-2-7b": 2.7,
    "granite-4-h-micro": 3.2,
    "falcon-h1-7b": 7.6,
    "nemotron-h-8b": 8.1,
    "bamba-9b": 9.8,
}


@pytest.fixture(scope="module")
def plan() -> Plan:
    return lower(load_spec(ROOT / "specs" / "tiny-hybrid.yaml"), "cuda:90")


def test_the_page_of_predictions_is_the_models() -> None:
    assert (DOCS / "predictions.md").read_text() == page.page(), f"run {page.COMMAND} > docs/predictions.md"


def test_predicted_models_have_the_size_of_the_originals() -> None:
    assert {model.spec.name: round(model.parameters / 1e9, 1) for model in page.models()} == PUBLISHED


def test_every_predicted_model_says_where_it_differs_and_where_its_sizes_are_from() -> None:
    for model in page.models():
        assert [line.split(":")[0] for line in model.about[1:]] == ["Differs", "Source of the sizes"], model.spec.name


def test_every_cuda_target_has_a_gpu_and_every_gpu_a_target() -> None:
    assert {target for target in TARGETS if of_target(target)} == set(TARGETS) - {"cpu"}
    assert {accelerator.target for accelerator in ACCELERATORS.values()} <= set(TARGETS)


@given(specs(), st.integers(0, 7), st.sampled_from([1, 4]))
def test_no_prediction_is_faster_than_its_bytes_and_operations(spec: ModelSpec, drafts: int, bucket: int) -> None:
    plan = lower(spec, "cpu")  # which takes every spec; the model looks at the plan alone
    bucket = max(size for size in plan.limits.buckets if size <= bucket)
    shape = Shape(bucket, min(drafts, plan.limits.max_drafts), min(64, plan.limits.max_context))
    found = predict(plan, shape, H100)
    sheet = predict(plan, shape, H100, Assumptions.data_sheet())
    costs = list(step_costs(plan, shape))
    moved, launches = sum(cost.count * cost.bytes for cost in costs), sum(cost.count for cost in costs)
    assert moved / H100.bandwidth <= sheet.seconds * (1 + 1e-9) <= found.seconds * (1 + 1e-9)
    assert found.by_bound()[Bound.LAUNCH] == pytest.approx(launches * Assumptions().launch_seconds)
    for groups in (found.by_section(), found.by_layer()):
        assert sum(sum(seconds.values()) for seconds in groups.values()) == pytest.approx(found.seconds)


def test_a_faster_memory_shortens_what_it_bounds_and_nothing_else(plan: Plan) -> None:
    slow, fast = (predict(plan, Shape(), accelerator) for accelerator in (H100, H200))
    assert fast.by_bound()[Bound.MEMORY] == pytest.approx(
        slow.by_bound()[Bound.MEMORY] * H100.bandwidth / H200.bandwidth
    )
    assert fast.by_bound()[Bound.LAUNCH] == slow.by_bound()[Bound.LAUNCH]


@pytest.mark.parametrize(
    ("assumed", "changed", "bound"),
    [
        (Assumptions(launch_seconds=1.0), {}, Bound.LAUNCH),
        (Assumptions(launch_seconds=0.0, draw=1e-6), {}, Bound.FEW_PROGRAMS),
        (Assumptions.data_sheet(), {"bf16": 1.0, "fp32": 1.0}, Bound.COMPUTE),
        (Assumptions.data_sheet(), {"bandwidth": 1.0}, Bound.MEMORY),
    ],
)
def test_the_bound_is_what_is_scarce(plan: Plan, assumed: Assumptions, changed: dict[str, float], bound: Bound) -> None:
    assert predict(plan, Shape(), replace(H100, **changed), assumed).bound is bound


def test_rounded_heads_of_drafts_halve_their_bytes_and_compute_at_the_rate_of_int8() -> None:
    spec = load_spec(ROOT / "tests" / "specs" / "untied-shared.yaml")
    fields = spec.model_dump()
    heads = {}
    for name in ("bf16", "int8", "int4"):
        drawn = fields | {"d_model": 256, "mtp": fields["mtp"] | {"draft_head": name}}
        plan = lower(ModelSpec.model_validate(drawn), "cuda:90")
        (heads[name],) = (
            part
            for part in predict(plan, Shape(1, 3), replace(H100, int8=1.0), Assumptions.data_sheet()).parts
            if part.cost.section == "draft_token" and part.cost.flops
        )
    assert Bound.COMPUTE not in heads["bf16"].seconds
    assert all(Bound.COMPUTE in heads[name].seconds for name in ("int8", "int4"))
    assert len({head.cost.flops for head in heads.values()}) == 1
    scales = 4 * spec.vocab_size
    assert 2 * (heads["int8"].cost.bytes - scales) == heads["bf16"].cost.bytes
    assert 256 / 66 * (heads["int4"].cost.bytes - scales) == heads["bf16"].cost.bytes


def test_programs_are_those_of_the_grid(plan: Plan) -> None:
    matmul = next(launch for launch in plan.section("verify").launches if launch.kernel.startswith("matmul"))
    assert matmul.grid[1] == "row_blocks" and plan.kernel(matmul.kernel).row_tiles == (16,)
    panels = matmul.grid[0]
    assert [count_programs(plan, matmul, rows, Shape(rows)) for rows in (1, 16, 17)] == [panels, panels, 2 * panels]
    attention = next(launch for launch in plan.section("verify").launches if launch.kernel.startswith("attention"))
    slots, tiles, heads = attention.grid
    assert (slots, tiles) == ("bucket", "slot_blocks")
    assert count_programs(plan, attention, 8, Shape(8)) == 8 * heads


@pytest.mark.parametrize(("target", "gpus"), [("cpu", None), ("cuda:80", ["A100"]), ("cuda:90", ["H100", "H200"])])
def test_explain_predicts_for_the_gpus_of_a_target(target: str, gpus: list[str] | None) -> None:
    spec = str(ROOT / "specs" / "tiny-hybrid.yaml")
    printed = CliRunner().invoke(app, ["explain", spec, "--target", target, "--drafts", "3", "--json"])
    document = json.loads(printed.stdout)
    assert list(document.get("predictions", {})) == (gpus or []) and ("predictions" in document) == (gpus is not None)
    for found in document.get("predictions", {}).values():
        assert found["measured"] is False
        assert found["step_us"] == pytest.approx(sum(found["by_bound_us"].values()))
        assert found["step_us"] == pytest.approx(sum(section["us"] for section in found["sections"].values()))
        assert {"verify", "drafter", "draft_token"} <= set(found["sections"])


def test_a_prediction_tells_the_assumptions_that_it_was_made_with(plan: Plan) -> None:
    assumed = Assumptions(bandwidth_share=0.5, launch_seconds=3e-6)
    found = predict(plan, Shape(), of_target(plan.target)[0], assumed)
    assert as_json(found)["assumptions"] == asdict(assumed) != asdict(Assumptions())
    caption = str(next(tables([found])).caption)
    assert "50% of the data sheet's bandwidth" in caption and "3 µs per launch" in caption


def test_tables_say_that_nothing_was_measured() -> None:
    spec = str(ROOT / "specs" / "tiny-hybrid.yaml")
    printed = CliRunner().invoke(app, ["explain", spec, "--target", "cuda:90"]).stdout
    assert printed.count("predicted, never measured") == 2 and "of the data sheet's bandwidth" in " ".join(
        printed.split()
    )
    assert "predicted" not in CliRunner().invoke(app, ["explain", spec]).stdout

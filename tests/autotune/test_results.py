"""Results as files: found by exactly what they are for, whole or absent, and taken only where a kernel allows them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from codegen import tuned
from codegen.errors import ToolchainUnusable, TunedUnusable
from codegen.lower import lower
from codegen.plan import Plan
from codegen.tuned import FREE, KEEP, MEASURED, Result, choose, current, identity, values_of
from codegen.tuned_store import ResultFile, Results
from dsl import ModelSpec

NAME = "matmul_256x1160"


@pytest.fixture(scope="module")
def plan(tiny: ModelSpec) -> Plan:
    return lower(tiny, "cpu")


@pytest.fixture
def result(plan: Plan) -> Result:
    return Result(
        identity(plan, plan.kernel(NAME)), {"BLOCK_N": 32, "row_tiles": (1, 2)}, 0.8, MEASURED, {"noise": 0.01}
    )


def of(found: object, name: str = NAME) -> object:
    return next(choice for choice in found if choice.kernel == name)  # type: ignore[attr-defined]


def test_a_stored_result_comes_back_as_it_was(result: Result, tmp_path: Path) -> None:
    results = Results(tmp_path / "results")
    assert results.find(result.identity) is None
    results.write(result)
    assert results.find(result.identity) == result
    assert results.all() == [result]
    results.write(replace(result, ratio=0.7))
    assert [found.ratio for found in results.all()] == [0.7]


def test_a_result_is_found_by_what_it_says_and_not_by_the_name_of_its_file(result: Result, tmp_path: Path) -> None:
    results = Results(tmp_path)
    other = replace(result.identity, device="another processor")
    results.write(result)
    results.path(result.identity).rename(results.path(other))
    assert results.find(other) is None
    assert results.find(result.identity) is None
    assert results.all() == [result]


def test_a_result_that_nobody_could_read_again_is_not_written(result: Result, tmp_path: Path) -> None:
    trial = {"values": {}, "state": "rejected", "ratio": None, "why": "x" * 4000}
    for wrong in (replace(result, detail={"trials": [trial] * 3000}), replace(result, ratio=float("nan"))):
        with pytest.raises(ValueError, match=r"at most|finite"):
            Results(tmp_path).write(wrong)
    assert list(tmp_path.iterdir()) == []


def test_results_of_todays_toolchain_are_told_from_others(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    old = replace(result, identity=replace(result.identity, toolchain="old"))
    assert current([result, old]) == {result.identity}

    def missing(target: str) -> str:
        raise ToolchainUnusable(target=target, detail="no compiler")

    monkeypatch.setattr(tuned, "toolchain", missing)
    assert current([result, old]) == set()


def test_an_identity_is_the_kernels_text_shape_workload_device_and_versions(tiny: ModelSpec, plan: Plan) -> None:
    mine = identity(plan, plan.kernel(NAME))
    assert dict(mine.shape)["N"] == "1160"
    assert "BLOCK_N" not in dict(mine.shape), "a tunable is no part of what it is found by"
    wider = tiny.model_copy(update={"engine": tiny.engine.model_copy(update={"prefill_chunk": 128})})
    others = [
        identity(lower(wider, "cpu"), plan.kernel(NAME)),
        identity(plan, plan.kernel("matmul_512x256")),
        identity(plan, plan.kernel(NAME), FREE),
        replace(mine, device="another processor"),
        replace(mine, toolchain="another compiler"),
        replace(mine, source="another text"),
    ]
    assert len({mine.digest, *(other.digest for other in others)}) == 7


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data.clear(),
        lambda data: data.update(format=99),
        lambda data: data["values"].update(BLOCK_N="32"),
        lambda data: data["values"].update(row_tiles=[1, True]),
        lambda data: data["identity"].pop("device"),
        lambda data: data["identity"].update(source=7),
        lambda data: data.update(kind="guessed"),
        lambda data: data.update(ratio=None),
    ],
)
def test_a_damaged_result_is_none(result: Result, tmp_path: Path, damage: object) -> None:
    results = Results(tmp_path)
    results.write(result)
    (file,) = tmp_path.glob("*.json")
    data = json.loads(file.read_text())
    damage(data)  # type: ignore[operator]
    file.write_text(json.dumps(data))
    assert results.find(result.identity) is None
    export = tmp_path / "export"
    export.write_text(json.dumps({"results": [data]}))
    with pytest.raises(TunedUnusable, match="is none that `autotune export` writes"):
        ResultFile(export)


def test_a_build_takes_what_is_for_it_and_says_why_the_rest_runs_untuned(
    plan: Plan, result: Result, tmp_path: Path
) -> None:
    results = Results(tmp_path)
    assert {choice.why for choice in choose(plan, results)} == {"not tuned yet"}
    assert {choice.why for choice in choose(plan, None)} == {"tuning is off"}
    results.write(result)
    found = list(choose(plan, results))
    assert values_of(found) == {NAME: dict(result.values)}
    assert of(found).why == MEASURED  # type: ignore[attr-defined]
    assert {choice.kernel for choice in found} == {kernel.name for kernel in plan.kernels if kernel.tunables}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"device": "another"}, "tuned on another machine"),
        ({"toolchain": "another"}, "tuned with another compiler or backend, or for another workload"),
        ({"workload": ()}, "tuned with another compiler or backend, or for another workload"),
        ({"source": "another"}, "tuned for another text of the kernel"),
        ({"target": "cuda:90"}, "not tuned yet"),
    ],
)
def test_a_result_of_something_else_is_not_taken(
    plan: Plan, result: Result, tmp_path: Path, change: dict[str, object], why: str
) -> None:
    results = Results(tmp_path)
    results.write(replace(result, identity=replace(result.identity, **change)))  # type: ignore[arg-type]
    choice = of(choose(plan, results))
    assert (choice.result, choice.why) == (None, why)  # type: ignore[attr-defined]


def test_an_exported_file_is_taken_on_another_machine_and_said_to_be(
    plan: Plan, result: Result, tmp_path: Path
) -> None:
    moved = replace(result, identity=replace(result.identity, device="a faster one", toolchain="newer"))
    file = tmp_path / "tuned.json"
    file.write_text(json.dumps({"results": [moved.plain()]}))
    choice = of(choose(plan, ResultFile(file)))
    assert choice.result == moved  # type: ignore[attr-defined]
    assert "a faster one" in choice.why  # type: ignore[attr-defined]
    other = replace(moved, identity=replace(moved.identity, source="another text"))
    file.write_text(json.dumps({"results": [other.plain()]}))
    assert of(choose(plan, ResultFile(file))).result is None  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"BLOCK_N": 48}, "BLOCK_N = 48, which the kernel does not allow"),
        ({"no_such": 1}, "no_such = 1, which the kernel does not allow"),
        ({"BLOCK_K": 128}, "BLOCK_K = 128, which changes bits: --numerics free takes it"),
    ],
)
def test_values_that_a_kernel_does_not_allow_are_left(
    plan: Plan, result: Result, tmp_path: Path, values: dict[str, int], why: str
) -> None:
    results = Results(tmp_path)
    results.write(replace(result, values=values))
    choice = of(choose(plan, results))
    assert choice.result is None  # type: ignore[attr-defined]
    assert why in choice.why  # type: ignore[attr-defined]


def test_what_changes_bits_is_taken_where_numerics_are_free_and_stamps_the_build(
    tiny: ModelSpec, plan: Plan, result: Result, tmp_path: Path
) -> None:
    results, kernel = Results(tmp_path), plan.kernel("matmul_512x256_residual")
    free = Result(identity(plan, kernel, FREE), {"BLOCK_K": 128}, 0.9, MEASURED)
    results.write(free)
    assert values_of(choose(plan, results, KEEP)) == {}
    values = values_of(choose(plan, results, FREE))
    assert values == {kernel.name: {"BLOCK_K": 128}}
    assert lower(tiny, "cpu", values).numerics_sha256 != plan.numerics_sha256

"""Rules of compiled CUDA kernels: every shipped one keeps them, and each rule finds the kernel planted to break it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import triton
from typer.testing import CliRunner

from codegen.cli import app
from codegen.inspect import RULES, Compiled, Inspection, inspect_plan, judge
from codegen.inspect.device import DEVICES
from codegen.inspect.listing import matching
from codegen.inspect.rules import PTX_FMA
from codegen.lower import TARGETS, lower
from codegen.lower.kernel_rules import Subject
from codegen.package import write_package
from codegen.plan import Plan
from dsl import load_spec
from tests.render import planted
from tests.render.ir_accesses import ir_accesses

ROOT = Path(__file__).resolve().parents[2]
SPECS = sorted([*(ROOT / "specs").glob("*.yaml"), *(ROOT / "tests" / "specs").glob("*.yaml")])
CUDA = tuple(target for target in TARGETS if target.startswith("cuda:"))


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Planted kernels are compiled into a cache of their own."""
    before = triton.knobs.cache.dir
    triton.knobs.cache.dir = str(tmp_path_factory.mktemp("planted"))
    yield
    triton.knobs.cache.dir = before


def test_every_cuda_target_is_described() -> None:
    assert {f"cuda:{arch}" for arch in DEVICES} == set(CUDA)


class Inspected(NamedTuple):
    """A plan, its compiled package, and what was found in it."""

    plan: Plan
    package: Path
    found: list[Inspection]


@pytest.fixture(
    scope="module",
    params=[(path, target) for path in SPECS for target in CUDA],
    ids=lambda param: f"{param[0].stem}-{param[1]}",
)
def inspected(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Inspected:
    path, target = request.param
    spec = load_spec(path)
    plan = lower(spec, target)
    package = tmp_path_factory.mktemp("inspected") / "package"
    write_package([plan], package, spec, path.name)
    return Inspected(plan, package, inspect_plan(plan, package))


def test_every_kernel_of_every_spec_keeps_every_rule(inspected: Inspected) -> None:
    plan, _, found = inspected
    instances = {(kernel.name, tile) for kernel in plan.kernels for tile in kernel.row_tiles or (None,)}
    assert {(entry.kernel, entry.row_tile) for entry in found} == instances
    assert [f"{entry.kernel}: {finding}" for entry in found for finding in entry.findings] == []
    with_dots = [
        f"kernels/{name}.py.j2" for name in ("matmul", "gated_matmul", "attention", "draft_head", "draft_head_int4")
    ]
    assert {e.kernel for e in found if e.dots} == {k.name for k in plan.kernels if k.template in with_dots}


def test_what_a_kernel_reads_and_writes_is_what_its_text_says(inspected: Inspected) -> None:
    """The rules of plans interpret Python text; Triton's own IR names the same parameters.

    A save runs no row, and with one row per slot Triton finds that some of what is read decides nothing.
    """
    plan, package, _ = inspected
    steps = sorted(Subject(plan).steps, key=lambda step: step.launch.section != "save")
    for kernel, step in {step.launch.kernel: step for step in steps}.items():
        texts = [file.read_text() for file in package.glob(f"cache/*/*/{kernel}.ttir")]
        assert texts
        read = {access.parameter for access in step.found if not access.store}
        for loaded, stored in map(ir_accesses, texts):
            assert stored == {access.parameter for access in step.found if access.store}, kernel
            assert loaded <= read, kernel
            assert loaded == read or plan.limits.max_rows == 1, kernel


# rule -> planted kernel, its signature, options, and what the finding names
PLANTED: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "spills": ("wide_tile", "*fp32, *fp32", {"num_warps": 1}, "accesses of local memory"),
    "shared memory": ("deep_dot", "*bf16, *bf16, *fp32", {"num_warps": 8}, "bytes of shared memory"),
    "dot operands": ("dot_into_fp16", "*fp16, *fp16, *fp16", {}, "accumulates in f16"),
    "tensor cores": ("dot_into_fp16", "*fp16, *fp16, *fp16", {}, "without a bf16 or int8 dot"),
    "tf32": ("dot_of_16_rows", "*fp32, *fp32, *fp32", {}, "rounds fp32 to tf32"),
    "contraction": ("assembly_fma", "*fp32, *fp32", {}, "multiply-adds of PTX at planted.py"),
    "16-bit arithmetic": ("bf16_sum", "*fp16, *fp16", {}, "compute in 16 bits"),
    "fp64": ("double_sum", "*fp32, *fp32", {}, "instructions in fp64"),
    "unordered sum": ("racing_sum", "*fp32, *fp32", {}, "in no order"),
}


def broken(kernel: Compiled) -> dict[str, str]:
    """What breaks each rule that is broken."""
    details: dict[str, str] = {}
    for finding in judge(kernel):
        details[finding.rule] = f"{details.get(finding.rule, '')}{finding.detail}; "
    return details


@pytest.mark.parametrize("target", CUDA)
@pytest.mark.parametrize("rule", PLANTED)
def test_a_planted_kernel_breaks_its_rule(rule: str, target: str) -> None:
    name, signature, options, words = PLANTED[rule]
    assert words in broken(planted.compiled(getattr(planted, name), signature, target, **options))[rule]


def test_each_rule_has_a_planted_kernel() -> None:
    """Two limits that the compilers of today never pass are broken by hand, in the test below."""
    assert set(PLANTED) == set(RULES) - {"registers", "tensor memory"}


@pytest.mark.parametrize("target", CUDA)
def test_a_block_that_does_not_fit_the_multiprocessor_is_found(target: str) -> None:
    sound = planted.compiled(planted.dot_of_16_rows, "*bf16, *bf16, *fp32", target)
    assert judge(sound) == []
    assert "registers" in broken(replace(sound, registers=255, num_warps=16))
    assert "tensor memory" in broken(replace(sound, tensor_columns=513))


@pytest.mark.parametrize("target", CUDA)
def test_a_dot_of_fp32_must_say_that_it_means_fp32(target: str) -> None:
    as_is = broken(planted.compiled(planted.dot_of_16_rows, "*fp32, *fp32, *fp32", target))
    assert 'input_precision="ieee"' in as_is["dot operands"]
    said_so = broken(planted.compiled(planted.dot_of_fp32_said_so, "*fp32, *fp32, *fp32", target))
    assert not {"tf32", "dot operands", "tensor cores"} & set(said_so)


@pytest.mark.parametrize("target", CUDA)
def test_a_dot_of_int8_is_one_of_int8_with_int32_sums(target: str) -> None:
    sound = planted.compiled(planted.dot_of_16_rows, "*i8, *i8, *i32", target)
    assert judge(sound) == []
    narrower = replace(sound, ptx_text=sound.ptx_text.replace(".s8.s8.", ".s4.s4."))
    assert "nor one of int8 with int32" in broken(narrower)["tensor cores"]
    bf16 = planted.compiled(planted.dot_of_16_rows, "*bf16, *bf16, *fp32", target)
    assert "nor one of int8" in broken(replace(bf16, ptx_text=sound.ptx_text))["tensor cores"]


@pytest.mark.parametrize("target", CUDA)
def test_contraction_is_found_where_it_happens(target: str) -> None:
    for kernel in (planted.product_and_sum, planted.sum_of_products):
        assert judge(planted.compiled(kernel, "*fp32, *fp32", target)) == []
        fused = planted.compiled(kernel, "*fp32, *fp32", target, enable_fp_fusion=True)
        assert "where no tl.fma asks for one" in broken(fused)["contraction"]


def test_contraction_by_the_assembler_alone_is_found() -> None:
    """PTX without a multiply-add and machine code with one: what `ptxas` without `--fmad=false` gives."""
    kept = planted.compiled(planted.product_and_sum, "*fp32, *fp32", "cuda:90")
    fused = planted.compiled(planted.product_and_sum, "*fp32, *fp32", "cuda:90", enable_fp_fusion=True)
    detail = broken(replace(kept, sass_text=fused.sass_text))["contraction"]
    assert "contracted by the assembler" in detail
    assert "planted.py:" in detail


def test_a_line_of_another_file_with_the_same_number_is_no_contraction_unless_ptx_has_a_product_there() -> None:
    """nvdisasm does not say that a file changes where the number of the line stays."""
    sound = planted.compiled(planted.logarithm_and_fma, "*fp32, *fp32", "cuda:90")
    fma = next(i for i in matching(sound.ptx, PTX_FMA) if i.line and ".ftz" not in i.op)
    assert fma.line is not None
    named = f'//## File "/elsewhere/other.py", line {fma.line.number}'
    listing = re.sub(rf'//## File "[^"]*planted.py", line {fma.line.number}', named, sound.sass_text)
    assert named in listing and judge(replace(sound, sass_text=listing)) == []
    moved = re.sub(rf'//## File "[^"]*planted.py", line {fma.line.number}\b', named + "1", sound.sass_text)
    assert "other.py" in broken(replace(sound, sass_text=moved))["contraction"]
    product = f'\t.file 9 "/elsewhere/other.py"\n\t.loc 9 {fma.line.number} 1\n\tmul.rn.f32 %f1, %f2, %f3;\n'
    beside = replace(sound, sass_text=listing, ptx_text=sound.ptx_text + product)
    assert "contracted by the assembler" in broken(beside)["contraction"]


def test_a_product_beside_an_fma_is_refused_as_it_could_hide_a_contraction() -> None:
    detail = broken(planted.compiled(planted.product_beside_fma, "*fp32, *fp32", "cuda:90"))["contraction"]
    assert "give it a line of its own" in detail


@pytest.mark.parametrize("target", CUDA)
def test_multiply_adds_that_are_meant_pass(target: str) -> None:
    sound = planted.compiled(planted.logarithm_and_fma, "*fp32, *fp32", target)
    assert judge(sound) == []
    assert sound.intent.fma
    assert sound.intent.functions


@pytest.mark.parametrize(("target", "family"), [("cuda:80", "mma"), ("cuda:90", "wgmma"), ("cuda:100", "tcgen05")])
def test_a_dot_of_many_rows_takes_the_wide_instructions_of_the_target(target: str, family: str) -> None:
    sound = planted.compiled(planted.dot_of_128_rows, "*bf16, *bf16, *fp32", target)
    assert judge(sound) == []
    assert any(instruction.op.startswith(family) for instruction in sound.ptx)


def test_a_wide_dot_on_the_narrow_instructions_is_found() -> None:
    ampere = planted.compiled(planted.dot_of_128_rows, "*bf16, *bf16, *fp32", "cuda:80")
    assert "runs on mma, not on wgmma" in broken(replace(ampere, target="cuda:90"))["tensor cores"]


def test_a_dot_without_tensor_cores_is_found() -> None:
    sound = planted.compiled(planted.dot_of_16_rows, "*bf16, *bf16, *fp32", "cuda:90")
    scalar = "\n".join(line for line in sound.ptx_text.splitlines() if "mma." not in line)
    assert "no tensor core instruction" in broken(replace(sound, ptx_text=scalar))["tensor cores"]


def test_an_instruction_that_the_target_lacks_is_found() -> None:
    hopper = planted.compiled(planted.dot_of_128_rows, "*bf16, *bf16, *fp32", "cuda:90")
    assert "cuda:100 has mma, tcgen05" in broken(replace(hopper, target="cuda:100"))["tensor cores"]


def test_the_command_prints_what_it_found_and_keeps_what_has_not_changed(tmp_path: Path) -> None:
    """Exit code 1 and the reason for a kernel that breaks a rule; a second run reads the kept findings."""
    command = ["inspect", str(ROOT / "tests" / "specs" / "no-mtp.yaml"), "--target", "cuda:90", "-o", str(tmp_path)]
    first = CliRunner().invoke(app, [*command, "--json"])
    assert first.exit_code == 0, first.output
    report = json.loads(first.output)
    assert report["passed"] is True
    assert report["kernels"] == sum(len(group) for group in report["specs"].values()) > 0
    kept = tmp_path / "no_mtp" / "cache" / "cuda_90" / "inspection.json"
    entries = json.loads(kept.read_text())
    key, entry = next((key, entry) for key, entry in entries.items() if entry["kernel"] == "sample")
    entries[key] = entry | {"findings": [{"rule": "spills", "detail": "planted"}]}
    kept.write_text(json.dumps(entries))
    second = CliRunner().invoke(app, command)
    assert second.exit_code == 1, second.output
    assert "spills: planted" in second.output
    assert "1 break a rule" in second.output
    kept.write_text("{ no json")
    assert CliRunner().invoke(app, command).exit_code == 0


def test_a_target_without_gpu_code_is_refused(tmp_path: Path) -> None:
    command = ["inspect", str(SPECS[0]), "--target", "cpu", "-o", str(tmp_path)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2
    assert "cuda:90" in result.output


def test_a_target_named_like_an_emoji_is_printed_as_it_is(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["check", str(SPECS[0]), "--target", "cuda:100"])
    assert "cuda:100: " in result.output

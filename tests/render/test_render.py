"""What is true of every rendered package: it parses, names resolve, launches match kernels, bytes repeat."""

import ast
import subprocess
import sys
from pathlib import Path

import jinja2
import jinja2.meta
import pytest

from codegen.errors import BadSpecName, CodegenError, OutputRefused
from codegen.lower import lower
from codegen.package import write_package
from codegen.plan import Plan
from codegen.render import TEMPLATES, comment, environment, ident, literal, render_package, render_target
from dsl import ModelSpec, load_spec

ROOT = Path(__file__).resolve().parents[2]
SPECS = sorted([*(ROOT / "specs").glob("*.yaml"), *(ROOT / "tests" / "specs").glob("*.yaml")])
TARGETS = ("cpu", "cuda:90")
COMMAND = "python -m codegen build"


@pytest.fixture(
    scope="module",
    params=[(spec, target) for spec in SPECS for target in TARGETS],
    ids=lambda param: f"{param[0].stem}-{param[1]}",
)
def plan(request: pytest.FixtureRequest) -> Plan:
    spec, target = request.param
    return lower(load_spec(spec), target)


def signature(source: str, name: str) -> list[str]:
    function = next(node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == name)
    return [argument.arg for argument in function.args.args]


def test_lowering_and_rendering_twice_gives_the_same_bytes(plan: Plan) -> None:
    again = lower(load_spec(next(path for path in SPECS if path.stem == plan.name)), plan.target)
    assert again.sha256 == plan.sha256
    assert render_target(again, COMMAND) == render_target(plan, COMMAND)


def test_launches_pass_exactly_the_kernels_parameters_in_order(plan: Plan) -> None:
    files = render_target(plan, COMMAND)
    for section, launch in plan.launches():
        kernel = plan.kernel(launch.kernel)
        expected = [name for name, _ in launch.args] + (["BLOCK_M"] if kernel.row_tiles else [])
        assert signature(files[f"kernels/{kernel.name}.py"], kernel.name) == expected, (
            f"{section.name}: {launch.kernel}"
        )


def test_every_parameter_and_constant_of_a_kernel_is_used(plan: Plan) -> None:
    files = render_target(plan, COMMAND)
    for kernel in plan.kernels:
        tree = ast.parse(files[f"kernels/{kernel.name}.py"])
        read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
        declared = {name for name, _ in kernel.constants if name.isupper()}
        declared |= set(signature(files[f"kernels/{kernel.name}.py"], kernel.name))
        assert declared <= read, f"{kernel.name} does not use {sorted(declared - read)}"


def test_rendered_modules_have_no_undefined_or_unused_names(plan: Plan, tmp_path: Path) -> None:
    for path, text in render_target(plan, COMMAND).items():
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F,E9", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


def test_rendered_modules_are_formatted(plan: Plan, tmp_path: Path) -> None:
    for path, text in render_target(plan, COMMAND).items():
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    command = [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length", "120", "--diff", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


def test_headers_have_a_fixed_line_count(plan: Plan) -> None:
    starts = {
        text.split('"""')[0].count("\n")
        for path, text in render_target(plan, COMMAND).items()
        if path.startswith("kernels/") and "tl." in text
    }
    assert len(starts) == 1


def test_a_package_does_not_depend_on_where_its_spec_lies(spec: ModelSpec, tmp_path: Path) -> None:
    plans = [lower(spec, target) for target in TARGETS]
    write_package(plans, tmp_path / "here", spec, "specs/tiny-hybrid.yaml")
    write_package(plans, tmp_path / "there", spec, str(ROOT / "specs" / "tiny-hybrid.yaml"))
    files = sorted(path.relative_to(tmp_path / "here") for path in (tmp_path / "here").rglob("*") if path.is_file())
    for path in files:
        assert (tmp_path / "here" / path).read_bytes() == (tmp_path / "there" / path).read_bytes(), path


@pytest.mark.parametrize("name", ["a\nimport os #.yaml", 'x""".yaml', "a b.yaml", "\u2028.yaml", "$(id).yaml"])
def test_a_hostile_file_name_never_reaches_generated_code(spec: ModelSpec, tmp_path: Path, name: str) -> None:
    with pytest.raises(BadSpecName):
        write_package([lower(spec, "cpu")], tmp_path / "p", spec, name)
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize("value", ["two\nlines", 'ends """ here', "back\\slash", "\x00"])
def test_comment_refuses_what_could_end_a_comment(value: str) -> None:
    with pytest.raises(CodegenError):
        comment(value)


def test_every_kernel_template_is_rendered_by_some_spec() -> None:
    plans = [lower(load_spec(path), "cpu") for path in SPECS]
    used = {kernel.template for plan in plans for kernel in plan.kernels}
    assert used == {f"kernels/{path.name}" for path in (TEMPLATES / "kernels").glob("*.py.j2")}


def test_templates_read_only_what_their_context_has(plan: Plan) -> None:
    for kernel in plan.kernels:
        tree = environment().parse((TEMPLATES / kernel.template).read_text())
        context = {"kernel", "constants"} | {name for name, _ in kernel.constants if not name.isupper()}
        assert jinja2.meta.find_undeclared_variables(tree) <= context, kernel.template


def test_undefined_names_in_a_template_are_errors() -> None:
    with pytest.raises(jinja2.UndefinedError):
        environment().from_string("{{ nothing }}").render()


@pytest.mark.parametrize("value", ["import os", "a b", "class", "x;y", 3, None])
def test_ident_refuses_what_is_no_identifier(value: object) -> None:
    with pytest.raises(CodegenError):
        ident(value)


@pytest.mark.parametrize("value", [[1], {"a": 1}, None, object()])
def test_literal_refuses_what_is_no_literal(value: object) -> None:
    with pytest.raises(CodegenError):
        literal(value)


@pytest.fixture(scope="module")
def spec() -> ModelSpec:
    return load_spec(ROOT / "specs" / "tiny-hybrid.yaml")


def test_writing_again_changes_nothing(spec: ModelSpec, tmp_path: Path) -> None:
    plans = [lower(spec, target) for target in TARGETS]
    first = write_package(plans, tmp_path / "p", spec, "s.yaml")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "p").rglob("*") if path.is_file()}
    second = write_package(plans, tmp_path / "p", spec, "s.yaml")
    assert (first.changed, second.changed) == (first.files, 0)
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "p").rglob("*") if path.is_file()}


def test_files_of_a_dropped_target_are_removed_by_manifest(spec: ModelSpec, tmp_path: Path) -> None:
    both = [lower(spec, target) for target in TARGETS]
    write_package(both, tmp_path / "p", spec, "s.yaml")
    (tmp_path / "p" / "notes.txt").write_text("mine")
    written = write_package(both[:1], tmp_path / "p", spec, "s.yaml")
    assert written.removed == len(render_package(both, "c")) - len(render_package(both[:1], "c"))
    assert not list((tmp_path / "p" / "cuda_90").rglob("*.py"))
    assert (tmp_path / "p" / "notes.txt").read_text() == "mine"


def test_a_folder_of_someone_else_is_refused(spec: ModelSpec, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(OutputRefused, match="is not empty"):
        write_package([lower(spec, "cpu")], tmp_path, spec, "s.yaml")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]

"""The arrows between folders: docs/architecture.md. A failure says which import to move and where."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS = ("dsl", "codegen", "templates", "runtime", "autotune")
HEAVY = ("torch", "triton", "transformers")

# folder -> (top-level modules of ours it may import, heavy libraries it may import)
ALLOWED = {
    "dsl": (("dsl",), ()),
    "dsl/reference": (("dsl",), ("torch",)),
    "codegen": (("codegen", "dsl"), ()),
    "runtime": (("runtime",), ("torch", "triton")),
    "runtime/cpu": (("runtime.cpu",), ("torch", "triton")),
    "autotune": (("autotune", "codegen", "dsl", "runtime"), ("torch", "triton")),
}
# Applications may import both sides.
APPLICATIONS = ("codegen/verify", "codegen/aot_worker.py", "codegen/catalogue.py")
ENVIRONMENT_READERS = ("runtime/cpu/knobs.py",)


def modules(folder: str) -> Iterator[Path]:
    deeper = [ROOT / other for other in ALLOWED if other != folder and other.startswith(folder + "/")]
    for path in sorted((ROOT / folder).rglob("*.py")):
        relative = path.relative_to(ROOT).as_posix()
        if any(parent in path.parents for parent in deeper) or relative.startswith(APPLICATIONS):
            continue
        yield path


def imports(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.lineno, node.module


def within(module: str, prefixes: tuple[str, ...]) -> bool:
    return any(module == prefix or module.startswith(prefix + ".") for prefix in prefixes)


@pytest.mark.parametrize("folder", ALLOWED)
def test_folder_imports_only_what_the_architecture_allows(folder: str) -> None:
    ours, heavy = ALLOWED[folder]
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {module}; {folder}/ may import {ours} and {heavy or 'no torch'}"
        for path in modules(folder)
        for line, module in imports(path)
        if (within(module, OURS) and not within(module, ours)) or (within(module, HEAVY) and not within(module, heavy))
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_that_is_shipped_imports_the_tuner() -> None:
    """Applications among codegen may import both sides, but what autotune finds reaches them as data."""
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for folder in ("dsl", "codegen", "runtime", "templates")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, module in imports(path)
        if within(module, ("autotune", "optuna"))
    ]
    assert not found, f"read tuned values with codegen/tuned.py instead: {', '.join(found)}"


def test_jinja_environment_is_made_in_one_place() -> None:
    makers = [
        path.relative_to(ROOT).as_posix()
        for folder in OURS
        for path in (ROOT / folder).rglob("*.py")
        if "jinja2.Environment(" in path.read_text() or "jinja2.Template(" in path.read_text()
    ]
    assert makers == ["codegen/render.py"], "use codegen.render.environment()"


def test_environment_variables_are_read_in_knobs_only() -> None:
    readers = [
        path.relative_to(ROOT).as_posix()
        for folder in ("dsl", "codegen", "runtime", "autotune")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "os.environ" in path.read_text() or "os.getenv" in path.read_text()
    ]
    assert set(readers) <= set(ENVIRONMENT_READERS), "read environment variables in knobs.py and pass the value on"


def test_consoles_print_text_as_it_is() -> None:
    """Rich takes the 100 of a target between colons for an emoji, unless told otherwise."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for room in ("dsl", "codegen", "runtime", "autotune", "benchmarks", "tests")
        for path in sorted((ROOT / room).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Console" and "emoji=False" not in ast.unparse(node)
    ]
    assert not wrong, f"pass emoji=False: {', '.join(wrong)}"

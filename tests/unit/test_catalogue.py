"""The catalogue of errors over all packages: a code each, told one way."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from codegen import catalogue
from codegen.catalogue import FAMILIES, Entry, Family, entries, fields, subclasses
from codegen.cli import app
from dsl.errors import InvalidSpec, SpecError

CODE = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
# Classes that have the code of the error that they carry.
WITHOUT_A_CODE = {"RefusedByRuntime"}
ALL = [(family, entry) for family in FAMILIES for entry in entries(family)]
CLASSES = {cls.code: cls for family in FAMILIES for cls in subclasses(family.base) if "code" in vars(cls)}


def test_codes_are_unique_over_all_packages() -> None:
    codes = [entry.code for _, entry in ALL] + [family.base.code for family in FAMILIES]
    assert len(codes) == len(set(codes)) > 100
    assert [code for code in codes if not CODE.fullmatch(code)] == []


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.title)
def test_every_class_of_our_own_has_a_code_a_message_and_a_meaning(family: Family) -> None:
    listed = {entry.name for entry in entries(family)}
    ours = [c for c in subclasses(family.base) if c.__module__.split(".")[0] in ("dsl", "codegen", "runtime")]
    assert {cls.__name__ for cls in ours} - {family.base.__name__} - WITHOUT_A_CODE <= listed
    for entry in entries(family):
        assert entry.template and entry.meaning.endswith((".", "...")), entry.name


@pytest.mark.parametrize(("family", "entry"), ALL, ids=lambda value: getattr(value, "code", None))
def test_a_message_holds_its_fields_and_its_first_line_ends_with_the_code(family: Family, entry: Entry) -> None:
    names = fields(entry.template)
    given = {name: f"<{name}>" for name in names}
    cls = CLASSES[entry.code]
    if cls is InvalidSpec:
        error: Exception = InvalidSpec([SpecError().located("x.yaml", 3)])
        assert str(error) == "x.yaml:3: not a valid spec [spec]"
        return
    error = cls(("a", 1), 2, **given).located("x.yaml", 3) if family.base is SpecError else cls(**given)
    first = str(error).splitlines()[0]
    assert first.endswith(f" [{entry.code}]")
    assert all(f"<{name}>" in str(error) for name in names)
    if family.base is SpecError:
        assert first.startswith("x.yaml:3 a[1] = 2: ")


@pytest.mark.parametrize("family", [f for f in FAMILIES if f.title != "Kernels on CPUs"], ids=lambda f: f.title)
def test_what_a_file_says_acts_on_no_terminal_and_stays_short(family: Family) -> None:
    hostile = "\x1b[2J\r\x00\u202e\u2028\ud800" + "x" * 100_000
    for entry in entries(family):
        cls = CLASSES[entry.code]
        if cls is InvalidSpec:
            continue
        given = dict.fromkeys(fields(entry.template), hostile)
        error = cls((hostile,), hostile, **given).located(hostile, 1) if family.base is SpecError else cls(**given)
        assert str(error).isprintable() and len(str(error)) < 4100, entry.name
        assert str(error).endswith(f"[{entry.code}]")


def test_a_code_is_explained_and_an_unknown_one_refused() -> None:
    run = CliRunner()
    done = run.invoke(app, ["errors", "weights-shape"])
    assert done.exit_code == 0 and "A tensor has another shape than the plan says." in done.stdout
    assert "runtime.errors.WeightsShape" in done.stdout
    done = run.invoke(app, ["errors", "weights-shap"])
    assert done.exit_code == 2 and "did you mean 'weights-shape'?" in done.stderr and "[unknown-code]" in done.stderr
    done = run.invoke(app, ["errors"])
    assert done.exit_code == 0 and all(f"  {entry.code}: " in done.stdout for _, entry in ALL)


def test_every_code_is_on_the_page() -> None:
    page = catalogue.page()
    assert all(page.count(f"| `{entry.code}` |") == 1 for _, entry in ALL)

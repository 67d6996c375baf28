"""The spec to start from: valid, explained to the last field, and never in place of a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

import dsl
from codegen.cli import app as codegen_app
from dsl.cli import app
from dsl.errors import InvalidSpec
from dsl.fields import PLACES, fields_of, models
from dsl.layers import Strict
from dsl.starter import NAME, VALUES, spelled, starter, write_new
from dsl.yaml_tree import parse_tree
from tests.hostile.places import PLACES as ODD_PLACES

WORDS = ("null", "true", "false", "yes", "no", "on", "off", "y", "n", "x", "a-b", "mamba2")


def test_it_is_the_spec_that_was_meant() -> None:
    spec = dsl.parse_spec(starter())
    assert spec == dsl.ModelSpec.model_validate({"name": NAME, **VALUES})


@pytest.mark.parametrize("name", WORDS)
def test_any_name_reads_back(name: str) -> None:
    assert dsl.parse_spec(starter(name)).name == name
    assert parse_tree(f"a: {spelled(name)}", "x")[0].plain() == {"a": name}


def test_it_builds(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(starter())
    done = CliRunner().invoke(
        codegen_app, ["build", str(tmp_path / "x.yaml"), "--no-aot", "--target", "cpu", "-o", str(tmp_path / "p")]
    )
    assert done.exit_code == 0, done.output
    assert (tmp_path / "p" / "manifest.json").is_file()


@pytest.mark.parametrize(("model", "place"), PLACES, ids=lambda value: getattr(value, "__name__", None))
def test_every_field_is_explained_with_its_range_and_unit(model: type[Strict], place: str) -> None:
    text = " ".join(starter().replace("#", " ").split())
    for field in fields_of(model):
        assert " ".join(field.meaning.replace("#", " ").split()) in text, (place, field.name)
        if not field.allowed.startswith("a mapping"):
            assert " ".join(f"[{field.allowed}]".split()) in text, (place, field.name)


def test_every_model_has_a_place() -> None:
    assert {model for model, _ in PLACES} == models()


@pytest.mark.parametrize(
    ("arguments", "path", "name"),
    [
        ((), "my-model.yaml", "my-model"),
        (("tiny.yaml",), "tiny.yaml", "tiny"),
        (("My Model.yml",), "My Model.yml", "my-model"),
        (("--name", "small"), "small.yaml", "small"),
        (("x.yaml", "--name", "small"), "x.yaml", "small"),
    ],
)
def test_the_command_names_what_it_writes(
    arguments: tuple[str, ...], path: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["new", *arguments])
    assert done.exit_code == 0, done.output
    assert [file.name for file in tmp_path.iterdir()] == [path]
    assert dsl.load_spec(tmp_path / path).name == name


@pytest.mark.parametrize("name", ["a b.yaml", "a\nname: y.yaml", "\x1b[2J.yaml", "a'; rm -rf x.yaml", "ü.yaml"])
def test_what_the_file_is_called_stays_in_its_comment(name: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["new", str(tmp_path / name), "--name", "x"])
    assert done.exit_code == 0 and done.stdout.strip().isprintable()
    assert dsl.load_spec(tmp_path / name) == dsl.ModelSpec.model_validate({"name": "x", **VALUES})


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("there.yaml",), "spec-exists"),
        (("folder",), "spec-exists"),
        (("link.yaml",), "spec-exists"),
        (("nowhere/x.yaml",), "spec-not-written"),
        (("x" * 300 + ".yaml", "--name", "x"), "spec-not-written"),
        (("/dev/null/x.yaml",), "spec-not-written"),
        (("5.yaml",), "spec-bad-name"),
        (("--name", "Ünï"), "spec-bad-name"),
        (("--name", "../x"), "spec-bad-name"),
        (("--name", "x\x1b[2J"), "spec-bad-name"),
        (("--name", ""), "spec-bad-name"),
        (("y.yaml", "--name", "x" * 100), "spec-bad-name"),
    ],
)
def test_what_cannot_be_written_is_refused_and_nothing_changes(
    arguments: tuple[str, ...], code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.yaml").write_text("keep")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.yaml").symlink_to(tmp_path / "nothing")
    before = sorted(tmp_path.rglob("*"))
    done = CliRunner().invoke(app, ["new", *arguments])
    assert done.exit_code == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and done.stderr.strip().isprintable()
    assert done.stderr.strip().endswith(f"[{code}]")
    assert sorted(tmp_path.rglob("*")) == before and (tmp_path / "there.yaml").read_text() == "keep"


@pytest.mark.parametrize("place", ODD_PLACES)
def test_nothing_is_written_over_or_through_what_is_there(place: str, tmp_path: Path) -> None:
    ODD_PLACES[place](tmp_path / "x.yaml")
    with pytest.raises(InvalidSpec) as caught:
        write_new(tmp_path / "x.yaml", "x")
    assert [error.code for error in caught.value.errors] == ["spec-exists"]


def test_a_full_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unlinked = []
    monkeypatch.setattr(os, "unlink", lambda path: unlinked.append(path))
    monkeypatch.setattr("builtins.open", lambda path, *_, **__: open_full())
    with pytest.raises(InvalidSpec, match="No space left"):
        write_new(tmp_path / "x.yaml", "x")
    assert unlinked == [tmp_path / "x.yaml"]


def open_full():
    """A file on a full disk."""
    return os.fdopen(os.open("/dev/full", os.O_WRONLY), "w")

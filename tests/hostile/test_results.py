"""Files of tuned results from strangers: refused in one message, or shown by every command without harm."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from autotune.cli import app as autotune_app
from codegen.cli import app as codegen_app
from codegen.tuned_store import ResultFile, Results
from tests.cpu.engine.toys import toy_spec
from tests.hostile.places import PLACES
from tests.hostile.results import ODD, REFUSED, RESULTS, good_results
from tests.hostile.test_corpus import listing, refused
from tests.hostile.watch import within


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    with within(30.0):
        yield


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "toy.yaml"
    path.write_text(yaml.safe_dump(json.loads(json.dumps(toy_spec().model_dump())), sort_keys=False))
    return path


@pytest.mark.parametrize("name", RESULTS)
def test_results(name: str, tmp_path: Path, spec: Path) -> None:
    path = tmp_path / "tuned.json"
    path.write_bytes(RESULTS[name]())
    before = listing(tmp_path)
    refused(autotune_app, ["import", str(path), "--folder", str(tmp_path / "there")], REFUSED)
    refused(autotune_app, ["show", "--folder", str(path)], REFUSED)
    refused(codegen_app, ["explain", str(spec), "--tuned", str(path)], REFUSED)
    assert listing(tmp_path) == before


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_like_that_in_a_folder_is_none(name: str, tmp_path: Path) -> None:
    """Whoever put it there: no command sees it, and the kernel runs untuned."""
    (good, other) = opened_file(good_results(), tmp_path).all()
    results = Results(tmp_path / "results")
    results.write(other)
    try:
        data = json.loads(RESULTS[name]())["results"][0]
    except (ValueError, KeyError, TypeError, RecursionError):
        data = None
    results.path(good.identity).write_text(json.dumps(data))
    assert results.find(good.identity) is None
    assert results.all() == [other]


def opened_file(content: bytes, folder: Path) -> ResultFile:
    path = folder / "good.json"
    path.write_bytes(content)
    return ResultFile(path)


@pytest.mark.parametrize("place", PLACES)
def test_places_where_results_are_expected(place: str, tmp_path: Path) -> None:
    PLACES[place](tmp_path / "x")
    refused(autotune_app, ["import", str(tmp_path / "x"), "--folder", str(tmp_path / "there")], REFUSED)


@pytest.mark.parametrize("name", ODD)
def test_odd_results_are_shown_as_they_are_spelled(name: str, tmp_path: Path, spec: Path) -> None:
    path, folder = tmp_path / "tuned.json", tmp_path / "there"
    path.write_bytes(ODD[name]())
    odd = json.loads(path.read_bytes())["results"][0]["identity"]
    assert "2 of 2" in ran(autotune_app, "import", path, "--folder", folder)
    shown = ran(autotune_app, "show", "--folder", folder)
    for word in (odd["kernel"], odd["device"], odd["target"]):
        assert word in shown
    again = tmp_path / "again.json"
    assert "2 results" in ran(autotune_app, "export", "--folder", folder, "-o", again)
    ran(autotune_app, "diff", path, again)
    ran(autotune_app, "diff", path, tmp_path / "there", "--json")
    assert "2 kernels" in ran(autotune_app, "report", "--folder", folder, "-o", tmp_path / "page.html")
    assert "<script" not in (tmp_path / "page.html").read_text()
    assert "measured" in ran(codegen_app, "explain", spec, "--context", 64, "--tuned", path)
    assert json.loads(ran(codegen_app, "build", spec, "--no-aot", "-o", tmp_path / "p", "--tuned", path, "--json"))


def test_a_difference_is_shown_as_it_is_spelled(tmp_path: Path) -> None:
    names = [tmp_path / "[" / "x]", tmp_path / "other"]
    names[0].parent.mkdir()
    for path, name in zip(names, list(ODD)[:2], strict=True):
        path.write_bytes(ODD[name]())
    shown = ran(autotune_app, "diff", *names, code=1)
    assert "[/x]" in shown and "[/bold][link=x]" in shown


@pytest.mark.parametrize("place", ["a [/x] b", "[bold]"])
def test_folders_are_named_as_they_are_spelled(place: str, tmp_path: Path) -> None:
    path, folder = tmp_path / "tuned.json", tmp_path / place
    path.write_bytes(good_results())
    ran(autotune_app, "import", path, "--folder", folder)
    assert place in ran(autotune_app, "export", "--folder", folder, "-o", folder / "all.json")
    assert place in ran(autotune_app, "report", "--folder", folder, "-o", folder / "page.html")


def ran(app: object, *arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])  # type: ignore[arg-type]
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout

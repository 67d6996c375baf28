"""Every hostile input gets the error it must get: one message, its code, exit code 2, in time, and nothing left."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from autotune.cli import app as autotune_app
from codegen.cli import app as codegen_app
from dsl import files as dsl_files
from dsl.cli import app as dsl_app
from dsl.errors import InvalidSpec
from dsl.loader import load_spec
from runtime import files as runtime_files
from runtime.checkpoints.archive import load_archive
from runtime.cli import app as runtime_app
from runtime.errors import CheckpointFileDamaged, RuntimeStateError, WeightsNotFound
from runtime.package import open_package
from runtime.weights import check_weights, open_weights
from tests.cpu.tiers.images import LAYOUT
from tests.hostile.checkpoints import CHECKPOINTS
from tests.hostile.commands import AUTOTUNE, CODEGEN, DSL, RUNTIME, SPEC_NAMES
from tests.hostile.outputs import OUTPUTS
from tests.hostile.packages import PACKAGES
from tests.hostile.places import PLACES, fifo
from tests.hostile.results import RESULTS
from tests.hostile.specs import GOOD, SPECS
from tests.hostile.subject import Good, make_good
from tests.hostile.watch import within
from tests.hostile.weights import WEIGHTS

SECONDS = 30.0
LONGEST = 4200  # characters of a refusal's line
USAGE = "usage"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Good:
    return make_good(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    with within(SECONDS):
        yield


def refused(app: Any, arguments: list[str], code: str) -> str:
    """Run a command that must refuse; returns what it says."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2, (result.output, result.exception)
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.stdout == ""
    if code == USAGE:
        return result.stderr
    lines = result.stderr.splitlines()
    assert any(line.endswith(f"[{code}]") for line in lines), result.stderr
    for line in lines:
        assert line.isprintable() and len(line) < LONGEST, line
        assert re.search(r"\[[a-z0-9-]+\]$", line) or line.startswith("... and "), line
    return result.stderr


def test_the_corpus_is_large_enough() -> None:
    corpora = (SPECS, WEIGHTS, PACKAGES, OUTPUTS, CHECKPOINTS, RESULTS, RUNTIME, CODEGEN, AUTOTUNE, DSL)
    assert sum(map(len, corpora)) >= 250


@pytest.mark.parametrize("name", SPECS)
def test_specs(name: str, tmp_path: Path) -> None:
    content, code = SPECS[name]
    path = tmp_path / "x.yaml"
    path.write_bytes(content)
    said = refused(codegen_app, ["build", str(path), "-o", str(tmp_path / "out")], code)
    assert all(line.startswith((str(path), "... and ")) for line in said.splitlines())
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("place", PLACES)
def test_places_where_a_spec_is_expected(place: str, tmp_path: Path) -> None:
    PLACES[place](tmp_path / "x.yaml")
    code = "spec-too-long" if place == "a huge sparse file" else "spec-unreadable-file"
    refused(codegen_app, ["check", str(tmp_path / "x.yaml")], code)


@pytest.mark.parametrize("path", ["a\0b", "a\ud800b", ""])
def test_paths_that_no_spec_can_have(path: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        load_spec(path)
    assert [error.code for error in caught.value.errors] == ["spec-unreadable-file"]
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", SPEC_NAMES)
def test_names_of_spec_files_that_no_comment_can_quote(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(GOOD)
    refused(codegen_app, ["build", str(tmp_path / name), "-o", str(tmp_path / "out")], "build-spec-name")
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("read", [dsl_files.read_regular, runtime_files.read_regular, runtime_files.sha256_of])
def test_what_is_refused_is_closed(read: Callable[[Path, int], object], place: str, tmp_path: Path) -> None:
    PLACES[place](tmp_path / "x")
    before = os.listdir("/proc/self/fd")
    with suppress(OSError):
        assert read(tmp_path / "x", 1000) == bytes(1001)
    assert os.listdir("/proc/self/fd") == before


def test_a_byte_order_mark_before_a_spec_is_fine(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert load_spec(tmp_path / "x.yaml").name == "tiny-hybrid"


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights(good: Good, name: str, tmp_path: Path) -> None:
    change, code = WEIGHTS[name]
    path = tmp_path / "w.safetensors"
    path.write_bytes(change(good.weights))
    with pytest.raises(RuntimeStateError) as caught:
        check_weights(good.package.plan, open_weights(path))
    assert caught.value.code == code
    refused(runtime_app, ["generate", str(good.folder), "--prompt", "x", "--weights", str(path)], code)
    refused(codegen_app, ["verify", str(good.folder), "--weights", str(path)], code)


@pytest.mark.parametrize("place", PLACES)
def test_places_where_weights_are_expected(good: Good, place: str, tmp_path: Path) -> None:
    PLACES[place](tmp_path / "w")
    code = "weights-unreadable" if place == "a huge sparse file" else WeightsNotFound.code
    refused(runtime_app, ["generate", str(good.folder), "--prompt", "x", "--weights", str(tmp_path / "w")], code)


def test_good_weights_pass(good: Good, tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(good.weights)
    check_weights(good.package.plan, open_weights(tmp_path / "w"))


@pytest.mark.parametrize("name", PACKAGES)
def test_packages(good: Good, name: str, tmp_path: Path) -> None:
    change, code = PACKAGES[name]
    package = tmp_path / "package"
    shutil.copytree(good.folder, package, ignore=shutil.ignore_patterns("__pycache__"))
    change(package)
    before = sorted(package.rglob("*"))
    with pytest.raises(RuntimeStateError) as caught:
        open_package(package)
    assert caught.value.code == code
    refused(runtime_app, ["generate", str(package), "--prompt", "x"], code)
    assert [path for path in sorted(package.rglob("*")) if "__pycache__" not in path.parts] == before


@pytest.mark.parametrize("content", [b"null", b"{}", b"[" * 100_000, b'{"name": {"name": 1}}', b"1" * 5000, b"\xff"])
def test_the_spec_in_a_package(good: Good, content: bytes, tmp_path: Path) -> None:
    package = tmp_path / "package"
    shutil.copytree(good.folder, package, ignore=shutil.ignore_patterns("__pycache__"))
    from tests.hostile.packages import sealed

    sealed("spec.json", content)(package)
    refused(codegen_app, ["verify", str(package)], "verify-refused")
    refused(autotune_app, ["run", str(package)], "tune-option")


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs(name: str, tmp_path: Path) -> None:
    make, code = OUTPUTS[name]
    (tmp_path / "parent").mkdir()
    (tmp_path / "x.yaml").write_text(GOOD)
    make(tmp_path / "parent" / "out")
    before = listing(tmp_path)
    output = str(tmp_path / "parent" / "out")
    refused(codegen_app, ["build", str(tmp_path / "x.yaml"), "--no-aot", "-o", output], code)
    assert listing(tmp_path) == before


def test_a_recorded_file_that_no_file_can_be_is_left_alone(tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    names = {"a\0b": "0" * 64, "a\ud800": "0" * 64, "x" * 300: "0" * 64}
    (output / "manifest.json").write_text(json.dumps({"format": 1, "generator": "0", "files": names}))
    (tmp_path / "x.yaml").write_text(GOOD)
    result = CliRunner().invoke(codegen_app, ["build", str(tmp_path / "x.yaml"), "--no-aot", "-o", str(output)])
    assert result.exit_code == 0, (result.output, result.exception)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_checkpoints(good: Good, name: str, tmp_path: Path) -> None:
    change, code = CHECKPOINTS[name]
    (tmp_path / "c").write_bytes(change(good.archive))
    with pytest.raises(RuntimeStateError) as caught:
        load_archive(tmp_path / "c", LAYOUT)
    assert caught.value.code == code
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("place", [place for place in PLACES if place != "a link to nothing"])
def test_places_where_checkpoints_are_expected(place: str, tmp_path: Path) -> None:
    PLACES[place](tmp_path / "c")
    with pytest.raises(CheckpointFileDamaged):
        load_archive(tmp_path / "c", LAYOUT)


@pytest.mark.parametrize("name", RUNTIME)
def test_command_lines_of_runtime(good: Good, name: str, tmp_path: Path) -> None:
    arguments, code = RUNTIME[name]
    (tmp_path / "w").write_bytes(good.weights)
    run_refused(runtime_app, arguments, code, tmp_path, package=good.folder, weights=tmp_path / "w")


@pytest.mark.parametrize("name", CODEGEN)
def test_command_lines_of_codegen(name: str, tmp_path: Path) -> None:
    arguments, code = CODEGEN[name]
    run_refused(codegen_app, arguments, code, tmp_path)


@pytest.mark.parametrize("name", AUTOTUNE)
def test_command_lines_of_autotune(name: str, tmp_path: Path) -> None:
    arguments, code = AUTOTUNE[name]
    run_refused(autotune_app, arguments, code, tmp_path)


@pytest.mark.parametrize("name", DSL)
def test_command_lines_of_dsl(name: str, tmp_path: Path) -> None:
    arguments, code = DSL[name]
    run_refused(dsl_app, arguments, code, tmp_path)


def run_refused(app: Any, arguments: tuple[str, ...], code: str, tmp_path: Path, **paths: Path) -> None:
    """Run a command line of the corpus: the folder it may write to stays empty."""
    (tmp_path / "folder").mkdir()
    fifo(tmp_path / "fifo")
    named = {"folder": tmp_path / "folder", "fifo": tmp_path / "fifo"} | paths
    for field, path in named.items():
        arguments = tuple(argument.replace(f"{{{field}}}", str(path)) for argument in arguments)
    before = listing(tmp_path)
    refused(app, list(arguments), code)
    assert listing(tmp_path) == before


def listing(folder: Path) -> list[Path]:
    """Everything below a folder, links not followed."""
    return sorted(folder.rglob("*"))

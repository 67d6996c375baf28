"""What a build may do to a folder: write its own files, remove its own files, and nothing else."""

import json
from pathlib import Path

import pytest

from codegen.errors import OutputNotWritten, OutputRefused
from codegen.lower import lower
from codegen.package import MANIFEST, MARK, write_package
from codegen.plan import Plan
from codegen.whole_file import PARTIAL, replace_whole
from dsl import ModelSpec, load_spec

SPEC = Path(__file__).resolve().parents[2] / "specs" / "tiny-hybrid.yaml"
HASH = "0" * 64


@pytest.fixture(scope="module")
def spec() -> ModelSpec:
    return load_spec(SPEC)


@pytest.fixture(scope="module")
def plan(spec: ModelSpec) -> Plan:
    return lower(spec, "cpu")


def ours(files: dict[str, str]) -> str:
    return json.dumps({"format": 1, "generator": "0.1.0", "files": files})


FOREIGN = {
    "a manifest of something else": json.dumps({"files": ["src/main.js"]}),
    "files that are null": json.dumps({"format": 1, "generator": "0", "files": None}),
    "files that are numbers": json.dumps({"format": 1, "generator": "0", "files": [1, 2]}),
    "hashes that are none": json.dumps({"format": 1, "generator": "0", "files": {"src/main.js": "x"}}),
    "no generator": json.dumps({"format": 1, "files": {}}),
    "a list": "[]",
    "nothing": "",
    "no text": "\x00\x01",
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_folder_with_another_manifest_is_refused_and_kept(
    spec: ModelSpec, plan: Plan, tmp_path: Path, name: str
) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "main.js").write_text("years of work")
    (tmp_path / MANIFEST).write_text(FOREIGN[name])
    with pytest.raises(OutputRefused):
        write_package([plan], tmp_path, spec, "s.yaml")
    assert (tmp_path / "src" / "main.js").read_text() == "years of work"
    assert sorted(path.name for path in tmp_path.iterdir()) == [MANIFEST, "src"]


@pytest.mark.parametrize("entry", ["../victim.txt", "link/victim.txt", "sub/../../victim.txt", "edited.txt"])
def test_only_own_unchanged_files_inside_the_package_are_removed(
    spec: ModelSpec, plan: Plan, tmp_path: Path, entry: str
) -> None:
    package = tmp_path / "p"
    package.mkdir()
    (tmp_path / "victim.txt").write_text("keep")
    (package / "edited.txt").write_text("edited by hand since")
    (package / "link").symlink_to(tmp_path)
    (package / MANIFEST).write_text(ours({entry: HASH}))
    write_package([plan], package, spec, "s.yaml")
    assert (tmp_path / "victim.txt").read_text() == "keep"
    assert (package / "edited.txt").exists()


def test_nothing_is_written_through_a_link(spec: ModelSpec, plan: Plan, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    package = tmp_path / "p"
    package.mkdir()
    (package / "cpu").symlink_to(elsewhere)
    (package / MANIFEST).write_text(ours({}))
    with pytest.raises(OutputRefused, match="symbolic link"):
        write_package([plan], package, spec, "s.yaml")
    assert list(elsewhere.iterdir()) == []


def test_an_interrupted_first_build_can_be_repeated(
    spec: ModelSpec, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "p"
    real, written = replace_whole, []

    def full_disk(path: Path, content: bytes) -> None:
        written.append(path)
        if len(written) > 5:
            raise OSError(28, "No space left on device")
        real(path, content)

    monkeypatch.setattr("codegen.package.replace_whole", full_disk)
    with pytest.raises(OutputNotWritten, match="No space left"):
        write_package([plan], package, spec, "s.yaml")
    monkeypatch.undo()
    assert (package / MARK).exists()
    (package / "cpu" / f".1-ab{PARTIAL}").write_text("by a killed build")
    write_package([plan], package, spec, "s.yaml")
    assert not list(package.rglob(f"*{PARTIAL}"))
    assert not (package / MARK).exists()


def test_a_damaged_file_is_written_again(spec: ModelSpec, plan: Plan, tmp_path: Path) -> None:
    write_package([plan], tmp_path / "p", spec, "s.yaml")
    step = tmp_path / "p" / "cpu" / "step.py"
    before = step.read_bytes()
    step.write_bytes(b"\xff\xfe")
    assert write_package([plan], tmp_path / "p", spec, "s.yaml").changed == 1
    assert step.read_bytes() == before

"""The command line: a short real run, then show, export, import, diff, report, and a build that takes the results."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result as Ran
from typer.main import get_command
from typer.testing import CliRunner

from autotune.cli import app
from autotune.report import time_text
from codegen.cli import app as codegen_app
from codegen.tuned import Result as Found
from codegen.tuned_store import Results, export
from dsl import ModelSpec

KERNEL, OTHER = "mamba2_conv_step_32x4_50", "lookup_drafts"
BUSY = ("--busy", 99)  # tests run beside others
runner = CliRunner()


def autotune(*arguments: object, code: int = 0) -> Ran:
    ran = runner.invoke(app, [str(argument) for argument in arguments])
    assert ran.exit_code == code, ran.output
    return ran


@pytest.fixture(scope="module")
def spec_file(toy: ModelSpec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy as YAML."""
    path = tmp_path_factory.mktemp("spec") / "toy.yaml"
    path.write_text(yaml.safe_dump(json.loads(json.dumps(toy.model_dump())), sort_keys=False))
    return path


@pytest.fixture(scope="module")
def tuned(spec_file: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder with the results of two small kernels, and what the run said."""
    folder = tmp_path_factory.mktemp("tuned")
    kernels = ("--kernel", KERNEL, "--kernel", OTHER)
    ran = autotune("run", spec_file, "--budget", "20s", "--trials", 3, *kernels, *BUSY, "--folder", folder, "--json")
    return folder, json.loads(ran.stdout)


def test_a_run_gives_a_result_for_every_kernel_that_it_was_asked_for(tuned: tuple[Path, dict[str, Any]]) -> None:
    results = tuned[1]["results"]
    assert {result["identity"]["kernel"] for result in results} == {KERNEL, OTHER}
    for result in results:
        assert result["kind"] == "measured"
        assert len(result["detail"]["trials"]) == min(3, result["detail"]["space"])
        first = result["detail"]["trials"][0]
        assert first["state"] in ("complete", "slow"), first
        assert all(times["untuned"] > 0 for times in result["detail"]["scenes"].values())
        assert set(result["detail"]["roofline"]) == set(result["detail"]["scenes"])


def test_a_second_run_goes_on_where_the_first_stopped(tuned: tuple[Path, dict[str, Any]], spec_file: Path) -> None:
    folder = tuned[0]
    ran = autotune("run", spec_file, "--trials", 2, "--kernel", OTHER, *BUSY, "--folder", folder, "--json")
    (result,) = json.loads(ran.stdout)["results"]
    assert len(result["detail"]["trials"]) == 5


def test_a_build_takes_the_results_unless_told_not_to(
    tuned: tuple[Path, dict[str, Any]], spec_file: Path, tmp_path: Path
) -> None:
    def build(*options: object) -> dict[str, Any]:
        arguments = ["build", spec_file, "-o", tmp_path / "package", "--no-aot", "--json", *options]
        ran = runner.invoke(codegen_app, [str(argument) for argument in arguments])
        assert ran.exit_code == 0, ran.output
        choices: list[dict[str, Any]] = json.loads(ran.stdout)["tuned"]["cpu"]
        return {choice["kernel"]: choice for choice in choices}

    taken = build("--tuned", tuned[0] / "results")
    assert [name for name, choice in taken.items() if choice["kind"]] == [KERNEL, OTHER]
    assert taken["matmul_20x50"]["why"] == "not tuned yet"
    assert not any(choice["kind"] for choice in build("--untuned").values())
    ran = runner.invoke(codegen_app, ["build", str(spec_file), "--untuned", "--tuned", str(tuned[0])])
    assert ran.exit_code == 2
    assert "[tuned-file]" in ran.output


def test_results_can_be_carried_to_another_folder_and_compared(
    tuned: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, file = tuned[0], tmp_path / "tuned.json"
    autotune("export", "--folder", folder, "-o", file)
    assert json.loads(autotune("import", file, "--folder", tmp_path / "there", "--json").stdout)["taken"] == 2
    assert json.loads(autotune("import", file, "--folder", tmp_path / "there", "--json").stdout)["taken"] == 0
    assert (
        autotune("show", "--folder", tmp_path / "there", "--json").stdout
        == autotune("show", "--folder", folder, "--json").stdout
    )
    assert json.loads(autotune("diff", folder, file, "--json").stdout) == {"same": 2, "changed": []}
    changed = json.loads(file.read_text())
    changed["results"][0]["values"] = {"BLOCK_T": 64} if changed["results"][0]["values"] != {"BLOCK_T": 64} else {}
    file.write_text(json.dumps(changed))
    found = json.loads(autotune("diff", folder, file, "--json", code=1).stdout)["changed"]
    assert [row["kernel"] for row in found] == [changed["results"][0]["identity"]["kernel"]]
    assert "1 of 2 results differ" in autotune("diff", folder, file, code=1).stdout


def test_tables_show_the_plain_step(tuned: tuple[Path, dict[str, Any]]) -> None:
    """Files have scenes by the alphabet, and a batch before a decode."""
    folder, _ = tuned
    shown = autotune("show", "--folder", folder).stdout
    for result in json.loads(autotune("show", "--folder", folder, "--json").stdout)["results"]:
        assert f"decode {result['detail']['scenes']['decode']['tuned'] * 1e6:.1f}" in shown


def results_in(folder: Path) -> list[Found]:
    return Results(folder / "results").all()


@pytest.mark.parametrize(
    "changed",
    [{"device": "another"}, {"workload": (("max_slots", 9),)}, {"source": "another"}, {"numerics": "free"}],
)
def test_results_of_different_things_are_never_compared_with_each_other(
    tuned: tuple[Path, dict[str, Any]], tmp_path: Path, changed: dict[str, Any]
) -> None:
    """Kernels of two models, devices or workloads have the same name."""
    found = results_in(tuned[0])
    moved = replace(found[0], values={}, identity=replace(found[0].identity, **changed))
    (tmp_path / "one").write_text(export([found[0], moved]))
    (tmp_path / "other").write_text(export([found[0], replace(moved, values={"BLOCK_T": 8})]))
    compared = json.loads(autotune("diff", tmp_path / "one", tmp_path / "other", "--json", code=1).stdout)
    assert compared["same"] == 1
    (row,) = compared["changed"]
    assert (row["one"], row["other"]) == ({}, {"BLOCK_T": 8})
    (tmp_path / "other").write_text(export([moved]))
    compared = json.loads(autotune("diff", tmp_path / "one", tmp_path / "other", "--json", code=1).stdout)
    assert compared["same"] == 1
    assert [row["other"] for row in compared["changed"]] == [None]


def test_of_several_toolchains_todays_is_compared_and_others_are_marked(
    tuned: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    found = results_in(tuned[0])[0]
    old = replace(found, values={"BLOCK_T": 8}, identity=replace(found.identity, toolchain="an older one"))
    for number, order in enumerate(([found, old], [old, found])):
        (tmp_path / f"{number}").write_text(export(order))
        compared = json.loads(autotune("diff", tmp_path / f"{number}", tuned[0], "--json", code=1).stdout)
        assert compared["same"] == 1, "today's values are those of the other side"
        assert [row["one"] for row in compared["changed"]] == [None], "the other kernel, which only one side has"
    shown = autotune("show", "--folder", tmp_path / "0").stdout
    assert shown.count("other toolchain") == 1
    assert "other toolchain" not in autotune("show", "--folder", tuned[0]).stdout
    listed = json.loads(autotune("show", "--folder", tmp_path / "0", "--json").stdout)["results"]
    assert [result["current"] for result in listed] == [True, False]
    autotune("report", "--folder", tmp_path / "0", "-o", tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().count("Of another toolchain") == 1


@pytest.mark.parametrize("command", ["show", "export", "report"])
def test_a_file_of_results_is_shown_as_a_folder_is(
    tuned: tuple[Path, dict[str, Any]], tmp_path: Path, command: str
) -> None:
    autotune("export", "--folder", tuned[0], "-o", tmp_path / "all.json")
    said = []
    for folder in (tuned[0], tmp_path / "all.json"):
        output = () if command == "show" else ("-o", tmp_path / "output", "--overwrite")
        said.append((autotune(command, "--folder", folder, *output, "--json").stdout, content(tmp_path / "output")))
    assert said[0] == said[1]
    assert "a file of" in " ".join(autotune(command, "--help").output.replace("│", " ").split())


def content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


@pytest.mark.parametrize("place", ["a file", "below a file", "a device"])
def test_an_import_to_where_nothing_can_be_written_says_so(
    tuned: tuple[Path, dict[str, Any]], tmp_path: Path, place: str
) -> None:
    autotune("export", "--folder", tuned[0], "-o", tmp_path / "all.json")
    (tmp_path / "file").write_text("")
    folder = {"a file": tmp_path / "file", "below a file": tmp_path / "file" / "x", "a device": Path("/dev/null")}[
        place
    ]
    said = autotune("import", tmp_path / "all.json", "--folder", folder, code=2).output
    assert "was not written" in said and "[tune-not-written]" in said


def test_what_is_missing_is_said_and_how_to_make_it(tmp_path: Path) -> None:
    said = autotune(
        "export", "-o", tmp_path / "x", "--folder", tmp_path, "--target", "cuda:90", "--kernel", "k", code=2
    )
    told = " ".join(said.output.split())
    assert f"no results for cuda:90 of k in {tmp_path}" in told
    assert "`python -m autotune run SPEC` makes some" in told


class Links(HTMLParser):
    """Every tag that is opened, and everything that a page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loaded += [str(value) for name, value in attrs if name in ("src", "href")]


def test_the_page_stands_alone_and_shows_every_kernel(tuned: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    autotune("report", "--folder", tuned[0], "-o", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    links = Links()
    links.feed(text)
    assert links.loaded == []
    assert "script" not in links.tags
    for name in (KERNEL, OTHER, "roofline", "untuned", "decode"):
        assert name in text
    assert "Predicted" not in text
    assert text.count(">Measured.<") == 1


def test_the_page_says_what_it_shows_and_not_by_colour_alone(
    tuned: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """Every heading of a column, mark and scene is explained; bars are read out in words."""
    autotune("report", "--folder", tuned[0], "-o", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    explained = {re.sub("<.*?>", "", term) for term in re.findall("<dt>(.*?)</dt>", text)}
    columns = set(re.findall('<th scope="col">(.*?)</th>', text)) - {"scene"}
    scenes = {f"scene {name}" for name in re.findall('<th scope="row">(.*?)</th>', text)}
    assert {"tuned", "untuned", "of untuned", "roofline", "reached", "bound"} == columns
    assert columns | scenes | {"measured", "predicted", "noise", "rejected"} <= explained
    told = re.findall('role="img" aria-label="(.*?)"', text)
    assert len(told) == text.count('<td class="bars">') == sum(len(r["detail"]["scenes"]) for r in tuned[1]["results"])
    assert all(
        re.fullmatch(r"tuned [\d.]+ [µmn]?s, untuned [\d.]+ [µmn]?s, roofline (none|[\d.]+ [µmn]?s)", t) for t in told
    )


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (3.14159e-7, "314 ns"), (9.999e-7, "1.00 µs"), (3.6543e-6, "3.65 µs"), (4.114e-5, "41.1 µs"),
        (4.114e-4, "411 µs"), (9.9996e-4, "1.00 ms"), (0.0123, "12.3 ms"), (1.5, "1.50 s"), (7200.0, "7200 s"),
    ],
)  # fmt: skip
def test_times_have_three_digits_whatever_they_are(seconds: float, shown: str) -> None:
    assert time_text(seconds) == shown


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("run", "SPEC", "--budget", "soon"), "tune-option"),
        (("run", "SPEC", "--budget", "0s"), "tune-option"),
        (("run", "SPEC", "--kernel", "lookup_draft"), "tune-option"),
        (("run", "SPEC", "--target", "cuda:7"), "lowering-unknown-target"),
        (("run", "SPEC", "--storage", "nosuchdb://x"), "tune-storage"),
        (("run", "EMPTY"), "tune-option"),
        (("export", "-o", "x.json", "--folder", "EMPTY"), "tune-no-results"),
        (("report", "-o", "x.html", "--folder", "EMPTY"), "tune-no-results"),
        (("import", "SPEC"), "tuned-file"),
        (("diff", "SPEC", "EMPTY"), "tuned-file"),
        (("show", "--folder", "EMPTY/none"), "tuned-file"),
    ],
)
def test_a_mistake_is_one_message_with_a_code(
    spec_file: Path, tmp_path: Path, arguments: tuple[str, ...], code: str
) -> None:
    places = {"SPEC": str(spec_file), "EMPTY": str(tmp_path), "EMPTY/none": str(tmp_path / "none")}
    given = [places.get(argument, argument) for argument in arguments]
    given += ["--folder", str(tmp_path)] if "--folder" not in given and given[0] in ("run", "import") else []
    assert f"[{code}]" in autotune(*given, code=2).output


STAYS = "A file that is there stays, unless --overwrite"
PROMISES = {
    "run": ("on one thread, two and all", "free: also try what changes bits", "still decided", "was killed goes on"),
    "show": ("--folder", "or a file of export", "how many candidates were rejected", "are marked"),
    "export": (
        "or a file of export",
        "A file that is there stays, unless --overwrite",
        "import on another machine or codegen build --tuned FILE",
    ),
    "import": ("stays if it is better", "replaces nothing"),
    "diff": ("the same kernel, workload, device and numerics", "Exit code 1"),
    "report": ("or a file of export", STAYS, "time against roofline"),
}


def help_of(*command: str) -> str:
    """Help as one line without boxes."""
    shown = CliRunner(env={"COLUMNS": "200"}).invoke(app, [*command, "--help"], color=False).output
    return " ".join(shown.replace("│", " ").split())


def test_every_command_explains_itself() -> None:
    commands = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    assert set(PROMISES) == commands
    for command, promises in PROMISES.items():
        text = help_of(command)
        assert "--json" in text
        for promise in promises:
            assert promise in text, f"{command} --help does not say {promise!r}: {text}"
        parameters = get_command(app).commands[command].params  # type: ignore[attr-defined]
        unexplained = [parameter.name for parameter in parameters if not getattr(parameter, "help", "")]
        assert not unexplained, f"{command} --help says nothing of {unexplained}"
    assert "unless --numerics free" in help_of()

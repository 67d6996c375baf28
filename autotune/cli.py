"""`python -m autotune`: run, show, export, import, diff and report."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from autotune.scenes import DECODE, in_order
from codegen.errors import BadTuning, CodegenError, TunedUnusable, TunerMissing
from codegen.lower import TARGETS
from codegen.package import MANIFEST, SPEC
from codegen.tunables import plain
from codegen.tuned import FREE, KEEP, RESULTS, Result, ResultFile, Results, data_folder
from dsl import ModelSpec, load_spec
from dsl.errors import SpecError, nearest_name
from runtime.errors import RuntimeStateError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    help="Tune every kernel instance of a model: search, prove, measure, and keep what wins.\n\n"
    "Typical use: `python -m autotune run specs/tiny-hybrid.yaml --budget 5m`,\n"
    "then `python -m codegen build specs/tiny-hybrid.yaml`, which takes the results. No bit of any answer changes.",
    pretty_exceptions_enable=False,
)
out = Console(emoji=False)
err = Console(stderr=True, emoji=False)

UNITS = {"s": 1, "m": 60, "h": 3600}
INTERRUPTED = 130
PLAIN_WIDTH = 160


class Numerics(StrEnum):
    """What may be tried: values that change no bit, or all."""

    KEEP = KEEP
    FREE = FREE


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Folder = Annotated[
    Path | None,
    typer.Option(help="Folder of results and studies. [default: the user's data folder]", show_default=False),
]
OnlyTarget = Annotated[str | None, typer.Option("--target", help="Results for this target only.", show_default=False)]
Kernels = Annotated[list[str] | None, typer.Option("--kernel", help="Repeatable: this kernel only.")]


@contextmanager
def user_errors() -> Iterator[None]:
    """Report what the user can mend in plain words, with exit code 2 and no traceback."""
    try:
        yield
    except (SpecError, CodegenError, RuntimeStateError) as error:
        err.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(2) from None


def read_budget(text: str) -> float:
    """Seconds of `90`, `90s`, `5m` or `1.5h`. Raises BadTuning."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if found is None or not float(found[1]):
        raise BadTuning(option="--budget", value=text, allowed="a time such as 90s, 5m or 1.5h")
    return float(found[1]) * UNITS[found[2] or "s"]


def read_spec(path: Path) -> ModelSpec:
    """The spec at a path, or that of a package folder. Raises SpecError or BadTuning."""
    if not path.is_dir():
        return load_spec(path)
    if not (path / MANIFEST).is_file():
        raise BadTuning(option="SPEC|DIR", value=path, allowed=f"a YAML spec, or a package: this has no {MANIFEST}")
    try:
        return ModelSpec.model_validate(json.loads((path / SPEC).read_text()), strict=False)
    except (OSError, ValueError) as error:
        raise BadTuning(option="SPEC|DIR", value=path, allowed=f"its {SPEC} is damaged: build it again") from error


@app.command("run")
def run_command(
    model: Annotated[Path, typer.Argument(metavar="SPEC|DIR", help="YAML model spec, or a package folder.")],
    target: Annotated[str, typer.Option(help=f"One of {', '.join(TARGETS)}.")] = "cpu",
    budget: Annotated[str, typer.Option(help="Time for the whole run: 90s, 5m, 1h.")] = "5m",
    jobs: Annotated[int, typer.Option(min=1, help="Processes: they compile side by side and time in turns.")] = 1,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Of each kernel and process, at most.", show_default=False)
    ] = None,
    numerics: Annotated[
        Numerics, typer.Option(help="free: also try what changes bits, for a build with --numerics free.")
    ] = Numerics.KEEP,
    kernel: Kernels = None,
    folder: Folder = None,
    storage: Annotated[
        str | None,
        typer.Option(
            help="Where studies lie: a folder, or a database URL that optuna knows. Machines that share it share the "
            "work. [default: FOLDER/studies]",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tune the kernels of a model on this machine, or rank candidates for a CUDA target that is not here.

    Every candidate must give the bits of the untuned kernel in every scene, on one thread and on all, run after run,
    without a race, before it may win; and it wins only if it is faster by more than the noise. A run that was killed
    goes on where it was when it is started again; a run on what is done already tries what is left.
    """
    with user_errors():
        _require_optuna()
        from autotune.run import Progress as Reports
        from autotune.run import Session, Task, run

        seconds, spec, place = read_budget(budget), read_spec(model), folder or data_folder()
        task = Task(spec, target, place, storage or str(place / "studies"), numerics, jobs, tuple(kernel or ()), trials)
        _check_kernels(task, Session(task).plan)
        with _progress(as_json) as bar:
            try:
                found = list(run(task, seconds, Reports(bar.kernel, bar.trial)))
            except KeyboardInterrupt:
                err.print("stopped; the same command goes on from here", style="yellow")
                raise typer.Exit(INTERRUPTED) from None
    if as_json:
        print(json.dumps({"folder": str(place), "results": [result.plain() for result in found]}))
        return
    _print(_table(f"{spec.name} on {target}", found))
    won = [result for result in found if result.values]
    out.print(f"{len(won)} of {len(found)} kernels have better values than the defaults; results in {place}")


def _require_optuna() -> None:
    try:
        import optuna  # noqa: F401
    except ImportError:
        raise TunerMissing() from None


def _check_kernels(task: Any, plan: Any) -> None:
    known = [kernel.name for kernel in plan.kernels if kernel.tunables]
    for name in task.kernels:
        if name not in known:
            hint = nearest_name(name, known)
            raise BadTuning(option="--kernel", value=name, allowed=f"one of {', '.join(known)}{hint}")


class _Bar:
    """The progress of a run on a terminal."""

    def __init__(self, bar: Progress) -> None:
        self._bar, self._task, self._done = bar, bar.add_task("measuring the machine", total=None), 0

    def kernel(self, name: str, number: int, total: int, candidates: int) -> None:
        """A kernel begins."""
        self._done, self._name = 0, f"{number + 1}/{total} {name}"
        self._bar.update(self._task, total=candidates, completed=0, description=escape(self._name))

    def trial(self, name: str, attempt: Any) -> None:
        """A trial is done."""
        self._done += 1
        what = f"{attempt.ratio:.2f}" if attempt.ratio is not None else attempt.state
        self._bar.update(self._task, completed=self._done, description=escape(f"{self._name}: {what}"))


@contextmanager
def _progress(quiet: bool) -> Iterator[_Bar]:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed} tried"), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=quiet or not sys.stderr.isatty()) as bar:
        yield _Bar(bar)


def _values(result: Result) -> str:
    return " ".join(f"{name}={plain(value)}" for name, value in result.values.items()) or "as untuned"


def _microseconds(result: Result, scene: str) -> tuple[str, str]:
    """Time of a launch in a scene and its share of the roofline, as text."""
    times = result.detail.get("scenes", {}).get(scene)
    bound = result.detail.get("roofline", {}).get(scene)
    if not times:
        return "", ""
    share = f"{bound['seconds'] / times['tuned']:.0%}" if bound and bound["seconds"] else ""
    return f"{scene} {times['tuned'] * 1e6:.1f}", share


def _table(title: str, results: list[Result]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("kernel", overflow="fold")
    table.add_column("values", overflow="fold")
    for name in ("of untuned", "noise", "µs", "of roofline", "tried", "rejected"):
        table.add_column(name, justify="right")
    table.add_column("kind")
    for result in results:
        trials = result.detail.get("trials", [])
        rejected = sum(trial["state"] == "rejected" for trial in trials)
        scene = next(iter(in_order(result.detail.get("scenes", {}))), DECODE)
        noise = f"{result.detail.get('noise', 0.0):.1%}"
        tried = f"{len(trials)}/{result.detail.get('space', '?')}"
        row = (escape(result.identity.kernel), escape(_values(result)), f"{result.ratio:.3f}", noise)
        table.add_row(*row, *_microseconds(result, scene), tried, str(rejected), result.kind)
    return table


def _print(table: Table) -> None:
    """A table, at full width where it goes to a file."""
    (out if out.is_terminal else Console(width=PLAIN_WIDTH, emoji=False)).print(table)


def _read(path: Path | None) -> list[Result]:
    """Results of a folder or a file. Raises TunedUnusable."""
    if path is not None and path.is_file():
        return ResultFile(path).all()
    folder = path or data_folder()
    inner = folder / RESULTS
    if path is not None and not folder.is_dir():
        raise TunedUnusable(path=path, detail="there is no such file or folder")
    return Results(inner if inner.is_dir() else folder).all()


def _selected(results: list[Result], target: str | None, kernels: list[str] | None) -> list[Result]:
    found = [result for result in results if target in (None, result.identity.target)]
    return [result for result in found if not kernels or result.identity.kernel in kernels]


def _some(command: str, folder: Path | None, target: str | None, kernels: list[str] | None) -> list[Result]:
    """The results that a command asks for. Raises BadTuning if there are none."""
    found = _selected(_read(folder), target, kernels)
    if not found:
        raise BadTuning(option=command, value=folder or data_folder(), allowed="it holds no such results")
    return found


@app.command()
def show(folder: Folder = None, target: OnlyTarget = None, kernel: Kernels = None, as_json: AsJson = False) -> None:
    """List what was found: values, time against untuned and against the roofline, how many candidates were rejected."""
    with user_errors():
        found = _selected(_read(folder), target, kernel)
    if as_json:
        print(json.dumps({"results": [result.plain() for result in found]}))
        return
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in found:
        groups.setdefault((result.identity.target, result.identity.device), []).append(result)
    for (name, device), results in groups.items():
        _print(_table(f"{name}: {device}" if device != name else name, results))
    if not found:
        out.print("no results; python -m autotune run SPEC makes some")


@app.command("export")
def export_command(
    output: Annotated[Path, typer.Option("-o", "--output", help="File to write.")],
    folder: Folder = None,
    target: OnlyTarget = None,
    kernel: Kernels = None,
    as_json: AsJson = False,
) -> None:
    """Write results into one file, for `import` on another machine or `codegen build --tuned FILE`."""
    with user_errors():
        found = _some("export", folder, target, kernel)
        _write(output, json.dumps({"results": [result.plain() for result in found]}, indent=1, sort_keys=True) + "\n")
    print(json.dumps({"written": len(found)})) if as_json else out.print(f"{len(found)} results in {output}")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise BadTuning(option="--output", value=path, allowed=f"it cannot be written ({error.strerror})") from error


@app.command("import")
def import_command(
    file: Annotated[Path, typer.Argument(help="File of `export`.")],
    folder: Folder = None,
    as_json: AsJson = False,
) -> None:
    """Take over results of a file. One that is here already stays if it is better."""
    with user_errors():
        results, taken = Results((folder or data_folder()) / RESULTS), 0
        found = ResultFile(file).all()
        for result in found:
            here = results.find(result.identity)
            if here is None or result.ratio < here.ratio:
                results.write(result)
                taken += 1
    counts = {"read": len(found), "taken": taken}
    print(json.dumps(counts)) if as_json else out.print(f"{taken} of {len(found)} results taken over")


@app.command()
def diff(
    one: Annotated[Path, typer.Argument(help="File of `export`, or folder.")],
    other: Annotated[Path, typer.Argument(help="Another.")],
    as_json: AsJson = False,
) -> None:
    """Compare two sets of results by kernel and target. Exit code 1 if they differ in a value."""
    with user_errors():
        sides = [_by_kernel(_read(path)) for path in (one, other)]
    rows = [_difference(name, *(side.get(name) for side in sides)) for name in sorted(sides[0] | sides[1])]
    changed = [row for row in rows if row["one"] != row["other"]]
    if as_json:
        print(json.dumps({"same": len(rows) - len(changed), "changed": changed}))
    else:
        table = Table(title=f"{len(changed)} of {len(rows)} kernels differ", title_justify="left")
        for name in ("kernel", "target", str(one), "of untuned", str(other), "of untuned"):
            table.add_column(name, overflow="fold")
        for row in changed:
            cells = (row["kernel"], row["target"], row["one"], row["ratio_one"], row["other"], row["ratio_other"])
            table.add_row(*(escape("" if cell is None else str(cell)) for cell in cells))
        _print(table)
    raise typer.Exit(1 if changed else 0)


def _by_kernel(results: list[Result]) -> dict[tuple[str, str, str], Result]:
    return {(r.identity.kernel, r.identity.target, r.identity.numerics): r for r in results}


def _difference(name: tuple[str, str, str], one: Result | None, other: Result | None) -> dict[str, Any]:
    kernel, target, numerics = name
    row: dict[str, Any] = {"kernel": kernel, "target": target, "numerics": numerics}
    for side, result in (("one", one), ("other", other)):
        row[side] = None if result is None else {n: plain(v) for n, v in result.values.items()}
        row[f"ratio_{side}"] = None if result is None else round(result.ratio, 4)
    return row


@app.command()
def report(
    output: Annotated[Path, typer.Option("-o", "--output", help="HTML file to write.")],
    folder: Folder = None,
    target: OnlyTarget = None,
    kernel: Kernels = None,
    as_json: AsJson = False,
) -> None:
    """Write one HTML page: time against roofline of every kernel and scene, what was tried, what was rejected."""
    from autotune.report import page

    with user_errors():
        found = _some("report", folder, target, kernel)
        _write(output, page(found))
    print(json.dumps({"kernels": len(found)})) if as_json else out.print(f"{len(found)} kernels in {output}")

"""`python -m autotune`: run, show, export, import, diff and report. What they print is in `autotune/tables.py`."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from autotune.compare import differences
from autotune.tables import difference_table, err, results_table, say, show_table, warn
from codegen.errors import BadTuning, CodegenError, NothingTuned, TunerMissing
from codegen.lower import TARGETS
from codegen.machine import threads
from codegen.package import MANIFEST, spec_of
from codegen.tuned import FREE, KEEP, NOTHING_TO_TUNE, Result, current, data_folder
from codegen.tuned_store import RESULTS, ResultFile, Results, export, opened
from dsl import ModelSpec, load_spec
from dsl.errors import SpecError, nearest_name
from runtime.cpu.errors import CpuBackendError
from runtime.errors import RuntimeStateError
from runtime.whole_file import output_file, write_chunks

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    help="Tune every kernel instance of a model: search, prove, measure, and keep what wins.\n\n"
    "Typical use: `python -m autotune run specs/tiny-hybrid.yaml --budget 5m`,\n"
    "then `python -m codegen build specs/tiny-hybrid.yaml`, which takes the results. No bit of any answer changes,\n"
    "unless `--numerics free` asks for it here and there.",
    pretty_exceptions_enable=False,
)
UNITS = {"s": 1, "m": 60, "h": 3600}
INTERRUPTED = 130


class Numerics(StrEnum):
    """What may be tried: values that change no bit, or all."""

    KEEP = KEEP
    FREE = FREE


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Folder = Annotated[
    Path | None,
    typer.Option(help="Folder of results and studies. [default: the user's data folder]", show_default=False),
]
Place = Annotated[
    Path | None,
    typer.Option(
        "--folder",
        help="Folder of results, or a file of `export`. [default: the user's data folder]",
        show_default=False,
    ),
]
OnlyTarget = Annotated[str | None, typer.Option("--target", help="Results for this target only.", show_default=False)]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")]
Kernels = Annotated[list[str] | None, typer.Option("--kernel", help="Repeatable: this kernel only.")]


@contextmanager
def user_errors() -> Iterator[None]:
    """Report what the user can mend in plain words, with exit code 2 and no traceback."""
    try:
        yield
    except (SpecError, CodegenError, RuntimeStateError, CpuBackendError) as error:
        err.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(2) from None


def read_budget(text: str) -> float:
    """Seconds of `90`, `90s`, `5m` or `1.5h`. Raises BadTuning."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smh]?)", text)
    if found is None or not 0 < float(found[1]) < math.inf:
        raise BadTuning(option="--budget", value=text, allowed="a time such as 90s, 5m or 1.5h")
    return float(found[1]) * UNITS[found[2] or "s"]


def read_spec(path: Path) -> ModelSpec:
    """The spec at a path, or that of a package folder. Raises SpecError or BadTuning."""
    if not os.path.isdir(path):
        return load_spec(path)
    if not os.path.isfile(path / MANIFEST):
        raise BadTuning(option="SPEC|DIR", value=path, allowed=f"a YAML spec, or a package: this has no {MANIFEST}")
    try:
        return spec_of(path)
    except ValueError as error:
        raise BadTuning(option="SPEC|DIR", value=path, allowed=error) from error


@app.command("run")
def run_command(
    model: Annotated[Path, typer.Argument(metavar="SPEC|DIR", help="YAML model spec, or a package folder.")],
    target: Annotated[str, typer.Option(help=f"One of {', '.join(TARGETS)}.")] = "cpu",
    budget: Annotated[
        str, typer.Option(help="Time for the whole run: 90s, 5m, 1h. What is begun when it is over is still decided.")
    ] = "5m",
    jobs: Annotated[
        int, typer.Option(min=1, help="Processes, one a processor at most: they compile side by side, time in turns.")
    ] = 1,
    busy: Annotated[
        float, typer.Option(min=0, help="Cores that others may use while finalists are raced; else nothing is decided.")
    ] = 0.15,
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

    Every candidate must give the bits of the untuned kernel in every scene, on one thread, two and all, run after run,
    without a race, before it may win; and it wins only if it is faster by more than the noise. With `--numerics free`
    it may differ by what rounding explains. A run that was killed goes on where it was when it is started again; a run
    on what is done already tries what is left.
    """
    with user_errors():
        _require_optuna()
        from autotune.run import Progress as Reports
        from autotune.run import Session, Task, run

        seconds, spec, place = read_budget(budget), read_spec(model), folder or data_folder()
        if jobs > threads():
            allowed = f"at most {threads()}, the processors that this process may use"
            raise BadTuning(option="--jobs", value=jobs, allowed=allowed)
        studies, names = storage or str(place / "studies"), tuple(kernel or ())
        task = Task(spec, target, place, studies, numerics, jobs, names, trials, busy)
        _check_kernels(task, Session(task).plan)
        missed: list[str] = []
        with _progress(as_json) as bar:
            try:
                found = list(run(task, seconds, Reports(bar.kernel, bar.trial, missed.append, bar.warn)))
            except KeyboardInterrupt:
                err.print("stopped; the same command goes on from here", style="yellow")
                raise typer.Exit(INTERRUPTED) from None
    if as_json:
        results = [result.plain() for result in found]
        print(json.dumps({"folder": str(place), "results": results, "not_reached": missed}))
        return
    show_table(results_table(f"{spec.name} on {target}", found))
    won = [result for result in found if result.values]
    say(f"{len(won)} of {len(found)} kernels have better values than the defaults; results in {place}")
    if missed:
        say(f"{len(missed)} kernels were not reached: run again, or with a larger --budget ({', '.join(missed)})")


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
        if task.numerics != FREE and not plan.kernel(name).is_tunable:
            raise BadTuning(option="--kernel", value=name, allowed=f"{NOTHING_TO_TUNE}, for every value changes bits")


class _Bar:
    """The progress of a run on a terminal."""

    def __init__(self, bar: Progress) -> None:
        self._bar, self._task, self._done = bar, bar.add_task("measuring the machine", total=None), 0

    def kernel(self, name: str, number: int, total: int, candidates: int) -> None:
        """A kernel begins: a line of its own where no bar is drawn."""
        if not err.is_terminal:
            warn(f"{number + 1}/{total} {name}: {candidates} candidates")
        self._done, self._name = 0, f"{number + 1}/{total} {name}"
        self._bar.update(self._task, total=candidates, completed=0, description=escape(self._name))

    def trial(self, name: str, attempt: Any) -> None:
        """A trial is done."""
        self._done += 1
        what = f"{attempt.ratio:.2f}" if attempt.ratio is not None else attempt.state
        self._bar.update(self._task, completed=self._done, description=escape(f"{self._name}: {what}"))

    def warn(self, text: str) -> None:
        """Something went wrong that stops nothing."""
        warn(text)


@contextmanager
def _progress(quiet: bool) -> Iterator[_Bar]:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed} tried"), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=quiet or not sys.stderr.isatty()) as bar:
        yield _Bar(bar)


def _selected(results: list[Result], target: str | None, kernels: list[str] | None) -> list[Result]:
    found = [result for result in results if target in (None, result.identity.target)]
    return [result for result in found if not kernels or result.identity.kernel in kernels]


def _some(
    command: str, folder: Path | None, target: str | None, kernels: list[str] | None, *, empty: bool = False
) -> list[Result]:
    """The results that a command asks for. Raises NothingTuned if none fits; empty: not if none is there at all."""
    every = opened(folder).all()
    found = _selected(every, target, kernels)
    if not found and (every or not empty):
        asked = [f" for {target}"] if target else []
        asked += [f" of {' or '.join(kernels)}"] if kernels else []
        raise NothingTuned(command=command, wanted="".join(asked), place=folder or data_folder())
    return found


@app.command()
def show(folder: Place = None, target: OnlyTarget = None, kernel: Kernels = None, as_json: AsJson = False) -> None:
    """List what was found: values, time against untuned and against the roofline, how many candidates were rejected.

    Results of another compiler, backend or Triton than today's are marked, for no build here takes them by itself.
    """
    with user_errors():
        found = _some("show", folder, target, kernel, empty=True)
    today = current(found)
    if as_json:
        print(json.dumps({"results": [result.plain() | {"current": result.identity in today} for result in found]}))
        return
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in found:
        groups.setdefault((result.identity.target, result.identity.device), []).append(result)
    for (name, device), results in groups.items():
        show_table(results_table(f"{name}: {device}", results, today))
    if not found:
        say("no results; `python -m autotune run SPEC` makes some")


@app.command("export")
def export_command(
    output: Annotated[Path, typer.Option("-o", "--output", help="File to write.")],
    folder: Place = None,
    target: OnlyTarget = None,
    kernel: Kernels = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Write results into one file, for `import` on another machine or `codegen build --tuned FILE`.

    A file that is there stays, unless --overwrite is given.
    """
    with user_errors():
        found = _some("export", folder, target, kernel)
        _write(output, export(found), overwrite)
    print(json.dumps({"written": len(found)})) if as_json else say(f"{len(found)} results in {output}")


def _write(path: Path, text: str, overwrite: bool) -> None:
    """Write a file, whole or not at all; a device, such as /dev/stdout, as it is. Raises OutputExists or BadTuning."""
    try:
        if _is_a_device(path):
            path.write_text(text, encoding="utf-8")
        else:
            with output_file(path, overwrite) as file:
                write_chunks(file, [text.encode()])
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise BadTuning(option="--output", value=path, allowed=f"it cannot be written ({why})") from error


def _is_a_device(path: Path) -> bool:
    """Whether a path leads to something that is no file, or may do so: /dev/stdout is what the shell made of it."""
    named = os.path.abspath(path).startswith("/dev/") and os.path.exists(path)
    return named or (os.path.exists(path) and not os.path.isfile(path))


@app.command("import")
def import_command(
    file: Annotated[Path, typer.Argument(help="File of `export`.")],
    folder: Folder = None,
    as_json: AsJson = False,
) -> None:
    """Take over results of a file. One that is here already stays if it is better.

    What was predicted, or measured on another kind of machine, replaces nothing: results are per device.
    """
    with user_errors():
        results, taken, kept = Results((folder or data_folder()) / RESULTS), 0, 0
        found = ResultFile(file).all()
        for result in found:
            here = results.find(result.identity)
            if here is None or result.ratio < here.ratio:
                results.write(result)
                taken += 1
            else:
                kept += 1
    counts = {"read": len(found), "taken": taken}
    there = f"; {kept} were here already and are no worse" if kept else ""
    print(json.dumps(counts)) if as_json else say(f"{taken} of {len(found)} results taken over{there}")


@app.command()
def diff(
    one: Annotated[Path, typer.Argument(help="File of `export`, or folder.")],
    other: Annotated[Path, typer.Argument(help="Another.")],
    as_json: AsJson = False,
) -> None:
    """Compare two sets of results, each with that of the same kernel, workload, device and numerics.

    Exit code 1 if they differ in a value. Of several toolchains in one set, today's counts.
    """
    with user_errors():
        rows = differences(opened(one).all(), opened(other).all())
    changed = [row for row in rows if row["one"] != row["other"]]
    if as_json:
        print(json.dumps({"same": len(rows) - len(changed), "changed": changed}))
    elif changed:
        show_table(difference_table(f"{len(changed)} of {len(rows)} results differ", changed, str(one), str(other)))
    else:
        say(f"none of {len(rows)} results differs in a value")
    raise typer.Exit(1 if changed else 0)


@app.command()
def report(
    output: Annotated[Path, typer.Option("-o", "--output", help="HTML file to write.")],
    folder: Place = None,
    target: OnlyTarget = None,
    kernel: Kernels = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Write one HTML page: time against roofline of every kernel and scene, what was tried, what was rejected.

    A file that is there stays, unless --overwrite is given.
    """
    from autotune.report import page

    with user_errors():
        found = _some("report", folder, target, kernel)
        _write(output, page(found, current(found)), overwrite)
    print(json.dumps({"kernels": len(found)})) if as_json else say(f"{len(found)} kernels in {output}")

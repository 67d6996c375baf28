"""`python -m codegen`: check, build, inspect, explain and verify."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from codegen.cost import Shape, step_costs
from codegen.errors import BadShape, CodegenError, TunedUnusable
from codegen.lower import TARGETS, lower
from codegen.memory import memory_table, total_bytes
from codegen.package import write_package
from codegen.plan import Plan
from codegen.predict import of_target, predict
from codegen.predict import tables as predict_tables
from codegen.tunables import plain
from codegen.tuned import FREE, KEEP, Choice, choose, values_of
from codegen.tuned_store import opened
from dsl import ModelSpec, load_spec
from dsl.errors import SpecError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    help="Compile a YAML model spec into a package with a specialised, graph-captured decode step.\n\n"
    "Typical use: `python -m codegen build specs/tiny-hybrid.yaml`,\n"
    "then `python -m runtime generate build/tiny_hybrid --prompt TEXT`.",
    pretty_exceptions_enable=False,
)
out = Console(emoji=False)  # "cuda:100:" is no emoji
err = Console(stderr=True, emoji=False)


class Numerics(StrEnum):
    """Which tuned values are taken: those that change no bit, or all."""

    KEEP = KEEP
    FREE = FREE


SpecPath = Annotated[Path, typer.Argument(help="YAML model spec, e.g. specs/tiny-hybrid.yaml", show_default=False)]
Target = Annotated[str, typer.Option("--target", help=f"One of {', '.join(TARGETS)}.")]
Targets = Annotated[
    list[str] | None, typer.Option("--target", help=f"Repeatable; one of {', '.join(TARGETS)}. [default: cpu]")
]


Tuned = Annotated[
    Path | None,
    typer.Option(
        "--tuned",
        help="File of `autotune export`, or a folder of results. [default: what autotune found on this machine]",
        show_default=False,
    ),
]
Untuned = Annotated[bool, typer.Option("--untuned", help="Take no tuned values.")]
NumericsMode = Annotated[
    Numerics, typer.Option("--numerics", help="free: also tuned values that change bits, so other checkpoints.")
]


class Dump(StrEnum):
    """What `explain --dump` prints."""

    PLAN = "plan"


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]


@contextmanager
def user_errors() -> Iterator[None]:
    """Report what the user can mend in plain words, with exit code 2 and no traceback."""
    try:
        yield
    except (SpecError, CodegenError) as error:
        err.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(2) from None


@app.command()
def check(spec_path: SpecPath, target: Targets = None, as_json: AsJson = False) -> None:
    """Read a spec and lower it, writing nothing. Exit code 2 names every mistake with file and line."""
    with user_errors():
        spec = load_spec(spec_path)
        plans = [lower(spec, name) for name in target or ["cpu"]]
    if as_json:
        print(
            json.dumps(
                {"name": spec.name, "spec_sha256": plans[0].spec_sha256, "plans": {p.target: p.sha256 for p in plans}}
            )
        )
        return
    for plan in plans:
        out.print(f"{spec.name} is valid for {plan.target}: {len(plan.kernels)} kernels, {_mib(total_bytes(plan))}")


@app.command()
def build(
    spec_path: SpecPath,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Package folder. [default: build/<name>]")
    ] = None,
    target: Targets = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Compiler processes. [default: one per core]")] = None,
    compile_kernels: Annotated[bool, typer.Option("--aot/--no-aot", help="Compile all kernels now.")] = True,
    tuned: Tuned = None,
    untuned: Untuned = False,
    numerics: NumericsMode = Numerics.KEEP,
    as_json: AsJson = False,
) -> None:
    """Lower a spec, render its package and compile every kernel for each target.

    Identical input, tuned values among it, gives identical files; only what changed is written or compiled again.
    What `python -m autotune run` found is taken for the kernels that it is for: it changes no bit of a result.
    """
    start = perf_counter()
    with user_errors():
        spec = load_spec(spec_path)
        directory = output or Path("build") / spec.name.replace("-", "_")
        lowered = {name: _lower(spec, name, tuned, untuned, numerics) for name in dict.fromkeys(target or ["cpu"])}
        plans = [plan for plan, _ in lowered.values()]
        written = write_package(plans, directory, spec, spec_path.as_posix())
        resources = {plan.target: _compile(plan, directory, jobs, as_json) for plan in plans} if compile_kernels else {}
    seconds = perf_counter() - start
    if as_json:
        kernels = {name: [asdict(entry) for entry in entries] for name, entries in resources.items()}
        chosen = {name: [choice.plain() for choice in choices] for name, (_, choices) in lowered.items()}
        found = {"package": str(directory), "seconds": seconds, "written": asdict(written), "kernels": kernels}
        print(json.dumps({**found, "tuned": chosen}))
        return
    for name, entries in resources.items():
        if any(entry.registers is not None for entry in entries):
            out.print(_resource_table(name, entries))
        size = sum(entry.bytes for entry in entries)
        spilled = sum(entry.spill_bytes or 0 for entry in entries)
        out.print(f"{name}: {len(entries)} kernels, {size / 1024:.0f} KiB of code, {spilled} bytes spilled")
    for name, (_, choices) in lowered.items():
        _say_what_is_tuned(name, choices)
    said = f"{directory}: {written.files} files ({written.changed} changed) in {seconds:.1f} s"
    out.print(said, markup=False, soft_wrap=True)


def _lower(
    spec: ModelSpec, target: str, tuned: Path | None, untuned: bool, numerics: Numerics
) -> tuple[Plan, list[Choice]]:
    """The plan of a spec with the tuned values that are there, and what was taken for which kernel."""
    if untuned and tuned is not None:
        raise TunedUnusable(path=tuned, detail="--untuned asks for none; leave one of the two out")
    source = None if untuned else opened(tuned)
    plan = lower(spec, target)
    choices = list(choose(plan, source, numerics))
    values = values_of(choices)
    return (lower(spec, target, values) if values else plan), choices


def _say_what_is_tuned(target: str, choices: list[Choice]) -> None:
    """One line of numbers, and one for each reason why kernels were not tuned."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for choice in choices:
        if choice.result is None:
            reasons[choice.why].append(choice.kernel)
    tuned = sum(choice.result is not None and bool(choice.result.values) for choice in choices)
    untuned = sum(map(len, reasons.values()))
    kept = len(choices) - tuned - untuned
    told = f"{tuned} run with tuned values, {kept} keep the defaults after a search, {untuned} are untuned"
    out.print(f"{target}: of {len(choices)} kernels with tunables, {told}", highlight=False, soft_wrap=True)
    for why, kernels in reasons.items():
        names = ", ".join(kernels)
        out.print(f"  untuned ({why}): {names}", markup=False, highlight=False, soft_wrap=True)


def _compile(plan: Plan, directory: Path, jobs: int | None, quiet: bool) -> list[Any]:
    from codegen.aot import compile_package

    with _progress(quiet) as report:
        return compile_package(plan, directory, jobs, report)


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A bar on the terminal, for `progress(kernel, done, total)`."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=err, transient=True, disable=quiet or not sys.stderr.isatty()) as bar:
        task = bar.add_task("compiling", total=None)

        def report(kernel: str, done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, description=kernel)

        yield report


def _resource_table(target: str, entries: list[Any]) -> Table:
    table = Table(title=f"kernels on {target}", title_justify="left")
    table.add_column("kernel", overflow="fold")
    for name in ("registers", "spilled", "shared"):
        table.add_column(name, justify="right", no_wrap=True)
    for entry in entries:
        table.add_row(entry.kernel, str(entry.registers), str(entry.spill_bytes), str(entry.shared_bytes))
    return table


@app.command()
def verify(
    directory: Annotated[Path, typer.Argument(help="Package folder, e.g. build/tiny_hybrid", show_default=False)],
    weights: Annotated[Path | None, typer.Option(help="Weights file. [default: random ones, seeded]")] = None,
    bisect: Annotated[
        bool, typer.Option("--bisect", help="Name the first buffer, layer and position that differ.")
    ] = False,
    prompts: Annotated[int, typer.Option(min=1, help="Prompts to draw.")] = 8,
    new_tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate for each.")] = 24,
    as_json: AsJson = False,
) -> None:
    """Prove on this machine that the bits of a token depend only on its prefix, its seed and the build.

    Every way of computing a token is compared with a cold run: chunks, graphs, drafts, batches, checkpoints. Exit
    code 1 if a check fails, 2 if the package or the weights cannot be used.
    """
    with user_errors():
        from codegen.verify.command import run_command

        code = run_command(directory, weights, prompts, new_tokens, bisect, as_json, out)
    raise typer.Exit(code)


@app.command()
def inspect(
    spec_paths: Annotated[list[Path], typer.Argument(metavar="SPEC...", help="YAML model specs", show_default=False)],
    target: Annotated[
        list[str] | None, typer.Option("--target", help="Repeatable. [default: every CUDA target]")
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the packages it builds.")] = Path(
        "build/inspect"
    ),
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes. [default: one per core]")] = None,
    as_json: AsJson = False,
) -> None:
    """Compile every kernel for CUDA targets, without a GPU, and read what became of it.

    Per kernel: registers, spills, shared memory, instructions of dots, fp32 multiply-adds in PTX and in machine code,
    and a verdict: docs/gpu-targets.md has the rules. Exit code 1 if a kernel breaks one.
    """
    with user_errors():
        from codegen.inspect.command import CUDA_TARGETS, run_inspect

        with _progress(as_json) as progress:
            code = run_inspect(spec_paths, target or CUDA_TARGETS, output, jobs, as_json, out, progress)
    raise typer.Exit(code)


@app.command()
def explain(
    spec_path: SpecPath,
    target: Target = "cpu",
    drafts: Annotated[int, typer.Option(min=0, help="K: draft tokens per step.")] = 0,
    bucket: Annotated[int, typer.Option(min=1, help="Slots in the step.")] = 1,
    context: Annotated[int, typer.Option(min=1, help="Tokens already in the context.")] = 256,
    dump: Annotated[Dump | None, typer.Option(help="Print the plan as JSON and nothing else.")] = None,
    tuned: Tuned = None,
    untuned: Untuned = False,
    numerics: NumericsMode = Numerics.KEEP,
    as_json: AsJson = False,
) -> None:
    """Show what a step does: launches, bytes and FLOPs per layer, kernels, what is tuned, and the memory table.

    For a CUDA target also how long the step would take on each GPU that runs it, by section and kind of layer, and
    what bounds it: a model of data-sheet rates and named assumptions (docs/predictions.md), never measured.
    """
    with user_errors():
        plan, choices = _lower(load_spec(spec_path), target, tuned, untuned, numerics)
        _check_shape(plan, drafts, bucket, context)
    if dump is Dump.PLAN:
        print(plan.to_json(), end="")
        return
    shape = Shape(bucket, drafts, context)
    costs = list(step_costs(plan, shape))
    predictions = [predict(plan, shape, accelerator) for accelerator in of_target(target)]
    layers = _grouped(costs, lambda cost: cost.layer)
    kernels = _grouped(costs, lambda cost: cost.kernel)
    totals = {name: sum(row[name] for row in layers.values()) for name in ("launches", "bytes", "flops")}
    if as_json:
        memory = {str(role): size for role, size in memory_table(plan).items()}
        chosen = [choice.plain() for choice in choices]
        found: dict[str, Any] = {
            "step": totals,
            "layers": layers,
            "kernels": kernels,
            "memory": memory,
            "tuned": chosen,
        }
        if predictions:
            found["predictions"] = {each.accelerator.name: predict_tables.as_json(each) for each in predictions}
        print(json.dumps(found))
        return
    out.print(
        _cost_table(
            f"step of {plan.name} on {target}: K = {drafts}, bucket {bucket}, context {context}", layers, totals
        )
    )
    out.print(_cost_table("by kernel", kernels, totals))
    out.print(_tuned_table(plan, choices))
    out.print(_memory(plan))
    for table in predict_tables.tables(predictions):
        out.print(table)


@app.command()
def errors(
    code: Annotated[str | None, typer.Argument(help="A code, as messages end with it.", show_default=False)] = None,
    page: Annotated[bool, typer.Option("--page", help="Print docs/errors.md.")] = False,
) -> None:
    """Explain a code, or list all."""
    from codegen import catalogue

    with user_errors():
        if code is not None:
            print(catalogue.explain(code))
        elif page:
            print(catalogue.page(), end="")
        else:
            for family in catalogue.FAMILIES:
                out.print(family.title, style="bold")
                for entry in catalogue.entries(family):
                    out.print(f"  {entry.code}: {entry.meaning}", markup=False, highlight=False, soft_wrap=True)


def _check_shape(plan: Plan, drafts: int, bucket: int, context: int) -> None:
    """Raise BadShape for a step that no engine of this plan runs."""
    limits = plan.limits
    for option, value, most in (("--drafts", drafts, limits.max_drafts), ("--context", context, limits.max_context)):
        if value > most:
            raise BadShape(option=option, value=value, allowed=f"at most {most}")
    if bucket not in limits.buckets:
        raise BadShape(option="--bucket", value=bucket, allowed=f"one of {', '.join(map(str, limits.buckets))}")


def _grouped(costs: list[Any], key: Callable[[Any], str]) -> dict[str, dict[str, int]]:
    groups: dict[str, dict[str, int]] = defaultdict(lambda: {"launches": 0, "bytes": 0, "flops": 0})
    for cost in costs:
        row = groups[key(cost)]
        row["launches"] += cost.count
        row["bytes"] += cost.count * cost.bytes
        row["flops"] += cost.count * cost.flops
    return dict(groups)


def _cost_table(title: str, rows: dict[str, dict[str, int]], totals: dict[str, int]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for name in ("launches", "KiB", "MFLOP"):
        table.add_column(name, justify="right")
    for name, row in [*rows.items(), ("total", totals)]:
        table.add_row(name, str(row["launches"]), f"{row['bytes'] / 1024:.1f}", f"{row['flops'] / 1e6:.3f}")
    return table


def _tuned_table(plan: Plan, choices: list[Choice]) -> Table:
    table = Table(title="what may be tuned", title_justify="left")
    table.add_column("kernel", overflow="fold")
    table.add_column("values (* tuned)", overflow="fold")
    table.add_column("", overflow="fold")
    for choice in choices:
        kernel = plan.kernel(choice.kernel)
        values = [f"{t.name}={plain(kernel.chosen(t))}{'*' if t.name in kernel.tuned else ''}" for t in kernel.tunables]
        ratio = f", {choice.result.ratio:.2f} of the untuned time" if choice.result else ""
        table.add_row(escape(choice.kernel), escape(" ".join(values)), escape(choice.why + ratio))
    return table


def _memory(plan: Plan) -> Table:
    table = Table(title="memory", title_justify="left")
    table.add_column("role")
    table.add_column("bytes", justify="right")
    table.add_column("MiB", justify="right")
    for role, size in [*memory_table(plan).items(), ("total", total_bytes(plan))]:
        table.add_row(str(role), str(size), f"{size / 2**20:.2f}")
    return table


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"

"""The command line of verify: progress, the table of checks, the exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from codegen.verify.report import Check, Report
from codegen.verify.run import Progress as OnCheck
from codegen.verify.run import verify_package

FINDINGS_SHOWN = 3
PLAIN_WIDTH = 140  # of output that goes to a file
DETAIL_FROM = 120  # narrower terminals leave out the last column


def run_command(
    directory: Path, weights: Path | None, prompts: int, new_tokens: int, bisect: bool, as_json: bool, out: Console
) -> int:
    """Verify and print. Returns 0 if every check passed, else 1. Raises CannotVerify."""
    with progress(as_json) as report_progress:
        report = verify_package(
            directory, weights, prompts=prompts, new_tokens=new_tokens, bisect=bisect, progress=report_progress
        )
    if as_json:
        print(json.dumps(report.plain()))
    else:
        show(report, bisect, out)
    return 0 if report.passed else 1


@contextmanager
def progress(quiet: bool) -> Iterator[OnCheck]:
    """A bar on stderr, where that is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    err = Console(stderr=True, emoji=False)
    with Progress(*columns, console=err, transient=True, disable=quiet or not sys.stderr.isatty()) as bar:
        task = bar.add_task("opening", total=None)
        yield lambda title, done, total: bar.update(task, description=escape(title), completed=done, total=total)


def show(report: Report, bisected: bool, out: Console) -> None:
    """The table of checks, what differs, and one line that sums up."""
    out = out if out.is_terminal else Console(width=PLAIN_WIDTH, emoji=False)
    target, weights = report.target or "no target", report.weights or "not read"
    out.print(f"{report.package} on {target}, weights: {weights}", highlight=False, soft_wrap=True)
    out.print(_table(report.checks, details=out.width >= DETAIL_FROM))
    failed = [check for check in report.checks if not check.passed]
    for check in failed:
        out.print(f"{check.name}: {check.title}", style="red", markup=False)
        for finding in check.findings[:FINDINGS_SHOWN]:
            out.print(f"  {finding}", markup=False, highlight=False, soft_wrap=True)
    tokens = sum(check.compared for check in report.checks if check.unit == "tokens")
    if not failed:
        out.print(f"verified: {len(report.checks)} checks, {tokens} tokens compared with == in {report.seconds:.1f} s")
        return
    hint = "" if bisected else "; --bisect names the first buffer that differs"
    out.print(f"failed: {len(failed)} of {len(report.checks)} checks in {report.seconds:.1f} s{hint}", style="red")


def _table(checks: tuple[Check, ...], details: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("check", no_wrap=True)
    table.add_column("")
    table.add_column("compared", justify="right", no_wrap=True)
    table.add_column("s", justify="right")
    if details:
        table.add_column("", no_wrap=True)
    for check in checks:
        result = "[green]ok[/green]" if check.passed else "[red]FAILED[/red]"
        compared = f"{check.compared:,} {check.unit}"
        row = (escape(check.title), result, compared, f"{check.seconds:.2f}", escape(check.detail))
        table.add_row(*row[: 5 if details else 4])
    return table

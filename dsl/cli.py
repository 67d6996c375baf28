"""`python -m dsl`: start a spec, compare two, and what editors and readers need to know of the language."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from dsl.console import EXIT_USER_ERROR, run
from dsl.diff import diff as compare
from dsl.diff import report
from dsl.editor import editor_schema
from dsl.errors import SpecError, printable
from dsl.loader import load_spec
from dsl.page import page
from dsl.starter import NAME, name_for, write_new

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="The language of model specs. `python -m codegen check SPEC` checks one.",
)

Spec = typer.Argument(help="YAML model spec.", show_default=False)


@contextmanager
def user_errors() -> Iterator[None]:
    """Report what the user can mend, a line per mistake, with exit code 2 and no traceback."""
    try:
        yield
    except SpecError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(EXIT_USER_ERROR) from None


@app.command()
def new(
    path: Annotated[
        Path | None, typer.Argument(help="File to write. [default: <name>.yaml]", show_default=False)
    ] = None,
    name: Annotated[
        str | None, typer.Option(help=f"Name of the model. [default: what the file is called, or {NAME}]")
    ] = None,
) -> None:
    """Write a commented spec to start from: every field with its meaning, range and unit. Never replaces a file."""
    name = name if name is not None else name_for(path) if path is not None else NAME
    path = path if path is not None else Path(f"{name}.yaml")
    with user_errors():
        write_new(path, name)
    shown = printable(str(path))
    print(f"{shown}: python -m codegen check {shlex.quote(shown)}")


@app.command()
def diff(
    before: Annotated[Path, Spec],
    after: Annotated[Path, Spec],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Say in words what changed from one spec to another, and what it costs: parameters, bytes kept, bytes moved."""
    with user_errors():
        found = compare(load_spec(before), load_spec(after))
    print(json.dumps(found.plain()) if as_json else report(found, str(before), str(after)))


@app.command()
def schema() -> None:
    """Print the JSON Schema of a spec, for editors: docs/dsl.md says how to use it."""
    print(json.dumps(editor_schema(), indent=1, ensure_ascii=False))


@app.command()
def reference() -> None:
    """Print docs/dsl.md: every field, rule and limit."""
    print(page(), end="")


def main() -> None:
    """Entry point."""
    run(lambda: app(prog_name="python -m dsl"))

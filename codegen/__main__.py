"""Entry point of `python -m codegen`."""

from codegen.cli import app
from dsl.console import run

run(lambda: app(prog_name="python -m codegen"))

"""Entry point of `python -m autotune`."""

from autotune.cli import app
from dsl.console import run

if __name__ == "__main__":  # helpers are spawned, which imports this module again
    run(lambda: app(prog_name="python -m autotune"))

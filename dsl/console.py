"""Running a command line so that whatever happens to standard output is told in one line, and never as a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from dsl.errors import OutputFailed

EXIT_NO_READER = 1
EXIT_USER_ERROR = 2


def run(command: Callable[[], object]) -> NoReturn:
    """Run a command and end the program: 1, quietly, if a reader went away; 2 if output cannot be written.

    An OSError that names a file is not of standard output, and passes.
    """
    code: object = 0
    try:
        try:
            command()
        except SystemExit as end:
            code = end.code
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        code = EXIT_NO_READER
        _discard_output()
    except UnicodeEncodeError as error:
        code = _failed(f"it takes {error.encoding} only; set PYTHONIOENCODING=utf-8")
    except OSError as error:
        if error.filename is not None:
            raise
        code = _failed(error.strerror or "unknown reason")
    raise SystemExit(code)


def _failed(reason: str) -> int:
    print(OutputFailed(reason=reason).located("standard output", None), file=sys.stderr)
    _discard_output()
    return EXIT_USER_ERROR


def _discard_output() -> None:
    """What is still buffered goes nowhere, or it would fail again when the interpreter ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

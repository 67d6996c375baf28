"""PyTorch in a process of its own, with its threads bound to cores.

In one process its idle threads would spin beside ours, and unbound they land on one core now and then, which costs
milliseconds per call. Run as a program it reads how often to run which contest, and answers with seconds per call.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

from .measure import Contest, burst

ENVIRONMENT = {"OMP_PROC_BIND": "true", "OMP_NUM_THREADS": "2"}


class Rival:
    """The other process, for the contests of one name."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | ENVIRONMENT
        )

    def burst(self, number: int, repeats: int) -> float:
        """Seconds per call of `repeats` calls of contest `number`."""
        reader, writer = self._process.stdout, self._process.stdin
        assert reader is not None and writer is not None
        writer.write(f"{number} {repeats}\n")
        writer.flush()
        answer = reader.readline()
        if not answer:
            raise RuntimeError("the process that runs PyTorch ended; its message is above")
        return float(answer)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


@contextmanager
def rival(name: str) -> Iterator[Rival]:
    """A process that runs the other side of the contests called `name`."""
    process = Rival([sys.executable, "-m", "benchmarks.cpu_backend", "--rival", name])
    try:
        yield process
    finally:
        process.close()


def serve(contests: Callable[[], Iterator[Contest]], requests: IO[str], answers: IO[str]) -> None:
    """Answer `number repeats` lines until they end. Numbers rise: one contest is kept at a time."""
    source, number, current = contests(), -1, None
    for line in requests:
        wanted, repeats = map(int, line.split())
        while number < wanted:
            current, number = next(source), number + 1
        assert current is not None and current.theirs is not None
        answers.write(f"{burst(current.theirs, repeats)}\n")
        answers.flush()

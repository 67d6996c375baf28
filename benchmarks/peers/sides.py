"""The sides of a comparison, each behind `ask`: a worker process that stays loaded, or llama.cpp's own tools."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from runtime.bench.usage import peak_bytes

from .figures import NEW, PROMPT, Answer, Ask

WORKERS = Path(__file__).parent / "workers"
ROOT = Path(__file__).resolve().parents[2]
MOST_TOKENS = 8192  # of the cache of llama-batched-bench


class SideFailed(Exception):
    """A side cannot load or answer. The message names it and says what its process wrote last."""


class Side(Protocol):
    """One side. pid: of its process, None while it has none. about: what it says of itself once loaded."""

    name: str
    pid: int | None
    about: dict[str, Any]

    def load(self) -> None:
        """Start and load. Raises SideFailed."""

    def ask(self, ask: Ask) -> Answer:
        """Answer a request. Raises SideFailed."""

    def close(self) -> None:
        """End its process."""


class Worker:
    """A script of `workers/` in the interpreter of its peer. It answers one line with another, and sleeps meanwhile."""

    def __init__(
        self, name: str, python: str, script: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> None:
        self.name, self.pid, self.about = name, None, {}
        self._command = [python, str(WORKERS / script), *arguments]
        self._environment, self._log = environment, log
        self._process: subprocess.Popen[str] | None = None

    def load(self) -> None:
        """Start the process and wait until it is loaded."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("w") as errors:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | self._environment,
            )
        self.pid = self._process.pid
        self.about = self._read()

    def ask(self, ask: Ask) -> Answer:
        """Answer a request."""
        return Answer(**self.call({"prompt": ask.prompt, "new": ask.new, "batch": ask.batch, "seed": ask.seed}))

    def call(self, content: dict[str, Any]) -> dict[str, Any]:
        """One line of JSON for another."""
        assert self._process is not None and self._process.stdin is not None, "load() first"
        with suppress(BrokenPipeError):  # it has ended: reading says how
            self._process.stdin.write(json.dumps(content) + "\n")
            self._process.stdin.flush()
        return self._read()

    def peak_bytes(self) -> int:
        """Peak resident memory so far."""
        return peak_bytes(self.pid) if self.pid is not None else 0

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            with suppress(BrokenPipeError):
                self._process.communicate()
            self._process = self.pid = None

    def _read(self) -> dict[str, Any]:
        assert self._process is not None and self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            raise SideFailed(f"{self.name} ended; {self._log} ends with:\n{last_lines(self._log.read_text())}")
        return json.loads(line)  # type: ignore[no-any-return]


class LlamaCpp:
    """llama.cpp by its own benchmarks, one process per measurement: it loads in 0.3 s.

    They sample nothing and serve nobody, so they show more than its server would; ours is timed around all of
    `Engine.step`. Each warms up by itself before it measures.
    """

    name, pid = "llama.cpp", None

    def __init__(self, folder: Path, model: Path, threads: int) -> None:
        self.about: dict[str, Any] = {}
        self._folder, self._model, self._threads = folder, model, threads

    def load(self) -> None:
        """Check that it runs, and learn its version."""
        (row,) = self._bench("-p", "8", "-n", "0")
        self.about = {"version": f"b{row['build_number']}"}

    def ask(self, ask: Ask) -> Answer:
        """Answer a request; of one token for one prompt: the prompt alone."""
        if ask.batch > 1:
            return self._batched(ask)
        if ask.new == 1:
            return Answer(self._seconds("-p", str(ask.prompt), "-n", "0"), 0.0, 0)
        return Answer(0.0, self._seconds("-p", "0", "-n", str(ask.new), "-d", str(ask.prompt)), ask.new)

    def close(self) -> None:
        """Nothing is left running."""

    def _seconds(self, *arguments: str) -> float:
        (row,) = self._bench(*arguments)
        return float(row["samples_ns"][0]) * 1e-9

    def _bench(self, *arguments: str) -> list[dict[str, Any]]:
        return json.loads(self._run("llama-bench", "-r", "1", "-o", "json", *arguments))  # type: ignore[no-any-return]

    def _batched(self, ask: Ask) -> Answer:
        sizes = ("-npp", str(ask.prompt), "-ntg", str(ask.new), "-npl", str(ask.batch), "-c", str(MOST_TOKENS))
        output = self._run("llama-batched-bench", *sizes, "--output-format", "jsonl")
        rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        if len(rows) != 1:
            raise SideFailed(f"llama-batched-bench printed {len(rows)} rows:\n{last_lines(output)}")
        return Answer(float(rows[0]["t_pp"]), float(rows[0]["t_tg"]), ask.batch * ask.new)

    def _run(self, tool: str, *arguments: str) -> str:
        command = [str(self._folder / tool), "-m", str(self._model), "-t", str(self._threads), *arguments]
        environment = os.environ | {"LD_LIBRARY_PATH": str(self._folder)}
        try:
            done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        except OSError as error:
            raise SideFailed(f"{tool} does not run: {error}") from error
        if done.returncode:
            raise SideFailed(f"{' '.join(command)} ended with {done.returncode}:\n{last_lines(done.stderr)}")
        return done.stdout


def stepforge(package: Path, weights: Path, threads: int, log: Path) -> Worker:
    """Our own side. Its `about` has `step_bytes`: of a step in the middle of the decode figure."""
    arguments = [str(package), str(weights), str(threads), str(PROMPT + NEW // 2)]
    return Worker("stepforge", sys.executable, "run_ours.py", arguments, {"PYTHONPATH": str(ROOT)}, log)


def bandwidth_meter(threads: int, log: Path) -> Worker:
    """No side: it answers the operation `bandwidth`."""
    return Worker("bandwidth", sys.executable, "run_bandwidth.py", [str(threads)], {"PYTHONPATH": str(ROOT)}, log)


def last_lines(text: str, count: int = 12) -> str:
    """The end of what a process wrote."""
    return "\n".join(text.rstrip().splitlines()[-count:])

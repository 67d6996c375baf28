"""`python -m tests.cpu.triton_versions`: the backend's tests under several Triton versions.

Each version gets a virtual environment under build/ that holds that Triton alone; torch, pytest and the rest come from
the environment this command runs in.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[2]
VERSIONS = ["3.6.0", "3.7.1", "3.9.0"]
#: pytest's last line: `2 failed, 150 passed, 3 skipped in 60.0s`.
_COUNT = re.compile(r"(\d+) (passed|failed|skipped|errors?|xfailed)")


def environment(version: str, folder: Path) -> Path:
    """Python of an environment with this Triton in front of the running one; made once. Raises CalledProcessError."""
    home = folder.resolve() / f"triton-{version}"
    python = home / "bin" / "python"
    if not (home / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
        site = next(home.glob("lib/python*/site-packages"))
        # after this environment's own packages, those of the running one
        (site / "parent.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
        install = ["pip", "--python", python, "install", "--quiet", "--no-deps", "--ignore-installed"]
        subprocess.run([sys.executable, "-m", *install, f"triton=={version}"], check=True)
        (home / "ready").touch()
    return python


def run(version: str, folder: Path, arguments: list[str]) -> dict:
    """Outcome of pytest under one version."""
    python = environment(version, folder)
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    env = os.environ | {"PYTHONPATH": path, "TRITON_CACHE_DIR": str(folder.resolve() / f"cache-{version}")}
    found = subprocess.run(
        [python, "-c", "import triton; print(triton.__version__)"], env=env, cwd=ROOT, capture_output=True, text=True,
        check=True,
    ).stdout.strip()  # fmt: skip
    assert found == version, f"environment for Triton {version} finds {found}"
    start = time.perf_counter()
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    result = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = result.stdout.strip().splitlines() or [""]
    return {
        "triton": version,
        "passed": 0,
        "failed": 0,
        "skipped": 0,
        **{kind: int(count) for count, kind in _COUNT.findall(lines[-1])},
        "exit": result.returncode,
        "seconds": round(time.perf_counter() - start),
        "problems": [line for line in lines if line.startswith(("FAILED", "ERROR", "SKIPPED"))],
        "stderr": result.stderr.strip()[-2000:] if result.returncode > 1 else "",
    }


def main(
    versions: Annotated[list[str], typer.Argument(help="Triton versions.")] = VERSIONS,
    tests: Annotated[list[str], typer.Option(help="What pytest runs.")] = ["tests/cpu/backend"],  # noqa: B006
    processes: Annotated[int, typer.Option("-n", min=1, help="Test processes.")] = 2,
    folder: Annotated[Path, typer.Option(help="Where environments and caches are kept.")] = Path("build/triton"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run the backend's tests under each Triton version. Exit status 1 if any test fails under any of them."""
    rows = []
    for version in versions:
        rows.append(run(version, folder, [*tests, "-n", str(processes)]))
        Console(stderr=True, emoji=False).print(
            version, *rows[-1]["problems"], rows[-1]["stderr"], sep="\n", highlight=False
        )
    failed = any(row["exit"] for row in rows)
    if as_json:
        print(json.dumps({"versions": rows, "ok": not failed}))
    else:
        table = Table("triton", "passed", "failed", "skipped", "exit", "seconds")
        for row in rows:
            table.add_row(*(str(row[column.header]) for column in table.columns))
        Console(emoji=False).print(table)
    raise typer.Exit(failed)


if __name__ == "__main__":
    typer.run(main)

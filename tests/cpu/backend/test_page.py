"""docs/cpu-backend.md shows what happens: its scripts run, its report is the real one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[3] / "docs" / "cpu-backend.md").read_text()


def section(title: str) -> str:
    return PAGE[PAGE.index(f"## {title}\n") :].split("\n## ")[0]


def code_of(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


ADD, GRAPH = code_of(section("Run your own kernel"))
CHECKED, POISON = code_of(section("Find bugs"))


def run(script: Path, text: str, **env: str) -> subprocess.CompletedProcess:
    script.write_text(text)
    given = {name: value for name, value in os.environ.items() if name != "STEPFORGE_CPU_CHECK"} | env
    return subprocess.run([sys.executable, str(script)], env=given, capture_output=True, text=True, check=False)


def test_the_scripts_run(tmp_path: Path) -> None:
    for text in (ADD, ADD + GRAPH, ADD + CHECKED):
        done = run(tmp_path / "add.py", f"{text}\nassert torch.equal(out, x + y)\n")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_report_is_what_the_mistake_gives(tmp_path: Path) -> None:
    [report] = re.findall(r"^```\n(runtime\.cpu\.OutOfBounds: .*?)^```", section("Find bugs"), re.DOTALL | re.MULTILINE)
    script = tmp_path / "add_le.py"
    done = run(script, ADD.replace("m = o < n", "m = o <= n"), STEPFORGE_CPU_CHECK="1")
    assert done.stderr.splitlines()[-2:] == report.replace("/home/you/add_le.py", str(script)).splitlines()


def test_the_poisoned_example_ends_as_it_says(tmp_path: Path) -> None:
    done = run(tmp_path / "add.py", f"{ADD}\nimport runtime.cpu\n{POISON}")
    [error] = [row for row in done.stderr.splitlines() if row.endswith("[cpu-uninitialised-read]")]
    assert error.startswith("runtime.cpu.UninitialisedRead: ") and ": element 768 of x [" in error


def test_a_module_that_hides_the_package_gives_the_error_on_the_page(tmp_path: Path) -> None:
    (tmp_path / "runtime.py").touch()
    done = run(tmp_path / "add.py", ADD)
    assert done.stderr.splitlines()[-1] in PAGE

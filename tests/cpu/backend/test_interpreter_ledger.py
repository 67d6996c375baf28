"""The ledger: what Triton's interpreter (and once its front end) computes wrongly, with which versions."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cpu.fuzz.ledger import LEDGER, results
from tests.cpu.fuzz.versions import holds

ROOT = Path(__file__).parents[3]
SIDES = ("compiler", "interpreter")
#: For each entry the numbers, or the text of an error.
Results = dict[str, list[float] | str]


def same(a: list[float] | str, b: tuple[float, ...]) -> bool:
    """Equal numbers, signs of zeros included; any NaN equals any other. The text of an error equals nothing."""
    return not isinstance(a, str) and len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))


def _same(x: float, y: float) -> bool:
    if math.isnan(x) or math.isnan(y):
        return math.isnan(x) and math.isnan(y)
    return x == y and math.copysign(1, x) == math.copysign(1, y)


@pytest.fixture(scope="module")
def found() -> dict[str, Results]:
    """What compiler and interpreter give for every entry."""
    env = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "-m", "tests.cpu.fuzz.ledger"]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=True)
    return {"compiler": results(), "interpreter": json.loads(done.stdout)}


@pytest.mark.parametrize("name", LEDGER)
def test_the_ledger_says_which_of_the_two_is_wrong(name: str, found: dict[str, Results]) -> None:
    """Where one is found right that the ledger calls wrong, a new Triton has mended it: its entry, and what
    `interpreted.py` excludes, end before that version (versions.py)."""
    entry, given = LEDGER[name], {side: results[name] for side, results in found.items()}
    if holds(entry.refused_with):
        assert all(entry.refusal in given[side] for side in SIDES), f"{name} is not refused: {given}"
    else:
        wrong = {side for side in SIDES if not same(given[side], entry.right)}
        assert wrong == ({entry.wrong} if holds(entry.wrong_with) else set()), f"{given}, right is {entry.right}"

"""The ledger of what Triton's interpreter (and once its front end) computes wrongly, and that this backend does not."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cpu.fuzz.ledger import LEDGER, results

ROOT = Path(__file__).parents[3]


def same(a: list[float], b: tuple[float, ...]) -> bool:
    """Equal numbers, signs of zeros included; any NaN equals any other. An empty `a` stands for an exception."""
    return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))


def _same(x: float, y: float) -> bool:
    if math.isnan(x) or math.isnan(y):
        return math.isnan(x) and math.isnan(y)
    return x == y and math.copysign(1, x) == math.copysign(1, y)


@pytest.fixture(scope="module")
def compiled() -> dict[str, list[float]]:
    return results()


@pytest.fixture(scope="module")
def interpreted() -> dict[str, list[float]]:
    env = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "-m", "tests.cpu.fuzz.ledger"]
    return json.loads(subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("name", LEDGER)
def test_one_of_the_two_is_wrong_and_the_ledger_says_which(
    name: str, compiled: dict[str, list[float]], interpreted: dict[str, list[float]]
) -> None:
    """A new Triton may have mended one: then its entry, and the exclusion in `interpreted.py`, can go."""
    entry = LEDGER[name]
    found = {"compiler": compiled[name], "interpreter": interpreted[name]}
    other = "compiler" if entry.wrong == "interpreter" else "interpreter"
    assert same(found[other], entry.right), f"{other} gives {found[other]}, right is {entry.right}"
    assert not same(found[entry.wrong], entry.right), f"the {entry.wrong} is right now: take {name} out of the ledger"

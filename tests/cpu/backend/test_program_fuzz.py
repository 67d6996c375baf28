"""A small run of `python -m tests.cpu.fuzz` in the gate, the faults that it must find, and its own parts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.cpu.fuzz import bounds
from tests.cpu.fuzz.campaign import campaign, minimal, run_some, scratch
from tests.cpu.fuzz.dtypes import BF16, F16, F32, F64
from tests.cpu.fuzz.generate import KINDS, generate
from tests.cpu.fuzz.mutants import MUTANTS
from tests.cpu.fuzz.repro import write_repro
from tests.cpu.fuzz.run import run
from tests.cpu.fuzz.source import kernel_source

PROGRAMS = 60
#: Programs of the mutant's kind within which it must be found.
PATIENCE = 40


def test_random_programs_stay_within_their_bounds() -> None:
    tally = run_some(7, range(PROGRAMS))
    assert tally.differences == []
    assert tally.programs == PROGRAMS
    assert tally.kinds.keys() == KINDS.keys()
    assert tally.exact > 0.9 * tally.compared > 50_000
    assert tally.unknown < 0.05 * tally.compared
    assert 0 < tally.worst <= 1


def test_the_interpreter_agrees_where_it_is_right() -> None:
    tally = campaign(7, PROGRAMS, 1, lambda tally, seconds: None, interpreter=True)
    assert tally.differences == []
    assert tally.programs + tally.skipped.total() == PROGRAMS
    assert tally.programs >= PROGRAMS // 4


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mutant = MUTANTS[name]
    mutant.plant(monkeypatch.setattr, tmp_path)
    with scratch() as folder:
        found = (not run(generate(1, index, mutant.kind, mutant.on), folder).ok for index in range(PATIENCE))
        assert any(found), f"{mutant.what}: not found by {PATIENCE} {mutant.kind} programs"


def test_a_difference_becomes_a_small_script_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with monkeypatch.context() as patch:
        MUTANTS["arithmetic-shift"].plant(patch.setattr, tmp_path)
        program = next(
            p
            for p in (generate(1, i, "shift", MUTANTS["arithmetic-shift"].on) for i in range(PATIENCE))
            if not _passes(p)
        )
        outcome = minimal(program, tries=30)
        assert not outcome.ok
        path = write_repro(outcome, tmp_path)
    kept = list(outcome.program.walk())
    assert "shr" in {stmt.op for stmt in kept}
    assert len(kept) < len(list(program.walk()))
    # the fault is only in this process: the script, which needs nothing of the fuzzer, passes outside
    env = os.environ | {"TRITON_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, path], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    wrong = path.read_text().replace(" >> ", " << ")
    path.write_text(wrong)
    done = subprocess.run([sys.executable, path], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "must be" in done.stdout


def _passes(program) -> bool:
    with scratch() as folder:
        return run(program, folder).ok


def test_a_program_follows_from_its_seed_and_index() -> None:
    assert [kernel_source(generate(3, k)) for k in range(20)] == [kernel_source(generate(3, k)) for k in range(20)]
    assert kernel_source(generate(3, 0)) != kernel_source(generate(4, 0))


@pytest.mark.parametrize("dtype", [F16, BF16, F32, F64], ids=lambda d: d.name)
def test_a_bound_of_zero_means_equal_bits(dtype) -> None:
    one = np.ones(4, dtype.storage)
    want = bounds.Value(np.array([1.0, 0.0, np.nan, 1.0], dtype.storage), np.zeros(4))
    got = np.array([1.0, -0.0, np.nan, 1 + 2.0 ** (1 - dtype.precision)], dtype.storage)
    assert bounds.shares(dtype, got, want).tolist() == [0.0, np.inf, 0.0, np.inf]
    assert bounds.shares(dtype, one, bounds.Value(one, np.full(4, np.inf))).tolist() != [0.0] * 4
    near = bounds.Value(one, np.full(4, 2.0 ** (2 - dtype.precision)))
    assert bounds.shares(dtype, got[3:], bounds.Value(near.data[3:], near.error[3:])).tolist() == [0.5]

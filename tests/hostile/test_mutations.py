"""A small, seeded share of `python -m tests.hostile`, and proof that it would see what it looks for."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from runtime.errors import RuntimeStateError
from tests.hostile import fuzz as run
from tests.hostile.fuzz import Tally, fuzz
from tests.hostile.surfaces import one_line

MUTATIONS = 400


def test_mutated_inputs_are_accepted_or_refused_by_the_catalogue(tmp_path: Path) -> None:
    tally = fuzz(tmp_path, MUTATIONS, seed=1)
    assert sum(tally.inputs.values()) == MUTATIONS and len(tally.inputs) == 5
    assert not tally.findings, [(finding.surface, finding.input, finding.what) for finding in tally.findings]
    assert {surface for surface, code in tally.codes if code != "accepted"} == set(tally.inputs)


class Faulty:
    """A reader with a defect."""

    name, share = "faulty", 1.0

    def __init__(self, defect: str) -> None:
        self.defect = defect

    def feed(self, path: Path, data: bytes, number: int) -> list[str]:
        if self.defect == "raises":
            raise KeyError("x")
        if self.defect == "panics":
            raise BaseException("a Rust panic")
        if self.defect == "hangs":
            try:
                time.sleep(60)
            except Exception:
                return ["accepted"]
        if self.defect == "leaves a file":
            path.with_name("partial").write_bytes(data)
        if self.defect == "acts on the terminal":
            error = RuntimeStateError(detail="x")
            error.args = ("\x1b[2J [runtime]",)
            one_line(error)
        if self.defect == "has no code":
            one_line(ValueError("x"))
        return ["accepted"]


@pytest.mark.parametrize(
    ("defect", "findings"),
    [
        *((name, 1) for name in ("raises", "panics", "hangs", "leaves a file", "acts on the terminal", "has no code")),
        ("none", 0),
    ],
)
def test_a_faulty_reader_is_a_finding(
    defect: str, findings: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "SECONDS", 0.2)
    tally = Tally()
    run._feed(Faulty(defect), tmp_path, (0, 0), b"x", tally)
    assert len(tally.findings) == findings

"""A few of the kills of `python -m tests.cpu.tiers.kill`."""

from pathlib import Path

from tests.cpu.tiers.crash import run


def test_what_killed_writers_leave_is_exact(tmp_path: Path) -> None:
    result = run(tmp_path, kills=6, seed=1)
    assert result["verified"] > 0 and result["live writes"] > 0 and result["live reads: exact"] > 0

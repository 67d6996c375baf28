"""Single kernels of the CPU backend against PyTorch on one thread, and a gemv against a loop that only reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from benchmarks.cpu_backend import attention, gemv, matmul, rows, ssm
from benchmarks.cpu_backend.measure import Contest

from .conftest import Against, repeated, seconds

KERNELS: dict[str, Callable[[], Iterator[Contest]]] = {
    "rms_norm": rows.norm_contests,
    "softmax": rows.softmax_contests,
    "ssm": ssm.contests,
    "attention": attention.contests,
    "matmul": matmul.contests,
}
ROUND_SECONDS = 0.003


@pytest.mark.parametrize("name", KERNELS)
def test_kernel(name: str, against: Against) -> None:
    contest = next(KERNELS[name]())
    contest.check()
    assert contest.theirs is not None
    (times, ours), (other_times, theirs) = (_round(run) for run in (contest.ours, contest.theirs))
    against(f"kernel {name}", ours, theirs, of="torch on one thread", work=times / other_times)


def test_gemv(against: Against) -> None:
    contest, read = next(gemv.contests())
    contest.check()
    against("kernel gemv", contest.ours, lambda: read(1), of="two new threads that read its weights", rounds=15)


def _round(run: Callable[[], object]) -> tuple[int, Callable[[], None]]:
    """A number of calls that takes about ROUND_SECONDS, as one."""
    run()
    times = max(1, min(1000, int(ROUND_SECONDS / seconds(run))))
    return times, repeated(run, times)

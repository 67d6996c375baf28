"""Unmodified kernels of flash-linear-attention and liger-kernel against PyTorch references."""

from __future__ import annotations

import pytest

from tests.cpu.third_party.check import DIRECTIONS, LIBRARIES, Case, cases, missing, run


@pytest.mark.parametrize("library", LIBRARIES)
def test_library_is_present(library: str) -> None:
    if reason := missing(library):
        pytest.skip(reason)


@pytest.mark.parametrize(
    ("case", "direction"), [(c, d) for c in cases() for d in DIRECTIONS[: 1 + c.backward]], ids=str
)
def test_kernel(case: Case, direction: str) -> None:
    outcome = run(case, direction)
    assert not outcome.reason, f"{outcome.reason}: error {outcome.error:.1e}, tolerance {outcome.tolerance:.0e}"

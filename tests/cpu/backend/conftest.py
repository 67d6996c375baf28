"""Tests of the Triton CPU backend alone: no models, no rendered packages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from runtime.cpu import get_num_threads, set_num_threads

sys.path.insert(0, str(Path(__file__).parent))  # helpers of these tests: dot_oracle


def pytest_configure(config: pytest.Config) -> None:
    from triton.backends import backends

    if "cpu" not in backends:
        raise pytest.UsageError("Triton backend `cpu` is not registered: install the project (pip install -e .)")


@pytest.fixture(autouse=True)
def _reproducible() -> None:
    torch.manual_seed(0)


@pytest.fixture
def threads():
    """set_num_threads, undone after the test."""
    before = get_num_threads()
    yield set_num_threads
    set_num_threads(before)

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.cpu.engine.toys import Oracle, agreeing_weights, toy_spec, write_toy


@pytest.fixture(scope="session", autouse=True)
def few_threads():
    """Torch only fills and compares small tensors here; its threads would compete with those of the kernels."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def cache():
    """Compiled kernels, kept between runs: what they depend on is part of their names."""
    return Path(__file__).resolve().parents[3] / "build" / "test-kernels"


@pytest.fixture(scope="session")
def package(tmp_path_factory, cache):
    return write_toy(tmp_path_factory.mktemp("toy") / "package", cache, toy_spec())


@pytest.fixture(scope="session")
def weights():
    return agreeing_weights(toy_spec())


@pytest.fixture(scope="session")
def oracle(package, weights):
    return Oracle(package, weights)

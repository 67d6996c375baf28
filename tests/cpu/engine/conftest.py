from __future__ import annotations

import pytest

from tests.cpu.engine.toys import Oracle, agreeing_weights, toy_spec, write_toy


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels") / "cache"


@pytest.fixture(scope="session")
def package(tmp_path_factory, cache):
    return write_toy(tmp_path_factory.mktemp("toy") / "package", cache, toy_spec())


@pytest.fixture(scope="session")
def weights():
    return agreeing_weights(toy_spec())


@pytest.fixture(scope="session")
def oracle(package, weights):
    return Oracle(package, weights)

"""The memory table is what is allocated, to the byte, and what does not fit is refused before anything is."""

from __future__ import annotations

from pathlib import Path

import pytest

from codegen.lower import lower
from codegen.memory import memory_table as planned_table
from codegen.package import write_package
from dsl import load_spec
from dsl.reference.weights import random_weights
from runtime.engine import Engine
from runtime.errors import DoesNotFit
from runtime.package import open_package

ROOT = Path(__file__).resolve().parents[3]
SPECS = sorted([*(ROOT / "specs").glob("*.yaml"), *(ROOT / "tests" / "specs").glob("*.yaml")])
HOST_POOL = 64 << 20


@pytest.fixture(scope="module", params=SPECS, ids=[path.stem for path in SPECS])
def subject(request, tmp_path_factory):
    spec = load_spec(request.param)
    plan = lower(spec, "cpu")
    folder = tmp_path_factory.mktemp("memory") / "package"
    write_package([plan], folder, spec, request.param.name)
    return plan, open_package(folder), random_weights(spec, 0)


def test_every_role_takes_exactly_what_the_table_says(subject):
    plan, package, weights = subject
    with Engine(package, weights, host_pool=HOST_POOL) as engine:
        found: dict[str, int] = {}
        blocks = set()
        for buffer in engine.package.plan.buffers.values():
            storage = engine.buffers[buffer.name].untyped_storage()
            if storage.data_ptr() not in blocks:
                blocks.add(storage.data_ptr())
                found[buffer.role] = found.get(buffer.role, 0) + storage.nbytes()
        host = engine.scheduler.tiers.host
        tensors = [] if host is None else [*host.rows.values(), *host.pages.values()]
        found["host_pool"] = sum(tensor.untyped_storage().nbytes() for tensor in tensors)
        table = engine.stats().memory
        assert {role: size for role, size in table.items() if size} == {r: n for r, n in found.items() if n}
        assert 0 < table["host_pool"] <= HOST_POOL
        assert {str(role.value): size for role, size in planned_table(plan).items()} == {
            role: size for role, size in table.items() if role != "host_pool"
        }


def test_what_does_not_fit_is_refused_with_both_numbers_before_allocation(subject, monkeypatch):
    _, package, weights = subject
    with Engine(package, weights) as engine:
        memory = engine.stats().memory
    needed, pool = sum(memory.values()), 2 * max(HOST_POOL, *memory.values())  # the largest entry of all
    monkeypatch.setattr("runtime.memory.available_bytes", lambda device: needed + pool // 2)
    monkeypatch.setattr("runtime.buffers._allocate", lambda *_: pytest.fail("allocated"))
    with pytest.raises(DoesNotFit) as caught:
        Engine(package, weights, host_pool=pool)
    assert f"{(needed + pool // 2) / 2**20:.1f} MiB are available" in str(caught.value)
    assert "host_pool" in str(caught.value)

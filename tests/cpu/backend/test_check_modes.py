"""Check mode itself: memory that nobody wrote, contexts, graphs, settings, and what errors tell."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from checked_kernels import copy_one, copy_rows, copy_up_to, found, overlapping, take

import runtime.cpu
from codegen.catalogue import subclasses
from runtime.cpu import BadArgument, CpuBackendError, OutOfBounds, UninitialisedRead, checked, knobs, poison
from runtime.cpu.checks import mode
from runtime.cpu.errors import BadKnob
from runtime.cpu.graph import HostGraph

# ---- uninitialised memory


@triton.jit
def accumulate(x, total, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    tl.atomic_add(total, tl.sum(tl.load(x + o, mask=o < n, other=0), axis=0))  # bug: accumulates


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_reading_what_nobody_wrote(dtype: torch.dtype) -> None:
    x, y = poison(torch.empty(20, dtype=dtype)), torch.empty(20, dtype=dtype)
    x[:9] = 1
    with checked():
        copy_up_to[(1,)](x, y, 8, B=32)
    found(UninitialisedRead, "off by one", lambda: copy_up_to[(1,)](x, y, 19, B=32), lane=(9,), element=9, argument="x")
    x.zero_()
    with checked():
        copy_up_to[(1,)](x, y, 19, B=32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_poison_is_no_number(dtype: torch.dtype) -> None:
    x = poison(torch.zeros(3, 5, dtype=dtype, requires_grad=True))
    assert x.isnan().all()
    y = torch.empty(16, dtype=dtype)
    copy_up_to[(1,)](x, y, 14, B=16)  # without checks too
    assert y[:15].isnan().all()


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.uint8, torch.float8_e5m2, torch.complex128])
def test_poison_of_other_sizes_is_refused(dtype: torch.dtype) -> None:
    x = torch.zeros(4, dtype=dtype)
    with pytest.raises(BadArgument, match=rf"poison: tensor=a tensor of {dtype} .*\[cpu-bad-argument\]$"):
        poison(x)
    assert not x.float().any() if dtype is torch.float8_e5m2 else not x.any()
    for value in ([1], torch.zeros(4, device="meta"), torch.zeros(4).to_sparse()):
        with pytest.raises(BadArgument, match="a CPU tensor"):
            poison(value)


def test_poison_of_a_view_leaves_the_rest_alone() -> None:
    memory, y = torch.ones(6, 40), torch.empty(6, 20)
    poison(memory[:, 10:30].T)
    assert memory[:, 10:30].isnan().all() and memory.isnan().sum() == 120
    found(UninitialisedRead, "stride", lambda: copy_rows[(2,)](memory[:, 10:30], y, 40, 1, 6, 20, A=4, B=32), element=0)
    memory[:, 10:30] = 2
    with checked():
        copy_rows[(2,)](memory[:, 10:30], y, 40, 1, 6, 20, A=4, B=32)
    assert poison(torch.ones(1).expand(7)).isnan().all()
    assert poison(torch.ones(())).isnan() and not poison(torch.ones(0, 3)).numel()


def test_accumulating_into_what_nobody_wrote() -> None:
    x, total = torch.ones(100), poison(torch.empty(1))
    found(UninitialisedRead, "accumulates", lambda: accumulate[(2,)](x, total, 100, B=64), op="atomic", element=0)
    total.zero_()
    with checked():
        accumulate[(2,)](x, total, 100, B=64)
    assert total.item() == 100


# ---- the modes themselves


def test_graphs_check_when_they_are_replayed() -> None:
    x, y, index = torch.randn(50), torch.empty(8), torch.arange(8)
    graph = HostGraph()
    with checked(), graph.capture():
        take[(1,)](x, index, y, 8, B=16)
    graph.replay()
    assert torch.equal(y, x[:8])
    assert [name for name, _ in graph.profile(2)] == ["take"]
    index[2] = 1000
    with pytest.raises(OutOfBounds) as caught:
        graph.replay()
    assert caught.value.fields["element"] == 1000


def test_checks_end_with_the_context() -> None:
    before = mode.current()
    with checked():
        with checked(races=True):
            assert mode.current().mode == "race"
        assert mode.current().mode == "bounds"
        with pytest.raises(OutOfBounds):
            copy_up_to[(4,)](torch.randn(1000), torch.empty(1024), 1000, B=256)
    assert mode.current() == before


def test_kernels_compiled_by_other_threads_are_checked() -> None:
    async_compile = pytest.importorskip("triton.runtime._async_compile")
    x, y = torch.randn(1000), torch.empty(1024)
    with ThreadPoolExecutor(2) as executor, checked(), pytest.raises(OutOfBounds):
        with async_compile.AsyncCompileMode(executor):
            copy_up_to.warmup(x, y, 1000, B=128, grid=(8,))
        copy_up_to[(8,)](x, y, 1000, B=128)


def test_settings_that_mean_nothing_are_refused_at_once() -> None:
    for options, said in (
        ({"extent": "bogus"}, "extent='bogus' is not allowed: 'view' or 'storage'"),
        ({"same_value": True}, "same_value=True is not allowed: only with races=True"),
        ({"memory": torch.ones(3)}, "memory=a Tensor is not allowed: a tuple of tensors, as memory=(tensor,)"),
        ({"memory": (1, 2)}, "memory=a tuple is not allowed: a tuple of tensors"),
    ):
        with pytest.raises(BadArgument) as caught:
            checked(**options)
        assert f"checked: {said}" in str(caught.value) and str(caught.value).endswith("[cpu-bad-argument]")


def test_checked_source_has_a_name_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    x, y = torch.randn(100), torch.empty(128)
    for way in (checked(), checked(races=True)):
        with way:
            copy_rows[(2,)](x, y, 10, 1, 4, 10, A=2, B=16)
    assert {file.name for file in tmp_path.rglob("*.c")} == {"copy_rows.bounds.c", "copy_rows.race.c"}


def test_every_error_is_known_where_users_import_it_from() -> None:
    for cls in subclasses(CpuBackendError):
        assert getattr(runtime.cpu, cls.__name__) is cls and cls.__name__ in runtime.cpu.__all__
        assert cls.__module__ == "runtime.cpu"
    assert all(hasattr(runtime.cpu, name) for name in runtime.cpu.__all__)


def test_every_field_of_an_error_is_on_the_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "cpu-backend.md").read_text()
    x, memory = torch.randn(1000), torch.zeros(96)
    errors = []
    for run in (lambda: copy_up_to[(4,)](x, torch.empty(1024), 1000, B=256), lambda: overlapping[(2,)](x, x, B=32),
                lambda: copy_one[(2,)](memory[:64], memory[32:], B=32)):  # fmt: skip
        with checked(races=True), pytest.raises(CpuBackendError) as caught:
            run()
        errors.append(caught.value)
    named = {name for error in errors for name in error.fields} | {"link", "link_op", "link_source", "exact"}
    assert [name for name in sorted(named) if f"`{name}`" not in page] == []


def test_errors_survive_copying() -> None:
    x, y = torch.randn(1000), torch.empty(1024)
    with checked(), pytest.raises(OutOfBounds) as caught:
        copy_up_to[(4,)](x, y, 1000, B=256)
    assert pickle.loads(pickle.dumps(caught.value)).fields == caught.value.fields


@pytest.mark.parametrize("value", ["yes please", "race,fast"])
def test_unknown_words_are_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("STEPFORGE_CPU_CHECK", value)
    with pytest.raises(BadKnob, match="STEPFORGE_CPU_CHECK"):
        knobs.check()

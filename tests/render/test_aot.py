"""Ahead-of-time compilation: what is current is not compiled again, what is stale goes, a failure names the kernel."""

import os
import shutil
import subprocess
import uuid
from pathlib import Path

import pytest

from codegen.aot import INDEX, compile_package
from codegen.errors import BuildFailed
from codegen.lower import lower
from codegen.package import write_package
from codegen.plan import Plan
from dsl import load_spec

SPEC = Path(__file__).resolve().parents[2] / "specs" / "tiny-hybrid.yaml"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Path]:
    """A package for one CUDA target, compiled once."""
    spec = load_spec(SPEC)
    plan = lower(spec, "cuda:90")
    package = tmp_path_factory.mktemp("aot") / "package"
    write_package([plan], package, spec, SPEC.name)
    compile_package(plan, package)
    return plan, package


def recompiled(plan: Plan, package: Path) -> list[str]:
    kernels: list[str] = []
    compile_package(plan, package, progress=lambda kernel, done, total: kernels.append(kernel))
    return kernels


def test_nothing_is_compiled_when_nothing_changed(built: tuple[Plan, Path]) -> None:
    assert recompiled(*built) == []


def test_one_changed_kernel_is_compiled_alone_and_its_old_binary_goes(built: tuple[Plan, Path]) -> None:
    plan, package = built
    cache = package / "cache" / "cuda_90"
    before = {folder.name for folder in cache.iterdir() if folder.is_dir()}
    source = package / "cuda_90" / "kernels" / "prefill_advance.py"
    text = source.read_text()
    source.write_text(
        text.replace("tl.store(state_len + slot, length)", "tl.store(state_len + slot, length + 0 * slot)")
    )
    assert recompiled(plan, package) == ["prefill_advance"]
    after = {folder.name for folder in cache.iterdir() if folder.is_dir()}
    assert len(after) == len(before)
    assert len(after - before) <= 1
    source.write_text(text)
    assert recompiled(plan, package) == ["prefill_advance"]


def test_a_damaged_index_means_compiling_again_not_failing(built: tuple[Plan, Path]) -> None:
    plan, package = built
    (package / "cache" / "cuda_90" / INDEX).write_text("{ this is no json")
    assert len(recompiled(plan, package)) == sum(len(kernel.row_tiles) or 1 for kernel in plan.kernels)


def test_a_kernel_that_does_not_compile_is_named(built: tuple[Plan, Path]) -> None:
    plan, package = built
    source = package / "cuda_90" / "kernels" / "save_rows.py"
    text = source.read_text()
    source.write_text(text.replace("tl.program_id(0)", "tl.no_such_thing(0)"))
    with pytest.raises(BuildFailed, match="save_rows"):
        compile_package(plan, package)
    source.write_text(text)


def test_a_missing_or_damaged_binary_is_compiled_again(built: tuple[Plan, Path]) -> None:
    plan, package = built
    cache = package / "cache" / "cuda_90"
    cubins = sorted(cache.glob("*/prefill_advance.cubin"))
    assert len(cubins) == 1
    cubins[0].write_bytes(cubins[0].read_bytes()[:100])
    assert recompiled(plan, package) == ["prefill_advance"]
    shutil.rmtree(next(cache.glob("*/embed_rows.cubin")).parent)
    assert recompiled(plan, package) == ["embed_rows"]
    assert recompiled(plan, package) == []


def test_what_a_killed_compiler_left_goes_and_what_a_living_one_writes_stays(built: tuple[Plan, Path]) -> None:
    plan, package = built
    folder = next((package / "cache" / "cuda_90").glob("*/embed_rows.cubin")).parent
    ended = subprocess.Popen(["true"])
    ended.wait()
    left, written = (folder / f"tmp.pid_{pid}_{uuid.uuid4()}" for pid in (ended.pid, os.getpid()))
    for half in (left, written):
        half.mkdir()
        (half / "embed_rows.cubin").write_bytes(b"half")
    (folder / "embed_rows.cubin").unlink()
    # the folder is made anew, what lies in it too: put them there once its kernel is compiled, before the sweep
    moved = {half: half.rename(package / half.name) for half in (left, written)}

    def put_back(kernel: str, done: int, total: int) -> None:
        for half, away in moved.items():
            away.rename(half)

    compile_package(plan, package, progress=put_back)
    assert not left.exists() and written.exists()
    shutil.rmtree(written)
    assert recompiled(plan, package) == []

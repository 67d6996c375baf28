"""Opening packages: damage is refused by name, several live side by side, compiled kernels stay with their package."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from runtime import errors, kernel_cache
from runtime.cpu.errors import KernelDamaged
from runtime.engine import Engine
from runtime.layouts import laid_out, panel, rope_table
from runtime.package import open_package
from runtime.plan import Buffer, Source
from runtime.weights import open_weights
from tests.cpu.engine.toys import Ask, drain, toy_spec, write_toy

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def copy(package, tmp_path):
    """A copy that may be damaged, without its kernel cache."""
    shutil.copytree(package.path, tmp_path / "copy", ignore=lambda folder, names: {"cache", "__pycache__"} & set(names))
    return tmp_path / "copy"


def test_a_copy_opens_under_its_own_module_name(package, copy):
    other = open_package(copy)
    assert other.plan == package.plan
    assert other.step.__name__ != package.step.__name__
    assert open_package(copy).step is other.step


@pytest.mark.parametrize("name", ["cpu/plan.json", "cpu/step.py", "cpu/kernels/sample.py"])
def test_a_changed_or_missing_file_is_refused_by_name(copy, name):
    with (copy / name).open("a") as file:
        file.write("\n")
    with pytest.raises(errors.PackageDamaged, match=name):
        open_package(copy)
    (copy / name).unlink()
    with pytest.raises(errors.PackageDamaged, match=f"{name} is missing"):
        open_package(copy)


def change_manifest(path, **changes):
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({k: v for k, v in (manifest | changes).items() if v is not None}))


def test_manifests_that_are_absent_damaged_or_newer_are_refused(copy):
    change_manifest(copy, format=99)
    with pytest.raises(errors.PackageTooNew, match="99"):
        open_package(copy)
    change_manifest(copy, format=1, targets=None)
    with pytest.raises(errors.PackageDamaged, match="targets"):
        open_package(copy)
    (copy / "manifest.json").write_text("{")
    with pytest.raises(errors.PackageDamaged, match=r"manifest\.json"):
        open_package(copy)
    (copy / "manifest.json").unlink()
    with pytest.raises(errors.PackageNotFound):
        open_package(copy)


def test_a_target_that_was_not_built_is_refused(package, copy):
    with pytest.raises(errors.TargetMissing, match=r"cuda:90.*it has: cpu"):
        open_package(package.path, "cuda:90")
    change_manifest(copy, targets={})
    with pytest.raises(errors.TargetMissing):
        open_package(copy)


def test_two_packages_run_in_one_process(package, weights, oracle, tmp_path, cache):
    other = write_toy(tmp_path / "other", cache, toy_spec(page_size=16))
    ask = Ask(tuple(b"two at once"), 20, temperature=0.9, seed=4)
    engines = [Engine(package, weights), Engine(other, weights)]
    requests = [ask.submit(engine) for engine in engines]
    while any(engine.busy for engine in engines):
        for engine in engines:
            engine.step()
    first, second = requests
    assert first.output == oracle(ask)[0]
    assert len(second.output) == len(first.output)


def files_below(folder):
    return {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def moved(package, weights, tmp_path):
    """A copy of the package in another place, its kernels with it."""
    with Engine(package, weights, drafts=1) as warm:
        warm.generate([1, 2, 3], max_new_tokens=4)
    shutil.copytree(package.path, tmp_path / "moved")
    return tmp_path / "moved"


def test_kernels_are_found_again_after_the_package_moved(moved, weights):
    before = files_below(moved / "cache")
    with Engine(moved, weights, drafts=1) as engine:
        engine.generate([1, 2, 3], max_new_tokens=4)
    assert files_below(moved / "cache") == before


def test_a_read_only_package_keeps_its_kernels_and_new_ones_go_to_the_user(moved, weights, tmp_path, monkeypatch):
    from triton import knobs

    monkeypatch.setattr(kernel_cache, "writable", lambda _: False)
    for path in list((moved / "cache").rglob("sample.json")):
        shutil.rmtree(path.parent)
    before = files_below(moved / "cache")
    with knobs.cache.scope(), Engine(moved, weights, drafts=1) as engine:
        knobs.cache.home_dir = str(tmp_path / "home")
        engine.generate([1, 2, 3], max_new_tokens=4)
    assert files_below(moved / "cache") == before
    new = {path.name for path in files_below(tmp_path / "home") if path.suffix == ".json"}
    assert "sample.json" in new and len({name for name in new if not name.startswith("__grp__")}) == 1


@pytest.mark.parametrize("name", ["cache", "cache/cpu"])
def test_a_file_where_the_cache_belongs_means_the_user_s_cache(copy, cache, weights, monkeypatch, name):
    from triton import knobs

    (copy / name).parent.mkdir(exist_ok=True)
    (copy / name).write_text("")
    with knobs.cache.scope(), Engine(copy, weights, drafts=1) as engine:
        knobs.cache.dir = str(cache / "cpu")
        assert len(engine.generate([1, 2, 3], max_new_tokens=4).tokens) == 4
    assert (copy / name).is_file()


def test_a_damaged_kernel_is_one_clear_error_and_damaged_metadata_is_made_again(moved, weights, tmp_path):
    kernels = {kernel: kernel.read_bytes() for kernel in (moved / "cache").rglob("sample.so")}
    for kernel, good in kernels.items():
        kernel.write_bytes(good[: len(good) // 2])
    with Engine(moved, weights, drafts=1) as engine, pytest.raises(KernelDamaged, match="sample"):
        engine.generate([1, 2, 3], max_new_tokens=4)
    assert not engine.busy
    for kernel, good in kernels.items():
        kernel.write_bytes(good)
        kernel.with_suffix(".json").write_text("{")
    shutil.copytree(moved, tmp_path / "again")
    with Engine(tmp_path / "again", weights, drafts=1) as engine:
        engine.generate([1, 2, 3], max_new_tokens=4)


def test_the_cache_scope_leaves_no_trace(tmp_path):
    from triton import knobs

    before, environment = knobs.cache.dir, dict(os.environ)
    with kernel_cache.cache_scope(tmp_path / "a", tmp_path), kernel_cache.cache_scope(tmp_path / "b", tmp_path):
        assert knobs.cache.dir == str(tmp_path / "b")
    assert knobs.cache.dir == before and dict(os.environ) == environment


@given(data=st.data())
def test_panels_hold_pairs_of_k_for_blocks_of_n(data: st.DataObject) -> None:
    """Any number of tensors and rows, any K, odd ones too, any part of a larger tensor; all else is zero."""
    k, block_n, spare = (data.draw(st.integers(low, 9)) for low in (1, 1, 0))
    dtype = data.draw(st.sampled_from([torch.bfloat16, torch.float32]))
    sizes = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=3))
    skipped = data.draw(st.integers(0, 2))
    draw = torch.Generator().manual_seed(0)
    sources = [torch.randn(n * k + skipped, generator=draw).to(dtype)[skipped:].view(n, k) for n in sizes]
    panels, pairs = -(-sum(sizes) // block_n) + spare % 2, (k + 1) // 2 + spare
    whole = torch.zeros(panels * block_n, 2 * pairs, dtype=dtype)
    whole[: sum(sizes), :k] = torch.cat(sources)
    out = panel(sources, (panels, pairs, block_n, 2))
    assert out.shape == (panels, pairs, block_n, 2) and out.is_contiguous()
    for p, i, n, j in itertools.product(range(panels), range(pairs), range(block_n), range(2)):
        assert out[p, i, n, j] == whole[p * block_n + n, 2 * i + j]


def test_other_layouts_and_rope_tables():
    tensor = torch.randn(3, 2)
    transposed = Buffer("b", (2, 3), "fp32", "weight", "zero", "transposed", (Source("t", (3, 2), "fp32"),), 0.0)
    assert torch.equal(laid_out(transposed, [tensor]), tensor.T)
    cos = rope_table(Buffer("c", (7, 4), "fp32", "table", "rope_cos", "plain", (), 10000.0))
    sin = rope_table(Buffer("s", (7, 4), "fp32", "table", "rope_sin", "plain", (), 10000.0))
    for position in range(7):
        for i in range(4):
            angle = position * 10000.0 ** (-2 * i / 8)
            assert cos[position, i].item() == pytest.approx(math.cos(angle), abs=6e-8)
            assert sin[position, i].item() == pytest.approx(math.sin(angle), abs=6e-8)


def test_file_and_memory_weights_are_the_same(package, weights, tmp_path, oracle):
    path = tmp_path / "weights.safetensors"
    save_file(weights, path)
    opened = open_weights(path)
    assert set(opened.names()) == set(weights)
    ask = Ask((5, 6, 7), 12)
    with Engine(package, path, drafts=2) as engine:
        request = ask.submit(engine)
        drain(engine)
        assert request.output == oracle(ask)[0]
    path.write_bytes(b"\x80\x04not safetensors")
    with pytest.raises(errors.WeightsUnreadable, match=str(path)):
        open_weights(path)


def run(*arguments, cwd=ROOT):
    command = [sys.executable, "-m", "runtime", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=120)


def test_command_line_generates_what_the_engine_does(package, weights, tmp_path):
    path = tmp_path / "weights.safetensors"
    save_file(weights, path)
    options = ("--weights", path, "--max-new-tokens", 16, "--temperature", 1, "--seed", 3)
    with Engine(package, weights) as engine:
        result = engine.generate("hello", max_new_tokens=16, temperature=1.0, seed=3)
    done = run("generate", package.path, "--prompt", "hello", *options, "--json")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert (figures["tokens"], figures["text"]) == (list(result.tokens), result.text)
    benched = run(
        "bench", package.path, "--weights", path, "--prompt-tokens", 20, "--new-tokens", 30, "--batch", 2, "--json"
    )
    assert benched.returncode == 0, benched.stderr
    figures = json.loads(benched.stdout)
    assert figures["launches"] > 0 and figures["decode_tokens_per_s"] > 0 and figures["host_us"]["p50"] > 0
    assert sum(row["launches"] for row in figures["kernels"]) == figures["launches"]


def test_command_line_reports_mistakes_in_one_line(package, tmp_path):
    for arguments, code in (
        (("generate", tmp_path, "--prompt", "x"), "package-not-found"),
        (("generate", package.path, "--prompt", "x"), "weights-not-found"),
        (("bench", package.path, "--weights", tmp_path), "weights-not-found"),
    ):
        done = run(*arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert done.stdout == "" and len(done.stderr.strip().splitlines()) == 1 and f"[{code}]" in done.stderr


def test_output_that_cannot_be_written_ends_without_a_traceback(package, weights, tmp_path):
    path = tmp_path / "weights.safetensors"
    save_file(weights, path)
    command = [sys.executable, "-m", "runtime", "generate", str(package.path), "--prompt", "x", "--weights", str(path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])}
    options = {"stderr": subprocess.PIPE, "text": True, "cwd": ROOT, "env": environment, "timeout": 120}
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, **options)
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1 and "[output]" in done.stderr
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*command, "--json"], stdout=writer, **options)
    os.close(writer)
    assert (done.returncode, done.stderr.strip()) == (1, "")

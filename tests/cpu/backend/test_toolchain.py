"""Compiling in several processes at once, and the cache between processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.cpu import pool, toolchain
from runtime.cpu.errors import KernelDamaged

KERNEL = """
import torch, triton, triton.language as tl

@triton.jit
def double(x, y, B: tl.constexpr):
    o = tl.arange(0, B)
    tl.store(y + o, tl.load(x + o) * 2)

x, y = torch.randn(64), torch.empty(64)
double[(1,)](x, y, B=64)
assert torch.equal(y, x * 2)
"""


def test_processes_compile_the_same_kernel_at_once(tmp_path: Path) -> None:
    script = tmp_path / "kernel.py"
    script.write_text(KERNEL)
    env = os.environ | {"TRITON_CACHE_DIR": str(tmp_path / "cache"), "STEPFORGE_CPU_CHECK": "0"}
    processes = [subprocess.Popen([sys.executable, str(script)], env=env) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    sources = list((tmp_path / "cache").rglob("double.c"))
    assert len(sources) == 1
    assert list((tmp_path / "cache").rglob("pool.so"))


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "half": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "zeros": lambda content: content[:512] + bytes(len(content) - 1024) + content[-512:],
    "one bit": lambda content: content[:5000] + bytes([content[5000] ^ 1]) + content[5001:],
    "no seal": lambda content: content[: -toolchain.SEAL_BYTES],
    "seal alone": lambda content: content[-toolchain.SEAL_BYTES :],
}


def _run(script: Path, cache: Path) -> subprocess.CompletedProcess:
    env = os.environ | {"TRITON_CACHE_DIR": str(cache), "STEPFORGE_CPU_CHECK": "0"}
    return subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True, check=False)


def test_damaged_objects_are_refused_or_made_again(tmp_path: Path) -> None:
    script, cache = tmp_path / "kernel.py", tmp_path / "cache"
    script.write_text(KERNEL)
    assert _run(script, cache).returncode == 0
    [kernel], [library] = cache.rglob("double.so"), cache.rglob("pool.so")
    good = kernel.read_bytes()
    assert toolchain.is_intact(good) and toolchain.is_intact(library.read_bytes())
    kernel.write_bytes(DAMAGE["half"](good))
    done = _run(script, cache)
    assert done.returncode == 1 and "[cpu-kernel-damaged]" in done.stderr, done.stderr
    kernel.write_bytes(good)
    library.write_bytes(library.read_bytes()[:1000])
    done = _run(script, cache)
    assert done.returncode == 0, done.stderr
    assert toolchain.is_intact(library.read_bytes())


def test_what_is_no_intact_object_is_not_loaded() -> None:
    good = toolchain.build_kernel("int answer(void) { return 42; }", "answer")
    assert pool.load_object("answer", good).answer() == 42
    for content in (b"\x7fELF", toolchain.sealed(b"no ELF"), *(damage(good) for damage in DAMAGE.values())):
        with pytest.raises(KernelDamaged, match="build the package again"):
            pool.load_object("thing", content)

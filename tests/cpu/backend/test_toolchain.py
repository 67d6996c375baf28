"""Compiling in several processes at once, and the cache between processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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
    env = os.environ | {"TRITON_CACHE_DIR": str(tmp_path / "cache")}
    processes = [subprocess.Popen([sys.executable, str(script)], env=env) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    sources = list((tmp_path / "cache").rglob("double.c"))
    assert len(sources) == 1
    assert list((tmp_path / "cache").rglob("pool.so"))

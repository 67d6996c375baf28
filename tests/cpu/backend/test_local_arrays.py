"""Arrays on a kernel's stack hold what was written to them, however a tensor used in the same loop is addressed.

gcc 12 addresses such an array by its distance from a tensor when it loses sight of what the tensor's address is made
of, and then drops the writes to the array (see KERNEL_FLAGS in runtime/cpu/toolchain.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from runtime.cpu import checked, knobs

DTYPES = (torch.int32, torch.int64, torch.float32, torch.float64)
LENGTHS = (32, 128, 256, 512, 1024)
BEFORE = 7


@triton.jit
def twice(value: tl.constexpr, element_ty: tl.constexpr, N: tl.constexpr):
    """`value` N times, in an array that two loops fill."""
    half = tl.full([N // 2], value, element_ty)
    return tl.cat(half, half, can_reorder=True)


@triton.jit
def row(pointer, N: tl.constexpr):
    """N addresses of this program's own: its place in the grid is added first."""
    return pointer + (tl.program_id(0) + tl.program_id(1) * tl.num_programs(0)) * N + tl.arange(0, N)


@triton.jit
def masked_store(x, y, x_number, y_number, N: tl.constexpr):
    v = twice(3, y.dtype.element_ty, N)
    tl.store(row(y, N), v, mask=v < 5)


@triton.jit
def masked_load(x, y, x_number, y_number, N: tl.constexpr):
    v = twice(3, y.dtype.element_ty, N)
    tl.store(y + tl.arange(0, N), tl.load(row(x, N), mask=v < 5, other=9))


@triton.jit
def selected_load(x, y, x_number, y_number, N: tl.constexpr):
    v = twice(3, y.dtype.element_ty, N)
    tl.store(row(y, N), tl.where(v < 5, tl.load(row(x, N)), v))


@triton.jit
def masked_exchange(x, y, x_number, y_number, N: tl.constexpr):
    v = twice(3, y.dtype.element_ty, N)
    tl.atomic_xchg(row(y, N), v, mask=v < 5)


@triton.jit
def store_at_number(x, y, x_number, y_number, N: tl.constexpr):
    tl.store(y_number.to(y.dtype) + tl.arange(0, N), twice(3, y.dtype.element_ty, N))


@triton.jit
def store_at_numbers(x, y, x_number, y_number, N: tl.constexpr):
    size: tl.constexpr = y.dtype.element_ty.primitive_bitwidth // 8
    numbers = y_number + tl.arange(0, N) * size
    tl.store(numbers.to(y.dtype), twice(3, y.dtype.element_ty, N))


@triton.jit
def load_at_number(x, y, x_number, y_number, N: tl.constexpr):
    v = tl.load(x_number.to(x.dtype) + tl.arange(0, N))
    tl.store(y + tl.arange(0, N), v + twice(0, y.dtype.element_ty, N))


def of_threes(x: torch.Tensor) -> torch.Tensor:
    return torch.full_like(x, 3)


KERNELS = {
    masked_store: of_threes,
    masked_load: torch.clone,
    selected_load: torch.clone,
    masked_exchange: of_threes,
    store_at_number: of_threes,
    store_at_numbers: of_threes,
    load_at_number: torch.clone,
}


def wrong(kernel: triton.JITFunction, dtype: torch.dtype) -> list[int]:
    """Lengths at which `kernel` leaves anything but what it must."""
    found = []
    for n in LENGTHS:
        x, y = torch.arange(n).remainder(100).to(dtype), torch.full((n,), BEFORE, dtype=dtype)
        kernel[(1,)](x, y, x.data_ptr(), y.data_ptr(), N=n)
        if not torch.equal(y, KERNELS[kernel](x)):
            found.append(n)
    return found


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_an_array_beside_a_tensor(kernel: triton.JITFunction, dtype: torch.dtype) -> None:
    assert wrong(kernel, dtype) == []


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_an_array_beside_a_tensor_in_checked_kernels(kernel: triton.JITFunction) -> None:
    with checked():
        assert wrong(kernel, torch.int64) == []


@pytest.mark.parametrize("isa", [level for level in knobs.ISA_LEVELS if level != "native"])
def test_an_array_beside_a_tensor_at_every_level(isa: str, tmp_path: Path) -> None:
    """The level holds for a whole process."""
    env = os.environ | {"STEPFORGE_CPU_ISA": isa, "TRITON_CACHE_DIR": str(tmp_path), "STEPFORGE_CPU_CHECK": "0"}
    found = subprocess.run([sys.executable, __file__], env=env, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


def main() -> int:
    """Every kernel with 32- and 64-bit elements at this process's level; exit status 1 if one is wrong."""
    failures = [
        (k.__name__, dtype, n) for k in KERNELS for dtype in (torch.int32, torch.int64) for n in wrong(k, dtype)
    ]
    print(*failures, sep="\n")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())

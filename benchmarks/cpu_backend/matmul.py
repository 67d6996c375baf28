"""Square matmuls against torch.mm."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from .measure import Contest

REQUIRED = 0.9
SIZE = 512
TOLERANCES = {torch.bfloat16: 0.5, torch.float32: 1e-3}
BLOCKS = {torch.bfloat16: (256, 128, 128), torch.float32: (128, 128, 64)}


@triton.jit
def matmul(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr, GROUP_SIZE_M: tl.constexpr,
):  # fmt: skip
    """C = A B. Source: Triton's tutorial 03, matmul_kernel, without activation, C in the type of its pointer."""
    pid = tl.program_id(axis=0)
    num_pid_m = tl.cdiv(M, BLOCK_SIZE_M)
    num_pid_n = tl.cdiv(N, BLOCK_SIZE_N)
    num_pid_in_group = GROUP_SIZE_M * num_pid_n
    group_id = pid // num_pid_in_group
    first_pid_m = group_id * GROUP_SIZE_M
    group_size_m = min(num_pid_m - first_pid_m, GROUP_SIZE_M)
    pid_m = first_pid_m + ((pid % num_pid_in_group) % group_size_m)
    pid_n = (pid % num_pid_in_group) // group_size_m

    offs_am = (pid_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)) % M
    offs_bn = (pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)) % N
    offs_k = tl.arange(0, BLOCK_SIZE_K)
    a_ptrs = a_ptr + (offs_am[:, None] * stride_am + offs_k[None, :] * stride_ak)
    b_ptrs = b_ptr + (offs_k[:, None] * stride_bk + offs_bn[None, :] * stride_bn)

    accumulator = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_SIZE_K)):
        a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k * BLOCK_SIZE_K, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BLOCK_SIZE_K, other=0.0)
        accumulator = tl.dot(a, b, accumulator)
        a_ptrs += BLOCK_SIZE_K * stride_ak
        b_ptrs += BLOCK_SIZE_K * stride_bk

    offs_cm = pid_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)
    offs_cn = pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
    c_ptrs = c_ptr + stride_cm * offs_cm[:, None] + stride_cn * offs_cn[None, :]
    c_mask = (offs_cm[:, None] < M) & (offs_cn[None, :] < N)
    tl.store(c_ptrs, accumulator.to(c_ptr.dtype.element_ty), mask=c_mask)


def contests() -> Iterator[Contest]:
    """bf16 and fp32, row-major operands, and bf16 with a transposed right one."""
    for dtype in (torch.bfloat16, torch.float32):
        for layout in ("NN", "NT"):
            yield _contest(dtype, layout)


def _contest(dtype: torch.dtype, layout: str) -> Contest:
    a, b = (torch.randn(SIZE, SIZE).to(dtype) for _ in range(2))
    b, c = b.t() if layout == "NT" else b, torch.empty(SIZE, SIZE, dtype=dtype)
    block_m, block_n, block_k = BLOCKS[dtype]

    def ours() -> None:
        matmul[(triton.cdiv(SIZE, block_m) * triton.cdiv(SIZE, block_n),)](
            a, b, c, SIZE, SIZE, SIZE, *a.stride(), *b.stride(), *c.stride(),
            BLOCK_SIZE_M=block_m, BLOCK_SIZE_N=block_n, BLOCK_SIZE_K=block_k, GROUP_SIZE_M=8,
        )  # fmt: skip

    def theirs() -> torch.Tensor:
        return torch.mm(a, b)

    def check() -> None:
        ours()
        torch.testing.assert_close(c, theirs(), atol=TOLERANCES[dtype], rtol=2e-2)

    return Contest(
        f"matmul {str(dtype).removeprefix('torch.')}", f"{SIZE}^3 {layout}", REQUIRED, ours, check, theirs=theirs
    )

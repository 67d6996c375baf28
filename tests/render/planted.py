"""Kernels that each break one rule of `codegen inspect`, and the compiler for them."""

from __future__ import annotations

from functools import cache
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from codegen.aot_worker import cubin_usage, disassemble
from codegen.inspect import Compiled


@cache
def compiled(kernel: Any, signature: str, target: str, **options: Any) -> Compiled:
    """Compile for `cuda:<sm>` without a GPU. signature: types of the parameters, e.g. "*fp32, *fp32, i32"."""
    names = kernel.arg_names
    source = ASTSource(kernel, dict(zip(names, signature.split(", "), strict=True)), {}, {})
    options = {"num_warps": 4, "enable_fp_fusion": False} | options
    made = triton.compile(source, target=GPUTarget("cuda", int(target.removeprefix("cuda:")), 32), options=options)
    usage = cubin_usage(made.asm["cubin"])
    return Compiled(
        kernel=kernel.__name__,
        target=target,
        row_tile=None,
        num_warps=made.metadata.num_warps,
        registers=usage["REG"],
        spill_bytes=usage["STACK"] + usage["LOCAL"],
        shared_bytes=made.metadata.shared,
        tensor_columns=made.metadata.tmem_size,
        ttir=made.asm["ttir"],
        ptx_text=made.asm["ptx"],
        sass_text=disassemble(made.asm["cubin"]),
    )


@triton.jit
def wide_tile(x, y):
    """More values alive in one warp than it has registers."""
    o = tl.arange(0, 128)[:, None] * 128 + tl.arange(0, 128)[None, :]
    first = tl.load(x + o)
    second = tl.load(x + 16384 + o)
    for i in range(8):
        first = first * second + i
        second = second * first
    tl.store(y + o, first)
    tl.store(y + 16384 + o, second)


@triton.jit
def deep_dot(x, w, y):
    """Operands of 256 KiB and more for one dot."""
    o_m, o_k, o_n = tl.arange(0, 128), tl.arange(0, 512), tl.arange(0, 128)
    b_x = tl.load(x + o_m[:, None] * 512 + o_k[None, :])
    b_w = tl.load(w + o_k[:, None] * 128 + o_n[None, :])
    tl.store(y + o_m[:, None] * 128 + o_n[None, :], tl.dot(b_x, b_w))


@triton.jit
def dot_of_16_rows(x, w, y):
    """A dot as the matmul template has it, apart from the types of its pointers."""
    o_m, o_k, o_n = tl.arange(0, 16), tl.arange(0, 32), tl.arange(0, 32)
    b_x = tl.load(x + o_m[:, None] * 32 + o_k[None, :])
    b_w = tl.load(w + o_k[:, None] * 32 + o_n[None, :])
    tl.store(y + o_m[:, None] * 32 + o_n[None, :], tl.dot(b_x, b_w))


@triton.jit
def dot_of_fp32_said_so(x, w, y):
    """A dot of fp32 that asks for fp32."""
    o_m, o_k, o_n = tl.arange(0, 16), tl.arange(0, 32), tl.arange(0, 32)
    b_x = tl.load(x + o_m[:, None] * 32 + o_k[None, :])
    b_w = tl.load(w + o_k[:, None] * 32 + o_n[None, :])
    tl.store(y + o_m[:, None] * 32 + o_n[None, :], tl.dot(b_x, b_w, input_precision="ieee"))


@triton.jit
def dot_into_fp16(x, w, y):
    """A dot that accumulates in 16 bits."""
    o_m, o_k, o_n = tl.arange(0, 16), tl.arange(0, 32), tl.arange(0, 32)
    b_x = tl.load(x + o_m[:, None] * 32 + o_k[None, :])
    b_w = tl.load(w + o_k[:, None] * 32 + o_n[None, :])
    tl.store(y + o_m[:, None] * 32 + o_n[None, :], tl.dot(b_x, b_w, out_dtype=tl.float16))


@triton.jit
def dot_of_128_rows(x, w, y):
    """A dot that the wide instructions of sm_90 and sm_100 are for."""
    o_m, o_k, o_n = tl.arange(0, 128), tl.arange(0, 64), tl.arange(0, 64)
    b_x = tl.load(x + o_m[:, None] * 64 + o_k[None, :])
    b_w = tl.load(w + o_k[:, None] * 64 + o_n[None, :])
    tl.store(y + o_m[:, None] * 64 + o_n[None, :], tl.dot(b_x, b_w))


@triton.jit
def product_and_sum(x, y):
    """A product that is added to something: one rounding if the compiler may contract it."""
    o = tl.arange(0, 128)
    tl.store(y + o, tl.load(x + o) * tl.load(y + o) + tl.load(x + 128 + o))


@triton.jit
def sum_of_products(x, y):
    """A reduction of products, contracted inside the reduction if that is allowed."""
    o = tl.arange(0, 1024)
    tl.store(y, tl.sum(tl.load(x + o) * tl.load(y + o), axis=0))


@triton.jit
def product_beside_fma(x, y):
    """A line where nobody could tell a contraction from what was asked for."""
    o = tl.arange(0, 128)
    tl.store(y + o, tl.fma(tl.load(x + o), tl.load(y + o), 1.0) + tl.load(x + o) * tl.load(y + o))


@triton.jit
def assembly_fma(x, y):
    """A multiply-add that the IR does not show."""
    o = tl.arange(0, 128)
    a = tl.load(x + o)
    tl.store(y + o, tl.inline_asm_elementwise("fma.rn.f32 $0, $1, $1, $1;", "=r,r", [a], tl.float32, True, 1))


@triton.jit
def logarithm_and_fma(x, y):
    """Multiply-adds that are meant: an elementary function's own, and one asked for."""
    o = tl.arange(0, 128)
    a = tl.log(tl.load(x + o))
    tl.store(y + o, tl.fma(a, tl.load(y + o), 1.0))


@triton.jit
def bf16_sum(x, y):
    """Arithmetic that rounds to 16 bits where no rounding is named."""
    o = tl.arange(0, 128)
    tl.store(
        y + o,
        tl.inline_asm_elementwise(
            "add.rn.f16 $0, $1, $2;", "=h,h,h", [tl.load(x + o), tl.load(y + o)], tl.float16, True, 1
        ),
    )


@triton.jit
def double_sum(x, y):
    """A sum in fp64."""
    o = tl.arange(0, 128)
    wide = tl.load(x + o).to(tl.float64)
    tl.store(y + o, (wide * wide * wide + tl.load(y + o)).to(tl.float32))


@triton.jit
def racing_sum(x, y):
    """A sum in the order in which programs happen to come."""
    tl.atomic_add(y, tl.sum(tl.load(x + tl.arange(0, 128)), axis=0))

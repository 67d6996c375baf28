"""What `tests/cpu/fuzz/versions.py` says of the running Triton's front end, and of the versions themselves."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton.compiler import CompilationError

from tests.cpu.fuzz import versions
from tests.cpu.fuzz.versions import holds


def test_facts_are_about_the_triton_that_is_imported() -> None:
    """Its version is read from the installed metadata, and an environment may have several."""
    assert holds((f"triton=={triton.__version__}",))
    assert holds(versions.ALWAYS) and not holds(versions.NEVER)
    assert holds(("numpy>=1",)) and not holds(("numpy>=1", "triton<1"))


@triton.jit
def negated(x, out, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(out + i, -tl.load(x + i))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_minus_zero_is_zero_only_where_minus_subtracts(dtype: torch.dtype) -> None:
    x, out = torch.tensor([0.0, -0.0, 1.0, -2.0], dtype=dtype), torch.ones(4, dtype=dtype)
    negated[(1,)](x, out, n=4)
    assert out.tolist() == [0, 0, -1, 2]
    assert out.signbit().tolist() == [not holds(versions.MINUS_SUBTRACTS), False, True, False]


@triton.jit
def widths(x, out, n: tl.constexpr):
    """Bits of what each operation makes of x."""
    v = tl.load(x + tl.arange(0, n))
    tl.store(out, tl.maximum(v, v).dtype.primitive_bitwidth)
    tl.store(out + 1, tl.minimum(v, v).dtype.primitive_bitwidth)
    tl.store(out + 2, tl.clamp(v, v, v).dtype.primitive_bitwidth)
    tl.store(out + 3, tl.cumsum(v, 0).dtype.primitive_bitwidth)


def test_bf16_widens_in_extremes_and_cumulative_sums_or_does_not() -> None:
    out = torch.zeros(4, dtype=torch.int32)
    widths[(1,)](torch.ones(4, dtype=torch.bfloat16), out, n=4)
    assert out.tolist() == [32 if holds(versions.BF16_WIDENS) else 16] * 4


@triton.jit
def products(x, out, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(out + i, tl.cumprod(tl.load(x + i), 0))


def test_cumulative_products_of_small_integers_widen_or_wrap() -> None:
    out = torch.zeros(4, dtype=torch.int32)
    products[(1,)](torch.tensor([16, 17, 3, 5], dtype=torch.uint8), out, n=4)
    wide = [16, 272, 816, 4080]
    assert out.tolist() == (wide if holds(versions.PRODUCTS_WIDEN) else [v % 256 for v in wide])


@triton.jit
def block(x, out, n: tl.constexpr):
    p = tl.make_block_ptr(x, (n,), (1,), (0,), (n,), (0,))
    tl.store(out + tl.arange(0, n), tl.load(p))


@pytest.mark.filterwarnings("ignore:tl.make_block_ptr")
def test_block_pointers_load_or_are_refused() -> None:
    x, out = torch.randn(4), torch.zeros(4)
    if holds(versions.BLOCK_POINTERS):
        block[(1,)](x, out, n=4)
        assert torch.equal(out, x)
    else:
        with pytest.raises(CompilationError, match="Block pointers have been removed"):
            block[(1,)](x, out, n=4)

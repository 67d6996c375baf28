"""What the tests of check mode share: finding a planted bug, and kernels that have one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import triton
import triton.language as tl

from runtime.cpu import checked

HERE = Path(__file__).parent


def line(mark: str) -> str:
    """`file:line` of the statement, in any file of these tests, that ends with the comment `# bug: mark`."""
    [place] = [
        f"{file}:{number}"
        for file in (*HERE.glob("test_check*.py"), Path(__file__))
        for number, text in enumerate(file.read_text().split("\n"), 1)
        if text.endswith(f"# bug: {mark}")
    ]
    return place


def found(error: type, mark: str, run: Callable[[], Any], *, races: bool = False, **expected: Any) -> dict:
    """Run in check mode, expect `error` at the marked line with these fields; returns all fields."""
    with checked(races=races), pytest.raises(error) as caught:
        run()
    fields = caught.value.fields
    assert type(caught.value) is error
    assert fields["location"].split(" called from ")[0] == line(mark)
    assert {name: fields[name] for name in expected} == expected
    assert fields["kernel"] in str(caught.value) and fields["location"] in str(caught.value)
    return fields


@triton.jit
def copy_up_to(x, y, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    m = o <= n
    v = tl.load(x + o, mask=m)  # bug: off by one
    tl.store(y + o, v, mask=m)


@triton.jit
def copy_rows(x, y, stride_row, stride_column, rows, columns, A: tl.constexpr, B: tl.constexpr):
    a, b = tl.program_id(0) * A + tl.arange(0, A), tl.arange(0, B)
    m = (a[:, None] < rows) & (b[None, :] < columns)
    v = tl.load(x + a[:, None] * stride_row + b[None, :] * stride_column, mask=m)  # bug: stride
    tl.store(y + a[:, None] * columns + b[None, :], v, mask=m)


@triton.jit
def take(x, index, y, n, B: tl.constexpr):
    o = tl.arange(0, B)
    i = tl.load(index + o, mask=o < n, other=1 << 30)
    v = tl.load(x + i, mask=o < n)  # bug: index
    tl.store(y + o, v, mask=o < n)


@triton.jit
def overlapping(x, y, B: tl.constexpr):
    o = tl.program_id(0) * (B // 2) + tl.arange(0, B)
    v = tl.load(x + o)
    tl.store(y + o, v)  # bug: overlap


@triton.jit
def copy_one(x, y, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + o)  # bug: aliased load
    tl.store(y + o, v)  # bug: aliased store
